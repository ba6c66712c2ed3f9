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
from tlite.models import LogisticConfig


def fields(tmp_path, *experiments):
    folders = [fake_run(tmp_path / str(i), e) for i, e in enumerate(experiments)]
    return differing_fields(find_entries(folders).entries)


def test_nothing_differs(tmp_path):
    assert fields(tmp_path, GENERATOR, GENERATOR) == {}
    assert fields(tmp_path / "b", GENERATOR) == {}


def test_switches_and_numbers(tmp_path):
    other = varied(GENERATOR, {"norm": "rms", "windows": (4, 0)}, learning_rate=3e-4, seeds=5)
    assert fields(tmp_path, GENERATOR, other, GENERATOR) == {
        "norm": ["layer", "rms", "layer"],
        "windows": ["–", "4, 0", "–"],
        "learning_rate": ["0.001", "0.0003", "0.001"],
        "seeds": ["3", "5", "3"],
    }


def test_values_side_by_side(tmp_path):
    rates = varied(GENERATOR, learning_rates=(0.1, 0.2))
    assert fields(tmp_path, rates, GENERATOR) == {"learning_rate": ["0.1", "0.2", "0.001"]}


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
    content["experiment"]["model"]["attention"] = {
        "kind": "function", "file": "mine.py", "name": "alibi", "sha256": "0" * 64,
    } | record  # fmt: skip
    (run / "config.json").write_text(json.dumps(content))
    return run


def test_own_functions_are_told_by_name(tmp_path):
    plain, mine = fake_run(tmp_path / "a"), own(tmp_path / "b")
    found = differing_fields(find_entries([plain, mine]).entries)
    assert found == {"attention": ["exact", "alibi of mine.py"]}


def test_own_functions_of_one_name_are_told_by_the_file(tmp_path):
    runs = [own(tmp_path / "a"), own(tmp_path / "b", sha256="1" * 64)]
    found = differing_fields(find_entries(runs).entries)
    assert found == {"attention": ["alibi of mine.py (00000000)", "alibi of mine.py (11111111)"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "none"), (True, "yes"), (False, "no"), (10_000, "10,000"), (1e-8, "1e-08")],
        *[("", "–"), ([], "–"), ([1, 2], "1, 2"), ("rms", "rms"), ({"1": "bad"}, "(1 bad)")],
    ],
)
def test_values_as_a_person_would_write_them(value, text):
    assert shown(value) == text
