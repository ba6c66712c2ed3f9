"""Studies resume bit for bit after a kill; a variant that fails leaves the others."""

import dataclasses
import json
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from tests.attack import state as attacked
from tests.helpers.complaints import complaint
from tests.helpers.runs import (
    TEXTS,
    TRANSLATOR,
    interrupt,
    killed_at,
    labelled,
    on_text,
    stopped,
    varied,
)
from tlite.comparison.study import Study, Variant, read_study
from tlite.config import to_dict
from tlite.data import LabelledText
from tlite.errors import OutOfMemory, UserError
from tlite.experiment import GeneratorExperiment, PairSubwords, Pretrained, TokenizerFile
from tlite.models import Attention, Block, GeneratorConfig
from tlite.pretrained.tokenizers import learn_bpe
from tlite.runs import ClassifierRun, Run, run, study
from tlite.runs.study import (
    DatasetCache,
    build_variant,
    make_variants,
    resolve_precision,
    resume_study,
    start_study,
    train_study,
)
from tlite.runs.tune import read_tuning
from tlite.training import Trainer, TrainingConfig
from tlite.training.checkpoints import Checkpoints
from tlite.user_code import exec_file

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


@pytest.fixture(autouse=True)
def no_comparison(monkeypatch):
    monkeypatch.setattr("tlite.comparison.compare", lambda folders: print("compared", *folders))


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


@pytest.mark.parametrize("folder", [Path("here"), None])
def test_resume_finds_the_study_of_the_same_variants(base, folder, monkeypatch):
    """In the folder, where another study is an error, or below runs/NAME, with its precision."""
    choices = iter(["mixed"])  # once for all variants, and not again
    choose = lambda name: next(choices) if name == "auto" else name  # noqa: E731
    monkeypatch.setattr("tlite.experiment.choose_precision", choose)

    def start(precision="auto", **fields):
        experiments = sizes(base, precision=precision, **fields)
        return start_study(experiments, folder, DatasetCache(), "auto")

    study = start()
    assert {v.config().training.precision for v in study.variants} == {"mixed"}
    assert start().folder == study.folder
    if folder:
        reversed_sizes = dict(reversed(sizes(base, precision="auto").items()))
        resume = partial(start_study, reversed_sizes, folder, DatasetCache(), "auto")
        assert "the order of the variants" in complaint(resume)
        assert "smaller.training.steps is 4" in complaint(start, "mixed", steps=5)
    else:
        assert start("mixed", steps=5).folder != study.folder
        assert start().folder == study.folder


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


@pytest.mark.parametrize("change", [{"ema": 0.9}, {"average_last": 2}])
def test_variants_may_be_scored_by_an_average(base, change):
    metric = "ema_loss" if "ema" in change else "average_loss"
    variants = make_variants(sizes(base, best_metric=metric, **change), DatasetCache())
    assert {variant.config().training.best_metric for variant in variants} == {metric}


def test_a_study_killed_at_any_moment_ends_with_the_same_bits(base, undisturbed, tmp_path, capsys):
    study = start_study(sizes(base), tmp_path / "study", DatasetCache()).folder
    (study / ".larger.tmp").mkdir()  # a kill leaves such a folder
    (study / ".larger.tmp" / "config.json").touch()
    for call in KILLS.values():
        with killed_at(*call):
            resume_study(study)
    assert "compared" not in capsys.readouterr().out
    resume_study(study)
    assert f"compared {study}" in capsys.readouterr().out
    assert attacked.checkpoints(study) == attacked.checkpoints(undisturbed)
    assert attacked.metrics(study) == attacked.metrics(undisturbed)
    for variant, size in zip(read_study(study).variants, (4, 8), strict=True):
        run = Run.open(study / variant.run)
        assert run.experiment.training.batch_size == variant.config().training.batch_size == size
        assert (variant.ended, variant.parameters) == (True, run.trainer.num_parameters)


def test_a_variant_that_diverges_leaves_the_others(base, tmp_path, monkeypatch, capsys):
    """The data is read once, and no variant prints a report."""
    read, examples = [], LabelledText.examples
    monkeypatch.setattr(
        LabelledText, "examples", lambda self, split: read.append(split) or examples(self, split)
    )
    monkeypatch.setattr(ClassifierRun, "report", pytest.fail)
    wild = varied(base, batch_size=2, learning_rate=3e38)
    message = complaint(train_study, {"wild": wild, "tame": base}, tmp_path / "study")
    assert "1 of 2 variants failed: wild" in message
    assert "variant wild failed: the training loss of seed 0" in capsys.readouterr().err
    assert read == ["training", "validation"]
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
        ("the tokenizer", {"tokenizer": PairSubwords(num_subwords=21)}),
        ("context", {"truncate": True, "context": 9}),
    ],
)
def test_incomparable_variants_are_refused_before_training(tmp_path, name, changes):
    """Translators also differ by their tokens."""
    pytest.importorskip("tokenizers")
    experiments = {"this": TRANSLATOR, "that": varied(TRANSLATOR, **changes)}
    message = complaint(train_study, experiments, tmp_path / "study")
    assert re.match(rf"that and this .*, so they can't be compared: {name} is ", message)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "error", [OutOfMemory("it needs more"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no")]
)
def test_a_variant_without_memory_fails_alone(base, tmp_path, monkeypatch, capsys, error):
    """Only variants without a run, or those to retry, are trained again."""
    folder, trained = tmp_path / "study", []

    def train(run):
        trained.append(run)
        if run == "larger":
            raise error

    def open_variant(folder, variant, _):
        (folder / variant.run).mkdir(exist_ok=True)
        (folder / variant.run / "config.json").touch()
        return SimpleNamespace(train=lambda **_: train(variant.run))

    monkeypatch.setattr(study, "open_variant", open_variant)
    message = complaint(train_study, sizes(base) | {"last": varied(base, steps=6)}, folder)
    assert "1 of 3 variants failed: larger" in message
    assert re.search("it needs more|not enough memory", read_study(folder).variants[1].failed)
    assert capsys.readouterr().err.startswith("warning: variant larger failed: ")
    assert complaint(resume_study, folder) == message
    complaint(resume_study, folder, retry=["larger"])
    shutil.rmtree(folder / "smaller")
    complaint(resume_study, folder)
    assert trained == ["smaller", "larger", "last", "larger", "smaller"]
    message = complaint(resume_study, folder, retry=["last"])
    assert "'last' is not a failed variant: larger" in message


def test_ctrl_c_stops_a_study_and_prints_how_to_resume(base, tmp_path, monkeypatch):
    interrupt(monkeypatch, 1)
    message = stopped(train_study, sizes(base), tmp_path / "study")
    assert re.match(rf"stopped at step \d.*train --resume {tmp_path / 'study'}$", message)
    assert [variant.ended for variant in read_study(tmp_path / "study").variants] == [False, False]


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


def test_changed_data_of_a_study_is_an_error(base, tmp_path):
    experiments = sizes(base, data=labelled(tmp_path / "texts.jsonl"))
    study = start_study(experiments, tmp_path / "study", DatasetCache()).folder
    labelled(tmp_path / "texts.jsonl", [*TEXTS, ("A new one", "5")])
    assert f"the inputs of {study / 'smaller'} have changed" in complaint(resume_study, study)
    assert [variant.failed for variant in read_study(study).variants] == [None, None]


def test_changed_data_of_a_finished_study_is_an_error(base, tmp_path, monkeypatch):
    """Data is read once if the experiment is named again, and not at all to print the table."""
    data, folder = labelled(tmp_path / "texts.jsonl"), tmp_path / "study"
    train_study(sizes(base, data=data), folder)
    read, examples = [], LabelledText.examples
    monkeypatch.setattr(
        LabelledText, "examples", lambda self, split: read.append(split) or examples(self, split)
    )
    train_study(sizes(base, data=data), folder, resume="auto")
    assert read == ["training", "validation"]
    labelled(tmp_path / "texts.jsonl", [*TEXTS, ("A new one", "5")])
    message = complaint(train_study, sizes(base, data=data), folder, resume="auto")
    assert f"the inputs of {folder / 'smaller'} have changed" in message
    (tmp_path / "texts.jsonl").unlink()
    assert [variant.ended for variant in resume_study(folder).variants] == [True, True]


def test_a_changed_tokenizer_file_of_a_study_is_an_error(tmp_path):
    """Before a variant is trained, and if the experiment of the study is named again."""
    pytest.importorskip("tokenizers")
    text, file, folder = "the cat sat on the mat. " * 20, tmp_path / "a.json", tmp_path / "study"
    learn_bpe([text], 262).save(file)
    base = on_text(tmp_path / "text.txt", text, tokenizer=TokenizerFile(str(file)))
    start_study(sizes(base), folder, DatasetCache())
    assert start_study(sizes(base), folder, DatasetCache(), "auto").folder == folder
    learn_bpe(["other words " * 40], 262).save(file)
    expected = f"the inputs of {folder / 'smaller'} have changed: tokenizer.sha256 was "
    assert complaint(resume_study, folder).startswith(expected)
    assert complaint(train_study, sizes(base), folder, resume="auto").startswith(expected)


def test_a_changed_pretrained_model_of_a_study_is_an_error(base, tmp_path, monkeypatch):
    """Not if tuning has chosen another one; a study of an earlier version has no SHA-256 of it."""
    build, model = DatasetCache.build, {"sha256": "a"}

    def build_pretrained(datasets, experiment):
        start = Pretrained("model", model["sha256"])
        built = build(datasets, dataclasses.replace(experiment, init_from=None))
        return built._replace(experiment=dataclasses.replace(built.experiment, init_from=start))

    monkeypatch.setattr(DatasetCache, "build", build_pretrained)
    datasets = DatasetCache()
    variant, other = start_study(sizes(base), tmp_path / "study", datasets).variants
    assert variant.sha256 == other.sha256 == {"init_from.sha256": "a"}
    model["sha256"] = "b"
    assert "init_from.sha256 was a" in complaint(build_variant, tmp_path, variant, datasets)
    tuned = {"init_from": to_dict(Pretrained("other"))}
    for fields in ({"tuned": tuned}, {"sha256": {}}):
        build_variant(tmp_path, dataclasses.replace(variant, **fields), datasets)


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
    pattern = {"block": (Block(attention=Attention(dropout=0.1)), Block())}
    assert attentions({}, pattern) == ["exact", "exact"]
    assert attentions({}, {"positions": "alibi"}, {"attention": "mixed"}) == [
        *("exact", "exact", "mixed")
    ]


VALID = vars(Variant("a", "a", {}, {}, 1))
INVALID = [VALID | fields for fields in ({"run": "../b"}, {"experiment": None}, {"ended": None})]


STUDIES = [json.dumps({"name": "x", "variants": [variant]}) for variant in INVALID]
DAMAGED = [(read_study, "study.json", content) for content in ("{", "[" * 100_000, "{}", *STUDIES)]
TUNING = json.dumps({"space": {}, "variants": [{}]})
DAMAGED += [(read_tuning, "tuning.json", content) for content in ("{", "{}", "[]", TUNING)]


@pytest.mark.parametrize(("read", "name", "content"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_of_a_study_is_one_error_message(tmp_path, read, name, content):
    (tmp_path / name).write_text(content)
    assert complaint(read, tmp_path).startswith(f"can't read {tmp_path / name}: ")
