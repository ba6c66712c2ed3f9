"""Shakespeare from Project Gutenberg: both layouts come out as the same plain play text."""

import gzip
import hashlib

import pytest

from experiments.tools.gutenberg import plays, prepare


@pytest.mark.parametrize(
    ("name", "number", "sha256"),
    [
        ("pg100", 38, "2bee93316c076f561c437e1f288da80a50b87f5b59480a828538f35be144f5aa"),
        ("pg1514", 1, "601920b070235c8063f3c18e2a15dba700f811c6c28afff320d0c6f9d03d04ec"),
    ],
)
def test_the_plays_of_shakespeare_are_those_of_the_records(data_folder, name, number, sha256):
    """Their speeches and nothing else, as was read through when the parser was written: of 38 plays
    no heading, list of persons or poem is left, fewer than 4 % of the speakers speak once, and the
    Dream of both layouts has 98 % of its words in common."""
    path = data_folder / "shakespeare" / f"{name}.txt.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = gzip.decompress(path.read_bytes()).decode()
    assert len(plays(text)) == number
    assert hashlib.sha256(prepare(text).encode()).hexdigest() == sha256
