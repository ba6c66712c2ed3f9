"""The functions of `tlite`: train, evaluate, compare and load from Python."""

import dataclasses
import hashlib
import json
import re
import shutil

import jax
import numpy as np
import pytest

import tlite
from tests.helpers.complaints import complaint
from tests.helpers.runs import GENERATOR, TEXTS, labelled, on_text, varied
from tlite.experiment import BaseExperiment
from tlite.models import Attention
from tlite.models.low_rank import merge_low_rank
from tlite.models.parameters import named_arrays
from tlite.runs import ClassifierRun, Run, models, run_class
from tlite.training import LowRank

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


@pytest.fixture(scope="module")
def classified(base, tmp_path_factory):
    return tlite.train(base, seeds=2, dir=tmp_path_factory.mktemp("runs") / "classifier")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return tlite.train(on_text(folder / "text.txt"), dir=folder / "run")


def printed(capsys, *arguments, **options) -> str:
    """Return what `tlite.evaluate` prints."""
    capsys.readouterr()
    tlite.evaluate(*arguments, **options)
    return capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class Repeated:
    line: str = "the line of my own\n"
    validation_fraction: float = 0.2

    def load(self) -> str:
        return 40 * self.line


# train


@pytest.mark.parametrize("folder", ["here", None])
def test_train_resumes_the_run_of_the_same_experiment(base, folder):
    """In the folder, where another run is an error, or below runs/NAME."""
    missing = complaint(tlite.train, base, dir=folder, resume="must")
    assert missing == f"there is no run of tiny in {folder or 'runs'} to resume"
    run = tlite.train(base, seeds=2, dir=folder, resume="auto")
    assert (type(run), run.parameters("last")[1]) == (ClassifierRun, 4)
    assert (run.dir.plots / "accuracy.png").exists()
    same, created = varied(base, seeds=2), run.dir.path
    for resume in ("auto", "must"):
        assert Run.create(same, folder, resume=resume).dir.path == created
    other = varied(same, steps=6)
    if folder:
        assert "training.steps is 4" in complaint(Run.create, other, folder, resume="auto")
        assert "exists" in complaint(Run.create, same, folder)
    else:
        assert Run.create(other, resume="auto").dir.path != created
        assert Run.create(same).dir.path != created


def test_a_user_s_data_is_trained_on_and_resumed(without_type_checks):
    experiment = varied(GENERATOR, data=Repeated())
    run = Run.create(experiment).train(report=False)
    assert Run.open(run.dir.path).experiment.data == Repeated()

    other = dataclasses.replace(experiment, data=Repeated("the other line\n"))
    assert Run.create(other, resume="auto").dir.path != run.dir.path
    assert "derive it from one of GeneratorExperiment" in complaint(run_class, BaseExperiment("x"))
    zeros = {"model.attention": Attention(zero_output=True), "training.init": "gpt2"}
    dropped = {"model.embedding.word_dropout": 0.1}
    for changes, message in ((zeros, "attention.zero_output"), (dropped, "word-dropout")):
        assert message in complaint(Run.create, tlite.override(GENERATOR, changes))


def test_train_of_variants_returns_their_compared_study(base, tmp_path, capsys):
    variants = {"slow": base, "fast": tlite.override(base, {"training.seed": 7})}
    trained = tlite.train(variants, seeds=2, dir=tmp_path / "study")
    assert [(v.name, v.ended) for v in trained.variants] == [("slow", True), ("fast", True)]
    assert {v.config().training.seeds for v in trained.variants} == {2}
    assert (tmp_path / "study" / "comparison" / "index.html").exists()
    assert "fast" in capsys.readouterr().out
    assert tlite.train(variants, seeds=2, resume="must", dir=tmp_path / "study") == trained
    missing = complaint(tlite.train, variants, resume="must")
    assert missing.startswith("there is no study of tiny in runs")
    with pytest.raises(ValueError, match="seeds"):
        tlite.train(base, seeds=0)
    for wrong in ({}, {"..": base, "b": base}, {" ": base, "b": base}):
        assert "variant" in complaint(tlite.train, wrong)


# evaluate


def test_evaluate_scores_a_generator_on_any_text(generated, tmp_path, capsys):
    """Here on its validation split, and the same text in a file; it reads a run or its folder."""
    held_out = tmp_path / "held_out.txt"
    held_out.write_text(generated.tokenizer.decode(generated.validation_tokens))
    scores = r"(loss .* nats per character, .* bits per byte, accuracy \S+ %), (\d+) characters"
    for checkpoint in ("best", 2):
        texts = {
            re.search(scores, printed(capsys, run, checkpoint=checkpoint, **options)).groups()
            for run, options in (
                (generated, {}),
                (generated, {"path": held_out}),
                (str(generated.dir.path), {}),
            )
        }
        assert len(texts) == 1
    for name, line_end in (("lf.txt", "\n"), ("crlf.txt", "\r\n")):
        (tmp_path / name).write_bytes(line_end.join(["the cat sat"] * 9).encode())
    lf, crlf = (printed(capsys, generated, path=name) for name in ("lf.txt", "crlf.txt"))
    assert crlf == lf.replace("lf.txt", "crlf.txt")
    (tmp_path / "short.txt").write_text("t")
    assert "short.txt is too short" in complaint(tlite.evaluate, generated, path="short.txt")
    assert "no test split" in complaint(tlite.evaluate, generated, split="test")
    for options in ({}, {"path": held_out}):
        message = complaint(tlite.evaluate, generated, length_penalty=0.6, **options)
        assert message.startswith("--length-penalty is for a translator")


def test_a_short_text_is_not_padded_to_a_large_batch(generated, tmp_path, monkeypatch):
    (tmp_path / "short.txt").write_text("the cat sat on the mat. the cat s")
    sizes, in_batches = [], models.in_batches
    monkeypatch.setattr(models, "in_batches", lambda a, n: sizes.append(n) or in_batches(a, n))
    tlite.evaluate(generated, path="short.txt")
    assert sizes == [4]  # windows of 8 targets


def test_evaluate_scores_a_classifier_on_any_table(classified, tmp_path, capsys):
    labelled(tmp_path / "table.jsonl", TEXTS[1:])
    out = printed(capsys, classified, path="table.jsonl", replica=1)
    examples = [e for e in classified.built.train if e.label is not None][1:4]
    labels = np.array([example.label for example in examples])
    right = classified.predict([e.text for e in examples])[0].argmax(-1) == labels
    assert f"table.jsonl accuracy {100 * right.mean():.1f} (SD" in out
    assert ", 3 texts\n" in out
    plots = {path.name for path in classified.dir.plots.iterdir()}
    assert "table.jsonl-confusion.png" in plots
    assert "test-confusion.png" not in plots  # those of the run's own test split are kept
    (tmp_path / "store").write_bytes((tmp_path / "table.jsonl").read_bytes())
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "store")
    assert "link.jsonl accuracy" in printed(capsys, classified, path="link.jsonl")
    assert classified.experiment.data.test == ()
    assert "nowhere.csv" in complaint(tlite.evaluate, classified, path="nowhere.csv")


# compare and load


def test_compare_accepts_runs_studies_and_folders(classified, monkeypatch):
    compared, folder = [], classified.dir.path
    monkeypatch.setattr("tlite.comparison.compare", lambda runs: compared.extend(runs))
    tlite.compare(classified, str(folder), tlite.comparison.study.Study(folder.parent, "x", ()))
    assert compared == [folder, folder, folder.parent]


def test_compare_executes_no_user_code(generated, tmp_path, capsys):
    folder = shutil.copytree(generated.dir.path, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    code = b"raise ValueError('executed')"
    digest = hashlib.sha256(code).hexdigest()
    (folder / "code").mkdir()
    (folder / "code" / f"{digest}.py").write_bytes(code)
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
    arrays = named_arrays(classified.trainer.models(classified.parameters()[0])[1])
    for run in (classified, classified.dir.path, str(classified.dir.path)):
        model, tokenizer = tlite.load(run, replica=1)
        jax.tree.map(np.testing.assert_array_equal, named_arrays(model), arrays)
        assert len(tokenizer) == len(classified.tokenizer)


def test_loaded_models_have_their_low_rank_updates(generated, tmp_path):
    low_rank = LowRank(rank=2)
    experiment = varied(generated.experiment, low_rank=low_rank, learning_rate=0.1, seeds=2)
    run = Run.create(experiment, tmp_path / "run").train(report=False)
    parameters = {name: np.asarray(a) for name, a in run.parameters()[0].items()}
    assert any(a.any() for name, a in parameters.items() if name.endswith("lora_b"))
    merged = merge_low_rank(low_rank, parameters)
    one, ensemble = (tlite.load(run, replica=replica)[0] for replica in (1, "all"))
    for model, index in ((one, 1), (ensemble.models, slice(None))):
        loaded = named_arrays(model)
        assert loaded.keys() == merged.keys()
        for name, array in merged.items():
            np.testing.assert_allclose(loaded[name], array[index], atol=1e-6)
