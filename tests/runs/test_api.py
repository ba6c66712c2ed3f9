"""The functions of `tlite`: train, evaluate, compare and load from Python."""

import dataclasses
import hashlib
import json
import re
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import tlite
from tests.helpers.complaints import complaint
from tests.helpers.runs import LOGISTIC, TEXTS, TRANSLATOR, labelled, varied
from tlite.data import TextFile
from tlite.experiment import BaseExperiment, GeneratorExperiment
from tlite.models import Ensemble, GeneratorConfig
from tlite.runs import ClassifierRun, Run, models, run_class, study
from tlite.training import TrainingConfig

pytestmark = pytest.mark.usefixtures("one_device")

TRAINING = TrainingConfig(steps=4, batch_size=4, evaluate_every=2, learning_rate=1e-2)
MODEL = GeneratorConfig(context=8, width=8, num_heads=2, num_blocks=1)
CODE = b"raise ValueError('executed')"
TEXT = "the cat sat on the mat. " * 20


@dataclasses.dataclass(frozen=True)
class Repeated:
    line: str = "a line of my own\n"
    validation_fraction: float = 0.2

    def load(self) -> str:
        return 40 * self.line


@pytest.fixture(autouse=True)
def skip_slow_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """The experiment of a logistic regression over a file of texts."""
    texts = labelled(tmp_path_factory.mktemp("texts") / "texts.jsonl", 2 * TEXTS)
    return dataclasses.replace(LOGISTIC, data=texts, training=TRAINING)


@pytest.fixture(scope="module")
def classified(classifier, tmp_path_factory):
    return tlite.train(classifier, seeds=2, dir=tmp_path_factory.mktemp("runs") / "classifier")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT)
    data = TextFile(str(folder / "text.txt"), validation_fraction=0.2)
    experiment = GeneratorExperiment("tiny", data, MODEL, TRAINING, prompt="the")
    return tlite.train(experiment, dir=folder / "run")


def printed(capsys, *arguments, **options) -> str:
    """Return what `tlite.evaluate` prints."""
    capsys.readouterr()
    tlite.evaluate(*arguments, **options)
    return capsys.readouterr().out


# train


def test_train_returns_the_trained_run(classified, classifier):
    assert type(classified) is ClassifierRun
    assert classified.experiment.training.seeds == 2
    assert classified.parameters("last")[1] == TRAINING.steps
    assert (classified.dir.plots / "accuracy.png").exists()
    again = tlite.train(classifier, seeds=2, dir=classified.dir.path, resume="must")
    assert again.dir.path == classified.dir.path


def test_train_of_variants_returns_their_compared_study(classifier, tmp_path, capsys):
    variants = {"slow": classifier, "fast": tlite.override(classifier, {"training.seed": 7})}
    trained = tlite.train(variants, seeds=2, dir=tmp_path / "study")
    assert [(v.name, v.ended) for v in trained.variants] == [("slow", True), ("fast", True)]
    assert {v.config().training.seeds for v in trained.variants} == {2}
    assert (tmp_path / "study" / "comparison" / "index.html").exists()
    assert "fast" in capsys.readouterr().out
    assert tlite.train(variants, seeds=2, resume="must", dir=tmp_path / "study") == trained
    missing = complaint(tlite.train, variants, resume="must")
    assert missing.startswith("there is no study of tiny in runs")
    with pytest.raises(ValueError, match="seeds"):
        tlite.train(classifier, seeds=0)


def test_train_accepts_data_of_a_user_class(without_type_checks, tmp_path):
    experiment = GeneratorExperiment("own", Repeated(), MODEL, TRAINING, prompt="a")
    run = tlite.train(experiment)
    assert run.dir.path.parent.parent.resolve() == tmp_path / "runs"
    assert Run.open(run.dir.path).experiment.data == Repeated()
    other = dataclasses.replace(experiment, data=Repeated("another line\n"))
    assert Run.create(other, resume="auto").dir.path != run.dir.path


def test_an_unregistered_experiment_is_an_error():
    assert "derive it from GeneratorExperiment" in complaint(run_class, BaseExperiment("x"))


# create


@pytest.mark.parametrize("folder", ["here", None])
def test_create_resumes_the_run_of_the_same_experiment(classifier, folder):
    """In the folder, where another run is an error, or below runs/NAME."""
    missing = complaint(Run.create, classifier, folder, resume="must")
    assert missing == f"there is no run of tiny in {folder or 'runs'} to resume"
    created = Run.create(classifier, folder, resume="auto").dir.path
    for resume in ("auto", "must"):
        assert Run.create(classifier, folder, resume=resume).dir.path == created
    other = varied(classifier, steps=6)
    if folder:
        assert "training.steps is 4" in complaint(Run.create, other, folder, resume="auto")
        assert "exists" in complaint(Run.create, classifier, folder)
    else:
        assert Run.create(other, resume="auto").dir.path != created
        assert Run.create(classifier).dir.path != created


# evaluate


def test_evaluate_accepts_a_run_or_its_folder(classified, generated, capsys):
    for run in (classified, generated):
        inputs, scores = printed(capsys, str(run.dir.path)).split("\n", 1)
        assert inputs.startswith("input files: ")
        assert printed(capsys, run) == scores
        run.evaluate()
        assert capsys.readouterr().out == scores


def test_evaluate_scores_a_generator_on_any_text(generated, tmp_path, capsys):
    held_out = tmp_path / "held_out.txt"
    held_out.write_text(generated.tokenizer.decode(generated.validation_tokens))
    scores = r"(loss .* nats per character, .* bits per byte, accuracy \S+ %), (\d+) characters"
    for checkpoint in ("best", "2"):
        texts = {
            re.search(scores, printed(capsys, generated, checkpoint=checkpoint, **options)).groups()
            for options in ({}, {"path": held_out})
        }
        assert len(texts) == 1  # the validation split and the same text in a file
    (tmp_path / "short.txt").write_text("t")
    assert "short.txt is too short" in complaint(tlite.evaluate, generated, path="short.txt")


def test_a_short_text_is_not_padded_to_a_large_batch(generated, tmp_path, monkeypatch):
    (tmp_path / "short.txt").write_text(TEXT[:33])
    sizes, in_batches = [], models.in_batches
    monkeypatch.setattr(models, "in_batches", lambda a, n: sizes.append(n) or in_batches(a, n))
    tlite.evaluate(generated, path="short.txt")
    assert sizes == [4]  # windows of 8 targets


def test_evaluate_scores_a_classifier_on_any_table(classified, tmp_path, capsys):
    labelled(tmp_path / "table.jsonl", TEXTS[1:])
    out = printed(capsys, classified, path="table.jsonl", replica=1)
    examples = [e for e in classified.built.train if e.label is not None][1:4]
    labels = np.array([example.label for example in examples])
    right = classified.predict(examples)[0].argmax(-1) == labels
    assert f"test accuracy {100 * right.mean():.1f} (SD" in out
    assert ", 3 texts\n" in out
    assert (classified.dir.plots / "test-confusion.png").exists()
    assert classified.experiment.data.test == ()


def test_evaluate_without_such_a_table_or_split_is_an_error(classified, generated, tmp_path):
    assert "nowhere.csv" in complaint(tlite.evaluate, classified, path="nowhere.csv")
    assert "no test split" in complaint(tlite.evaluate, generated, split="test")
    pytest.importorskip("tokenizers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlite.training.Trainer.compile", lambda _: None)
        run = Run.create(TRANSLATOR, tmp_path / "translator")
    assert "has no table" in complaint(tlite.evaluate, run, path="table.csv")


# compare and load


def test_compare_accepts_runs_studies_and_folders(classified, monkeypatch):
    compared, folder = [], classified.dir.path
    monkeypatch.setattr("tlite.comparison.compare", lambda runs: compared.extend(runs))
    tlite.compare(classified, str(folder), tlite.comparison.study.Study(folder.parent, "x", ()))
    assert compared == [folder, folder, folder.parent]


def test_compare_executes_no_user_code(generated, tmp_path, capsys):
    folder = shutil.copytree(generated.dir.path, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    digest = hashlib.sha256(CODE).hexdigest()
    (folder / "code").mkdir()
    (folder / "code" / f"{digest}.py").write_bytes(CODE)
    function = {
        "kind": "function",
        "file": "mine.py",
        "name": "relu",
        "sha256": {"mine.py": digest},
    }
    config["experiment"]["model"]["feed_forward"]["activation"] = function
    (folder / "config.json").write_text(json.dumps(config))
    tlite.compare(folder, generated)
    assert "run" in capsys.readouterr().out
    assert "executed" in complaint(tlite.load, folder, trust=True)


def test_load_accepts_a_run_or_its_folder(classified):
    arrays = jax.tree.leaves(classified.trainer.models(classified.parameters()[0])[1])
    for run in (classified, classified.dir.path, str(classified.dir.path)):
        model, tokenizer = tlite.load(run, replica=1)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(model), arrays)
        assert len(tokenizer) == len(classified.tokenizer)
    assert isinstance(tlite.load(classified, checkpoint=2, replica="all")[0], Ensemble)
