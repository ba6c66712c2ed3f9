"""Folders as entries: which models, which seeds, called how, and what is refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.helpers.fake_runs import (
    CLASSIFIER,
    GENERATOR,
    TRANSLATOR,
    fake_run,
    fake_study,
    varied,
)
from tlite.comparison.configs import differing_fields
from tlite.comparison.entries import find_entries, with_defaults
from tlite.config import to_dict
from tlite.data import LabelledText
from tlite.errors import UserError
from tlite.experiment import Experiment, Pretraining, TokenizerFile
from tlite.models import LogisticConfig, Rotary


def entries(*folders):
    return find_entries(folders).entries


def test_a_run_is_an_entry_of_all_its_seeds(tmp_path):
    run = fake_run(tmp_path / "one", varied(GENERATOR, seed=5, seeds=3))
    (entry,) = entries(run)
    assert (entry.label, entry.folder) == ("one", run)
    assert list(entry.seeds) == [5, 6, 7]
    assert entry.experiment == json.loads(json.dumps(to_dict(varied(GENERATOR, seed=5))))


def test_a_study_stands_for_its_variants(tmp_path):
    study = tmp_path / "study"
    for run in ("base", "rms"):
        fake_run(study / run)
    variants = {"layer": "base", "rms norm": "rms", "later": "later"}
    found = find_entries([fake_study(study, variants, failed=["broken"])])
    assert [(e.label, e.folder.name) for e in found.entries] == [
        ("layer", "base"),
        ("rms norm", "rms"),
    ]
    assert found.missing == ["later has not begun", "broken failed: it was not finite"]


def test_folders_of_one_name_get_longer_labels(tmp_path):
    runs = [fake_run(tmp_path / name / "run") for name in ("a", "b")]
    other = fake_run(tmp_path / "a" / "other")
    assert [e.label for e in entries(*runs)] == ["a/run", "b/run"]
    assert [e.label for e in entries(runs[0], other)] == ["run", "other"]
    assert [e.label for e in entries(runs[0], runs[0])] == ["run", "run (2)"]


def test_variants_of_one_name_have_the_studys_before_theirs(tmp_path):
    studies = []
    for name in ("first", "second"):
        for run in ("a", "b"):
            fake_run(tmp_path / name / run)
        variants = {"base": "a", name + "'s own": "b"}
        studies.append(fake_study(tmp_path / name, variants))
    labels = [e.label for e in entries(*studies)]
    assert labels == ["first/base", "first's own", "second/base", "second's own"]


def test_labels_are_on_one_line_and_steer_no_terminal(tmp_path):
    (entry,) = entries(fake_run(tmp_path / "a\nb \x1b[31m<i>"))
    assert entry.label == "a b ␛[31m<i>"


def test_the_current_folder_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(fake_run(tmp_path / "here"))
    (entry,) = entries(Path("."))
    assert entry.label == "here"


@pytest.mark.parametrize(
    "experiment",
    [
        GENERATOR,
        CLASSIFIER,
        TRANSLATOR,
        dataclasses.replace(CLASSIFIER, pretraining=Pretraining(unlabelled=("a",))),
        dataclasses.replace(GENERATOR, tokenizer=TokenizerFile("x")),
    ],
    ids=lambda e: type(e).__name__,
)
def test_fields_that_a_run_lacks_have_their_defaults(experiment):
    """As a run has none of those that came later."""
    whole = to_dict(experiment)
    old = json.loads(json.dumps(whole))
    assert with_defaults(Experiment, old) == old
    for part in ("model", "training"):
        for name, default in list(old[part].items()):
            if to_dict(type(getattr(experiment, part))())[name] == default and name != "kind":
                del old[part][name]
    assert len(old["training"]) < len(whole["training"]) - 10
    assert json.loads(json.dumps(with_defaults(Experiment, old))) == json.loads(json.dumps(whole))


EARLIER = {"norm": "rms", "norm_first": True, "positions": "rotary", "rotary_base": 500.0}


def of_earlier(folder, **fields):
    """A run whose config says of its model what version 0.2.0 did."""
    run = fake_run(folder)
    content = json.loads((run / "config.json").read_text())
    sizes = {"vocabulary_size": 11, "context": 8, "width": 8, "num_heads": 2, "num_blocks": 2}
    model = {"kind": "GeneratorConfig", **sizes, "attention": "exact", **EARLIER, **fields}
    content["experiment"]["model"] = model
    (run / "config.json").write_text(json.dumps(content))
    return run


def test_a_run_of_an_earlier_version_is_one_of_today(tmp_path):
    (entry,) = entries(of_earlier(tmp_path / "r"))
    model = {"norm": "rms", "block": "pre_norm", "positions": Rotary(500.0), "attention": "exact"}
    assert entry.experiment == json.loads(json.dumps(to_dict(varied(GENERATOR, model))))


def test_fields_that_had_another_name_do_not_differ(tmp_path):
    """As version 0.1.0 wrote them."""
    data = LabelledText(training=("a",), labels={"1": "bad", "5": "good"}, text_column="review")
    experiment = dataclasses.replace(
        CLASSIFIER, data=data, model=LogisticConfig(11, 2, bigrams=60000)
    )
    runs = [fake_run(tmp_path / name, experiment) for name in ("old", "new")]
    content = json.loads((runs[0] / "config.json").read_text())
    for part, was, name in (("model", "pairs", "bigrams"), ("data", "text", "text_column")):
        fields = content["experiment"][part]
        fields[was] = fields.pop(name)
    (runs[0] / "config.json").write_text(json.dumps(content))
    assert differing_fields(entries(*runs)) == {}


def test_what_is_gone_is_told(tmp_path):
    run = of_earlier(tmp_path / "r", value_residual=True)
    assert refused(run).startswith(f"{run} can't be compared: value_residual is no part")


def test_variants_side_by_side_are_told_to_be_gone(tmp_path):
    run = fake_run(tmp_path / "r")
    content = json.loads((run / "config.json").read_text())
    content["experiment"]["training"] |= {"learning_rates": [], "varied": []}
    (run / "config.json").write_text(json.dumps(content))
    assert entries(run)[0].experiment == json.loads(json.dumps(to_dict(GENERATOR)))
    content["experiment"]["training"]["learning_rates"] = [0.1, 0.2]
    (run / "config.json").write_text(json.dumps(content))
    assert "tlite 0.2.0 opens it" in refused(run)


def refused(*folders):
    with pytest.raises(UserError) as caught:
        find_entries(folders)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_what_is_no_run_is_told(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert refused(file) == f"{file} is no folder: name folders of runs or of studies"
    assert "is no folder" in refused(tmp_path / "nowhere")
    assert "has neither config.json nor study.json" in refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert "is a model of others" in refused(tmp_path)
    (tmp_path / "config.json").write_text('{"experiment": ')
    assert "is of no run of tlite's: line 1 is not JSON" in refused(tmp_path)


def test_a_training_that_is_none_is_told(tmp_path):
    run = fake_run(tmp_path / "run")
    content = json.loads((run / "config.json").read_text())
    content["experiment"]["training"]["steps"] = "many"
    (run / "config.json").write_text(json.dumps(content))
    assert "steps" in refused(run)
    content["experiment"]["training"] = None
    (run / "config.json").write_text(json.dumps(content))
    assert "is of no run of tlite's" in refused(run)


def test_a_study_of_something_else_is_told(tmp_path):
    """The rest is `read_study`'s."""
    (tmp_path / "study.json").write_text("{")
    assert "study.json is not what a study writes" in refused(tmp_path)
