"""Shakespeare from Project Gutenberg: both layouts come out as the same plain play text."""

import gzip
import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.tools.gutenberg import plays, prepare

SMALL = "ACT I\n\nSCENE I. A room.\n\nROWAN.\nGood day.\n\nHAZEL.\n{}\n"


@pytest.mark.parametrize("text", ["", "Contents\n", "ACT I\n\nSCENE I. A room\n", "ROWAN.\nAy.\n"])
def test_a_text_without_a_play_is_refused(text):
    with pytest.raises(ValueError, match="no play found"):
        prepare(text)


# fmt: off
LINES = ["", " ", "\r\n", "ACT II", "SCENE 2. Room", "EPILOGUE", "  ROWAN. Ay- me", "HAZEL.", "17",
         "[_Exit", "  aside_]", "Enter", "é—Æ", "    deep      [Dies]", "--", "Dramatis Personæ"]
# fmt: on
PIECES = st.one_of(st.sampled_from(LINES), st.text(max_size=12))


@given(st.lists(PIECES, max_size=25))
def test_output_has_only_plain_characters_and_no_stray_space(pieces):
    text = prepare(SMALL.format("\n".join(pieces)))
    assert re.fullmatch(r"(?:[ -/:-~\n—])*", text)
    assert not re.search(r" $|^ |  |\n\n\n", text, flags=re.M)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


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
