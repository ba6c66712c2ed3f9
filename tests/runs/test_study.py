"""Studies resume bit for bit after a kill; a variant that fails leaves the others."""

import dataclasses
import json
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from tests.attack import state as attacked
from tests.helpers.complaints import complaint
from tests.helpers.runs import LOGISTIC, TEXTS, TRANSLATOR, labelled, varied
from tlite.comparison.study import Study, Variant, read_study
from tlite.data import LabelledText
from tlite.errors import Interrupted, OutOfMemory, UserError
from tlite.experiment import GeneratorExperiment, PairSubwords
from tlite.models import GeneratorConfig
from tlite.runs import ClassifierRun, Run, run, study
from tlite.runs.study import (
    DatasetCache,
    resolve_precision,
    resume_study,
    start_study,
    train_study,
)
from tlite.training import Trainer, TrainingConfig
from tlite.training.checkpoints import Checkpoints
from tlite.user_code import exec_file

pytestmark = pytest.mark.usefixtures("one_device")

TRAINING = TrainingConfig(steps=4, batch_size=8, evaluate_every=2, learning_rate=1e-2)


class Killed(BaseException):
    """Simulates a killed process: no handler catches it."""


@pytest.fixture(autouse=True)
def skip_slow_steps(tmp_path, monkeypatch):
    """Skip comparison and garbage collection, which take longer than training."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "gc", SimpleNamespace(collect=lambda: 0))
    monkeypatch.setattr("tlite.comparison.compare", lambda folders: print("compared", *folders))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A logistic regression, the run that compiles fastest."""
    texts = labelled(tmp_path_factory.mktemp("texts") / "texts.jsonl")
    return dataclasses.replace(LOGISTIC, data=texts, training=TRAINING)


def sizes(base, **fields):
    return {"smaller": varied(base, batch_size=4, **fields), "larger": varied(base, **fields)}


@pytest.fixture(scope="module")
def undisturbed(base, tmp_path_factory):
    """Folder of a study that was not interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlite.comparison.compare", lambda folders: None)
        train_study(sizes(base), folder)
    return folder


def kill(monkeypatch, owner, name, time=1):
    """Kill the process at call number `time` of the function `owner.name`."""
    calls, original = [], getattr(owner, name)

    def called(*arguments, **settings):
        calls.append(name)
        if len(calls) == time:
            raise Killed
        return original(*arguments, **settings)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize("folder", [Path("here"), None])
def test_resume_finds_the_study_of_the_same_variants(base, folder):
    """In the folder, where another study is an error, or below runs/NAME."""

    def start(**fields):
        return start_study(sizes(base, **fields), folder, DatasetCache(), "auto").folder

    study = start()
    assert start() == study
    if folder:
        assert "smaller.training.steps is 4" in complaint(start, steps=5)
    else:
        assert start(steps=5) != study
        assert start() == study


def test_a_study_keeps_its_precision_on_another_machine(base, tmp_path, monkeypatch):
    choices = iter(["mixed"])  # once for all variants, and not again
    monkeypatch.setattr("tlite.experiment.choose_precision", lambda _: next(choices))
    for _ in range(2):
        experiments = sizes(base, precision="auto")
        study = start_study(experiments, tmp_path / "study", DatasetCache(), "auto")
        assert {v.config().training.precision for v in study.variants} == {"mixed"}


REPEATED = """
from dataclasses import dataclass, field
from tlite.data import BuiltinText

@dataclass(frozen=True)
class Repeated(BuiltinText):
    word: str = field(default="", repr=False)

    def load(self):
        return 50 * self.word
"""


def test_variants_share_data_of_equal_fields_only(tmp_path):
    (tmp_path / "data.py").write_text(REPEATED)
    repeated = exec_file(tmp_path / "data.py").Repeated
    first, other, same = (
        GeneratorExperiment(name, repeated(0.5, word), GeneratorConfig(context=8))
        for name, word in (("first", "ab"), ("other", "cd"), ("same", "ab"))
    )
    datasets = DatasetCache()
    built = {each.name: datasets.build(each) for each in (first, other, same)}
    assert built["other"].tokenizer.characters.startswith("cd")
    assert built["same"].tokenizer is built["first"].tokenizer
    assert datasets.load(first) is datasets.load(same) != datasets.load(other)


KILLS = {
    "while a run folder is made": (Run, "start", 1),
    "before the first step": (Trainer, "dispatch", 1),
    "before the first checkpoint": (Checkpoints, "save", 1),
    "after the first checkpoint": (Trainer, "dispatch", 3),
    "at the end of a variant": (Study, "write", 1),
    "while the second run folder is made": (run, "create_run", 1),
    "in the second variant": (Checkpoints, "save", 2),
    "at the end": (study, "report", 1),
}


def test_a_study_killed_at_any_moment_ends_with_the_same_bits(
    base, undisturbed, tmp_path, monkeypatch, capsys
):
    study = start_study(sizes(base), tmp_path / "study", DatasetCache()).folder
    (study / ".larger.tmp").mkdir()  # a kill leaves such a folder
    (study / ".larger.tmp" / "config.json").touch()
    for call in KILLS.values():
        with monkeypatch.context() as patch:
            kill(patch, *call)
            with pytest.raises(Killed):
                resume_study(study)
    assert "compared" not in capsys.readouterr().out
    resume_study(study)
    assert f"compared {study}" in capsys.readouterr().out
    assert attacked.checkpoints(study) == attacked.checkpoints(undisturbed)
    assert attacked.metrics(study) == attacked.metrics(undisturbed)
    assert all(variant.ended for variant in read_study(study).variants)


def test_a_resumed_study_trains_only_variants_without_a_run(base, tmp_path, pretend, capsys):
    trained, study = [], tmp_path / "study"
    pretend(trained.append)
    train_study(sizes(base), study)
    capsys.readouterr()
    resume_study(study)
    assert f"compared {study}" in capsys.readouterr().out
    shutil.rmtree(study / "larger")
    resume_study(study)
    assert trained == ["smaller", "larger", "larger"]


def test_data_is_read_once_and_variants_print_no_report(base, tmp_path, monkeypatch, capsys):
    def examples(self, split, examples=LabelledText.examples):
        read.append(split)
        return examples(self, split)

    read = []
    kill(monkeypatch, ClassifierRun, "report")
    monkeypatch.setattr(LabelledText, "examples", examples)
    train_study(sizes(base, steps=1), tmp_path / "study")
    assert read == ["training", "validation"]
    assert "\nvariant 1 of 2: smaller\n" in capsys.readouterr().out


def test_variants_of_a_study_are_runs(undisturbed):
    study = read_study(undisturbed)
    assert (study.name, [v.name for v in study.variants]) == ("tiny", ["smaller", "larger"])
    for variant, size in zip(study.variants, (4, 8), strict=True):
        run = Run.open(undisturbed / variant.run)
        assert run.experiment.training.batch_size == variant.config().training.batch_size == size
        assert variant.parameters == run.trainer.num_parameters


def test_ctrl_c_stops_a_study_and_prints_how_to_resume(base, tmp_path, monkeypatch):
    study, train = tmp_path / "study", Trainer.dispatch

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return train(*arguments)

    monkeypatch.setattr(Trainer, "dispatch", interrupted)
    with pytest.raises(Interrupted, match=rf"stopped at step 1.*train --resume {study}$") as stop:
        train_study(sizes(base), study)
    assert stop.value.exit_code == 130
    assert [variant.ended for variant in read_study(study).variants] == [False, False]


def test_a_variant_that_diverges_leaves_the_others(base, tmp_path, capsys):
    wild = varied(base, batch_size=2, learning_rate=3e38)
    message = complaint(train_study, {"wild": wild, "tame": base}, tmp_path / "study")
    assert "1 of 2 variants failed: wild" in message
    assert "variant wild failed: the training loss of seed 0" in capsys.readouterr().err
    states = [(v.failed is None, v.ended) for v in read_study(tmp_path / "study").variants]
    assert states == [(False, False), (True, True)]
    assert complaint(resume_study, tmp_path / "study") == message


def test_a_variant_that_does_not_fit_its_data_prevents_the_study(base, tmp_path):
    variants = sizes(base) | {"wrong": varied(base, vocabulary_size=7)}
    message = complaint(train_study, variants, tmp_path / "study")
    assert message.startswith("variant wrong: vocabulary_size is 7")
    missing = dataclasses.replace(base.data, training=("nowhere.jsonl",))
    assert "nowhere.jsonl" in complaint(train_study, sizes(base, data=missing), tmp_path / "study")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("training pairs", {"sequences": 70}),
        ("the tokenizer", {"tokenizer": PairSubwords(pieces=21)}),
        ("context", {"truncate": True, "context": 9}),
        ("", {"max_to_keep": 2}),
    ],
)
def test_incomparable_variants_are_refused_before_training(tmp_path, name, changes):
    """Translators also differ by their tokens; `max_to_keep` does not matter."""
    pytest.importorskip("tokenizers")
    study, experiments = tmp_path / "study", {"this": TRANSLATOR}
    experiments["that"] = varied(TRANSLATOR, **changes)
    if not name:
        start_study(experiments, study, DatasetCache())
        return
    message = complaint(train_study, experiments, study)
    assert re.match(rf"that and this .*, so they can't be compared: {name} is ", message)
    assert not study.exists()


UNREADABLE = UserError("can't read x")
UNREADABLE.__cause__ = PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Run, "start", UNREADABLE),
        (ClassifierRun, "train", UserError("the disk is full")),
        (ClassifierRun, "train", RuntimeError("other")),
    ],
)
def test_errors_of_the_environment_end_the_study(base, tmp_path, monkeypatch, owner, name, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(type(error), match=str(error)):
        train_study(sizes(base), tmp_path / "study")
    assert [v.failed for v in read_study(tmp_path / "study").variants] == [None, None]


@pytest.fixture
def pretend(monkeypatch):
    """Replace the training of variants by a function of the name of their run."""

    def replace(train):
        def open_variant(folder, variant, _):
            (folder / variant.run).mkdir(exist_ok=True)
            (folder / variant.run / "config.json").touch()
            return SimpleNamespace(train=lambda **_: train(variant.run))

        monkeypatch.setattr(study, "open_variant", open_variant)

    return replace


@pytest.mark.parametrize(
    "error", [OutOfMemory("it needs more"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no")]
)
def test_a_variant_without_memory_fails_alone(base, tmp_path, pretend, capsys, error):
    study, trained = tmp_path / "study", []

    def train(run):
        trained.append(run)
        if run == "larger":
            raise error

    pretend(train)
    message = complaint(train_study, sizes(base) | {"last": varied(base, steps=6)}, study)
    assert "1 of 3 variants failed: larger" in message
    assert re.search("it needs more|not enough memory", read_study(study).variants[1].failed)
    assert capsys.readouterr().err.startswith("warning: variant larger failed: ")
    assert complaint(resume_study, study) == message
    assert trained == ["smaller", "larger", "last"]
    complaint(resume_study, study, retry=["larger"])
    assert trained[3:] == ["larger"]
    assert "'last' is not a failed variant: larger" in complaint(
        resume_study, study, retry=["last"]
    )


def test_changed_data_of_a_study_is_an_error(base, tmp_path):
    experiments = sizes(base, data=labelled(tmp_path / "texts.jsonl"))
    study = start_study(experiments, tmp_path / "study", DatasetCache()).folder
    labelled(tmp_path / "texts.jsonl", [*TEXTS, ("A new one", "5")])
    assert f"the data of {study / 'smaller'} has changed" in complaint(resume_study, study)
    assert [variant.failed for variant in read_study(study).variants] == [None, None]


def test_variants_differ_in_neither_precision_nor_attention(monkeypatch):
    """A variant whose attention has no bfloat16 products makes all "auto" ones exact."""
    monkeypatch.setattr("tlite.experiment.choose_precision", lambda precision: precision)

    def attentions(*variants):
        training = TrainingConfig(precision="mixed")
        models = [GeneratorConfig(context=128, **fields) for fields in variants]
        variants = {
            str(number): GeneratorExperiment("x", model=model, training=training)
            for number, model in enumerate(models)
        }
        return [e.model.attention.function for e in resolve_precision(variants).values()]

    assert attentions({}, {"attention": "mixed"}) == ["mixed", "mixed"]
    assert attentions({}, {"positions": "alibi"}, {"attention": "mixed"}) == [
        *("exact", "exact", "mixed")
    ]


VALID = vars(Variant("a", "a", {}, {}, 1))
INVALID = [VALID | fields for fields in ({"run": "../b"}, {"experiment": None}, {"ended": None})]


@pytest.mark.parametrize(
    "content",
    ["{", "[" * 100_000, "{}", *(json.dumps({"name": "x", "variants": [v]}) for v in INVALID)],
    ids=range(6),
)
def test_a_damaged_study_file_is_one_error_message(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    assert complaint(read_study, tmp_path).startswith(f"can't read {tmp_path / 'study.json'}: ")
