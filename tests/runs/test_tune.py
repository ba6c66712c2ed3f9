"""Tuning: worse values are dropped early, a kill changes nothing, and trials are plain runs."""

import shutil

import numpy as np
import pytest

from tests.attack import state as attacked
from tests.helpers.complaints import complaint
from tests.helpers.runs import TEXTS, killed_at, labelled, varied
from tlite.cli import main
from tlite.config import override
from tlite.errors import OutOfMemory, RunFailed
from tlite.runs import Run, run, tune
from tlite.runs.study import resume_study, train_study
from tlite.runs.tune import read_tuning, resume_tuning
from tlite.training import Trainer
from tlite.training.checkpoints import Checkpoints
from tlite.training.run_dir import find_runs

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")

RATE = "training.learning_rate"
FIELDS = {RATE: (1e-4, 1.0)}


@pytest.fixture(scope="module")
def base(base):
    """The rung at step 4 is no validation, which is every 3 steps."""
    return varied(base, steps=8, evaluate_every=3)


def start(base, folder, fields=FIELDS, **settings):
    return tune.tune(base, fields, **{"trials": 4, "seeds": 1, "dir": folder} | settings)


@pytest.fixture(scope="module")
def undisturbed(base, tmp_path_factory):
    """A tuning that was not interrupted."""
    return start(base, tmp_path_factory.mktemp("undisturbed") / "tuning")


def choices(tuning):
    """Return the ledger without the seconds."""
    return [{**line, "seconds": None} for line in tuning.read_ledger()]


def test_the_worst_values_are_dropped_early_and_cost_less(undisturbed):
    lines = undisturbed.read_ledger()
    first, last = ([line for line in lines if line["rung"] == rung] for rung in (1, 2))
    kept = [line["trial"] for line in first if line["kept"]]
    assert (len(first), [line["trial"] for line in last]) == (4, kept)
    assert [line["reason"] for line in first if line["change"][RATE] == 1e-4] == ["worse"]
    assert sum(line["step"] for line in first if not line["kept"]) + 8 * len(last) < 4 * 8
    best = min(last, key=lambda line: np.mean(line["loss"]))
    assert undisturbed.values == best["change"]
    assert len({line["hash"] for line in lines}) == len({line["trial"] for line in lines}) == 4
    for line in lines:
        assert line["trial"] == f"learning_rate={line['change'][RATE]:g}"
        assert (line["seeds"], line["step"]) == ([10_000], {1: 4, 2: 8}[line["rung"]])
        assert (len(line["loss"]), line["seconds"] > 0) == (1, True)
    (summary,) = find_runs(undisturbed.folder)
    assert (summary.kind, summary.progress, summary.total) == ("tuning", 2, 2)


def test_a_trial_that_is_kept_equals_a_plain_run(base, undisturbed, tmp_path):
    change = undisturbed.values
    plain = Run.create(override(base, change | {"training.seed": 10_000}), tmp_path / "plain")
    plain.train(report=False)
    best = undisturbed.best()
    (trial,) = (v.run for v in undisturbed.variants if v.name == best["trial"])
    folder = undisturbed.folder / trial
    assert attacked.checkpoints(folder) == attacked.checkpoints(tmp_path / "plain")
    assert attacked.metrics(folder) == attacked.metrics(tmp_path / "plain")


KILLS = {
    "while a run folder is made": (Run, "start", 1),
    "before the first checkpoint": (Checkpoints, "save", 1),
    "in the second trial": (Trainer, "dispatch", 3),
    "while a run folder is made again": (run, "create_run", 1),
    "before the first decision": (tune, "decide_rung", 1),
    "while the ledger is written": (tune, "replace_file", 1),
    "in the second rung": (Checkpoints, "save", 2),
    "before the result": (tune, "print_result", 1),
}


def test_a_tuning_killed_at_any_moment_chooses_the_same(base, undisturbed, tmp_path):
    folder = tmp_path / "tuning"
    with killed_at(tune, "run_tuning"):
        start(base, folder)
    for call in KILLS.values():
        with killed_at(*call):
            resume_tuning(folder)
    tuning = resume_tuning(folder)
    assert tuning.values == undisturbed.values
    assert choices(tuning) == choices(undisturbed)
    for variant in tuning.variants:
        one, other = (attacked.metrics(t.folder / variant.run) for t in (tuning, undisturbed))
        assert one == other


def test_a_finished_tuning_trains_nothing_again(base, undisturbed, monkeypatch, capsys):
    monkeypatch.setattr(Trainer, "dispatch", pytest.fail)
    tuning = start(base, undisturbed.folder, resume="auto", train_command=("train", "demo"))
    assert tuning.values == undisturbed.values
    out, err = capsys.readouterr()
    assert f"best: learning_rate={tuning.values[RATE]:g}" in out
    assert "at the high end of the range 0.0001..1" in err
    message = complaint(start, base, undisturbed.folder, trials=5, resume="auto")
    assert "has another experiment" in message


def test_changed_data_of_a_finished_tuning_is_an_error(base, tmp_path):
    data, folder = labelled(tmp_path / "texts.jsonl"), tmp_path / "tuning"
    tuning = start(varied(base, data=data), folder, trials=2)
    labelled(tmp_path / "texts.jsonl", [*TEXTS, ("A new one", "5")])
    message = complaint(start, varied(base, data=data), folder, trials=2, resume="auto")
    assert f"the inputs of {folder / tuning.variants[0].run} have changed" in message
    (tmp_path / "texts.jsonl").unlink()
    assert resume_tuning(folder).values == tuning.values


def test_scores_before_a_decision_are_not_trained_again(base, tmp_path, monkeypatch):
    """A trial that was trained further is an error."""
    with killed_at(tune, "decide_rung"):
        start(base, tmp_path / "tuning")
    further = shutil.copytree(tmp_path / "tuning", tmp_path / "further") / "learning_rate=0.0001"
    Run.open(further).train(report=False)
    message = complaint(resume_tuning, tmp_path / "further")
    assert message.startswith(f"{further} is at step 8, but the other trials at step 4")
    monkeypatch.setattr(Run, "train_until", pytest.fail)
    with killed_at(tune, "print_rung"):
        resume_tuning(tmp_path / "tuning")
    assert len(read_tuning(tmp_path / "tuning").read_ledger()) == 4


def test_several_fields_and_seeds_can_be_tuned(base, tmp_path):
    fields = {RATE: (1e-2, 1.0), "training.batch_size": [4, 8]}
    tuning = start(varied(base, seeds=5), tmp_path / "tuning", fields, seeds=2)
    assert tuning.seeds == (10_000, 10_001)
    assert {*tuning.values} == {*fields}
    invalid = {"training.batch_size": [8, -1]}
    message = complaint(start, base, tmp_path / "invalid", invalid)
    assert "batch_size must be at least 1, not -1" in message
    assert not (tmp_path / "invalid").exists()


def test_diverged_trials_are_dropped(base, tmp_path, capsys):
    tuning = start(base, tmp_path / "tuning", {RATE: [1e-2, 3e38]}, trials=2, seeds=2)
    reasons = {line["change"][RATE]: line["reason"] for line in tuning.read_ledger()}
    assert reasons[1e-2] == ""
    assert "learning rate 3e+38 is" in reasons[3e38]
    assert tuning.values == {RATE: 1e-2}
    with pytest.raises(RunFailed, match="all 2 trials failed"):
        start(base, tmp_path / "other", {RATE: [1e38, 3e38]}, trials=2)


def test_the_command_prints_how_to_train_with_the_best_value(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tune, "create_tuning", lambda name, *_: pytest.fail(name))
    calls = []
    monkeypatch.setattr(tune, "tune", lambda *args, **settings: calls.append((args, settings)))
    words = "tune demo --width 32 --vary learning-rate 1e-3..1 --vary norm rms layer --trials 5"
    assert main(words.split()) == 0
    ((experiment, fields), settings) = calls[0]
    assert (experiment.model.width, settings["trials"]) == (32, 5)
    assert fields == {RATE: (1e-3, 1.0), "model.norm": ["rms", "layer"]}
    assert settings["train_command"] == ("train", "demo", "--width", "32")
    change = {RATE: 0.00316, "model.norm": "rms", "model.attention.num_heads": 2}
    options = ["--learning-rate", "0.00316", "--norm", "rms", "--attention.num-heads", "2"]
    assert tune.as_options(change) == options


def test_each_variant_is_tuned_and_a_kill_changes_nothing(base, tmp_path, monkeypatch):
    monkeypatch.setattr("tlite.comparison.compare", lambda folders: None)
    folder = tmp_path / "study"
    variants = {"smaller": varied(base, batch_size=4), "larger": base}
    with killed_at(tune, "decide_rung", 2):
        train_study(variants, folder, tune={RATE: [1e-4, 0.5]}, trials=2, tuning_seeds=1)
    study = resume_study(folder)
    assert [variant.tuned for variant in study.variants] == [{RATE: 0.5}] * 2
    for variant in study.variants:
        training = Run.open(folder / variant.run).experiment.training
        assert (training.learning_rate, training.seed) == (0.5, 0)
        tuning = folder / "tuning" / variant.run
        assert {"trials.jsonl", "tuning.png"} <= {path.name for path in tuning.iterdir()}


def test_retry_trains_the_last_rung_of_a_failed_tuning_again(base, tmp_path, monkeypatch):
    monkeypatch.setattr("tlite.comparison.compare", lambda folders: None)
    folder, train_until, steps = tmp_path / "study", Run.train_until, []

    def without_memory(run, step, **settings):
        if run.dir.path.parent.name == "larger" and step == 8:
            raise OutOfMemory("it needs more")
        train_until(run, step, **settings)

    def with_memory(run, step, **settings):
        steps.append(step)
        train_until(run, step, **settings)

    variants = {"smaller": varied(base, batch_size=4), "larger": base}
    monkeypatch.setattr(Run, "train_until", without_memory)
    tuning = {"tune": FIELDS, "trials": 4, "tuning_seeds": 1}
    assert "1 of 2 variants failed: larger" in complaint(train_study, variants, folder, **tuning)
    failed = read_tuning(folder / "tuning" / "larger").read_ledger()
    assert {line["reason"] for line in failed if line["rung"] == 2} == {"it needs more"}
    assert read_tuning(folder / "tuning" / "larger").values == {}  # none of an earlier rung
    monkeypatch.setattr(Run, "train_until", with_memory)
    study = resume_study(folder, ["larger"])
    assert [(v.failed, v.ended) for v in study.variants] == [(None, True)] * 2
    ledger = read_tuning(folder / "tuning" / "larger").read_ledger()
    assert (ledger[:4], len(ledger)) == (failed[:4], len(failed))
    assert any(line["kept"] for line in ledger[4:])
    assert steps == [8] * (len(ledger[4:]) + 1)  # and the variant with the chosen value
