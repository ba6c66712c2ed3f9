"""What differs between configs is told, by the shortest name that is clear, and nothing else."""

import dataclasses
import json

import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run, varied
from tlite.comparison.configs import differing_fields, shown
from tlite.comparison.entries import find_entries
from tlite.data import TextFile
from tlite.data.corpus import Corpus
from tlite.experiment import BPE, Pretrained, Pretraining
from tlite.models import Attention, LogisticConfig


def fields(tmp_path, *experiments):
    folders = [fake_run(tmp_path / str(i), e) for i, e in enumerate(experiments)]
    return differing_fields(find_entries(folders).entries)


def test_nothing_differs(tmp_path):
    assert fields(tmp_path, GENERATOR, GENERATOR) == {}
    assert fields(tmp_path / "b", GENERATOR) == {}


def test_parts_and_numbers(tmp_path):
    model = {"norm": "rms", "attention": Attention(windows=(4, 0))}
    other = varied(GENERATOR, model, learning_rate=3e-4, seeds=5)
    assert fields(tmp_path, GENERATOR, other, GENERATOR) == {
        "norm.method": ["layer", "rms", "layer"],
        "attention.windows": ["–", "4, 0", "–"],
        "learning_rate": ["0.001", "0.0003", "0.001"],
        "seeds": ["3", "5", "3"],
    }


def test_another_source_of_data_and_another_tokenizer(tmp_path):
    other = dataclasses.replace(GENERATOR, data=TextFile("a.txt"), tokenizer=BPE(300))
    found = fields(tmp_path, GENERATOR, other)
    assert list(found) == ["data", "tokenizer"]
    assert found["tokenizer"] == ["Characters", "BPE(pieces 300)"]
    assert found["data"][1].startswith("TextFile(path a.txt, ")


def test_parts_that_only_some_have(tmp_path):
    other = dataclasses.replace(CLASSIFIER, pretraining=Pretraining(), name="other")
    third = dataclasses.replace(other, pretraining=Pretraining(pretraining_dropout=0.3))
    found = fields(tmp_path, CLASSIFIER, other, third)
    assert set(found) == {"name", "pretraining"}
    assert found["pretraining"][0] == "none"
    assert "pretraining_dropout 0.3" in found["pretraining"][2]
    assert fields(tmp_path / "b", other, third) == {"pretraining_dropout": ["0.1", "0.3"]}


def test_names_that_two_parts_have_are_told_apart(tmp_path):
    runs = [
        dataclasses.replace(GENERATOR, data=Corpus(name), pretraining=Pretrained(f"{name}-model"))
        for name in ("a", "b")
    ]
    assert fields(tmp_path, *runs) == {
        "data.folder": ["a", "b"],
        "pretraining.folder": ["a-model", "b-model"],
    }


def test_models_of_other_kinds(tmp_path):
    logistic = dataclasses.replace(CLASSIFIER, model=LogisticConfig(11, 2))
    found = fields(tmp_path, CLASSIFIER, logistic)
    assert list(found) == ["model"]
    assert found["model"][1].startswith("LogisticConfig(vocabulary_size 11, ")


def own(folder, **record):
    """A run with an attention of the user's."""
    run = fake_run(folder)
    content = json.loads((run / "config.json").read_text())
    content["experiment"]["model"]["attention"]["function"] = {
        "kind": "function", "file": "mine.py", "name": "alibi", "sha256": "0" * 64,
    } | record  # fmt: skip
    (run / "config.json").write_text(json.dumps(content))
    return run


def test_own_functions_are_told_by_name(tmp_path):
    plain, mine = fake_run(tmp_path / "a"), own(tmp_path / "b")
    found = differing_fields(find_entries([plain, mine]).entries)
    assert found == {"attention": ["auto", "alibi of mine.py"]}


def test_own_functions_of_one_name_are_told_by_the_file(tmp_path):
    runs = [own(tmp_path / "a"), own(tmp_path / "b", sha256="1" * 64)]
    found = differing_fields(find_entries(runs).entries)
    assert found == {"attention": ["alibi of mine.py (00000000)", "alibi of mine.py (11111111)"]}


def with_block(folder, sha256="0" * 64, **fields):
    """A run with a block of a class of the user's."""
    run = fake_run(folder)
    content = json.loads((run / "config.json").read_text())
    reference = {"kind": "class", "file": "mine.py", "name": "Parallel", "sha256": sha256}
    content["experiment"]["model"]["block"] = reference | {"fields": fields}
    (run / "config.json").write_text(json.dumps(content))
    return run


def test_own_parts_are_told_by_name_and_their_fields_where_these_differ(tmp_path):
    plain, *mine = (
        fake_run(tmp_path / "plain"),
        *(
            with_block(tmp_path / name, digest * 64, pre_norm=pre_norm, scale=None)
            for name, digest, pre_norm in (("a", "0", True), ("b", "0", False), ("c", "1", True))
        ),
    )

    def told(*runs):
        return differing_fields(find_entries(runs).entries)

    (texts,) = told(plain, mine[0]).values()
    assert texts[1] == "Parallel of mine.py(pre_norm yes)"
    assert told(mine[0], mine[1]) == {"block.pre_norm": ["yes", "no"]}
    name = "Parallel of mine.py(pre_norm yes)"
    assert told(mine[0], mine[2]) == {"block": [f"{name} (00000000)", f"{name} (11111111)"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "none"), (True, "yes"), (False, "no"), (10_000, "10,000"), (1e-8, "1e-08")],
        *[("", "–"), ([], "–"), ([1, 2], "1, 2"), ("rms", "rms"), ({"1": "bad"}, "(1 bad)")],
    ],
)
def test_values_as_a_person_would_write_them(value, text):
    assert shown(value) == text
