"""Runs of a translator: sizes from the data, resume, averages and evaluation."""

import dataclasses
import re
import unicodedata
from functools import partial

import jax
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.runs import (
    TRANSLATOR,
    assert_has_examples,
    assert_same_state,
    interrupted,
    resume,
    start_like,
    varied,
)
from tlite.data import ParallelText
from tlite.experiment import PairSubwords
from tlite.models import TranslatorHead
from tlite.runs import Run, TranslatorRun
from tlite.runs.models import load_run
from tlite.runs.translator import encode_sources
from tlite.text.subwords import END_ID
from tlite.training.metrics import read_example_scores, read_metrics

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained", "shared_programs")

STEPS = 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> TranslatorRun:
    run = Run.create(TRANSLATOR, tmp_path_factory.mktemp("runs") / "trained")
    run.train()
    return run


@pytest.fixture
def sentences(tmp_path):
    """An experiment on files of pairs; the third pair is long."""
    lines = ["a b", "b a", "a b c d e f g h i", "c"]
    for side in ("a.en", "a.de"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    names = (str(tmp_path / "a.en"), str(tmp_path / "a.de"))
    return dataclasses.replace(TRANSLATOR, data=ParallelText(training=names, validation=names))


def test_separate_subwords_have_separate_embeddings(trained, tmp_path):
    tokenizer, head = PairSubwords(num_subwords=20, joint=False), TranslatorHead("separate")
    separate = Run.create(varied(TRANSLATOR, tokenizer=tokenizer, head=head), tmp_path / "run")
    assert [run.tokenizer.joint for run in (trained, separate)] == [True, False]
    model = trained.experiment.model
    assert model.vocabulary_size == model.source_vocabulary_size == len(trained.tokenizer)


def test_sentence_beyond_the_context_is_an_error(sentences, tmp_path):
    message = complaint(Run.create, sentences, tmp_path / "run")
    assert re.match(r"line 3 of .*a\.en and .*a\.de has 1\d tokens, .* context of 8", message)
    assert not (tmp_path / "run").exists()


def test_truncated_sentences_keep_their_end_symbol(sentences, tmp_path):
    run = Run.create(dataclasses.replace(sentences, truncate=True), tmp_path / "run")
    texts = [pair.source for pair in run.built.train]
    full = run.tokenizer.encode_sources(texts)
    cut = encode_sources(run.experiment, run.tokenizer, texts)
    assert len(full[2]) > 8
    assert cut[2].tolist() == [*full[2][:7].tolist(), END_ID]
    for index in (0, 1, 3):
        assert cut[index].tolist() == full[index].tolist()
    (targets,) = (bucket.target for bucket in run.buckets)
    assert targets.shape[1] == 9
    assert all((row == END_ID).sum() == 1 for row in targets)


def test_training_lowers_the_loss_and_validates_with_bleu(trained):
    assert_has_examples(trained)
    lines = [line for line in read_metrics(trained.dir.metrics) if line["split"] == "validation"]
    assert lines[-1]["loss"] < lines[0]["loss"]
    for name in ("bleu", "exact_match"):  # of two of the sentences, for `tlite compare`
        scores = read_example_scores(trained.dir.path).sums[name]
        np.testing.assert_allclose(scores[:, :2].mean(1), lines[-1][f"{name}_replicas"], atol=1e-9)
        assert np.isnan(scores[:, 2:]).all()
    assert {path.name for path in trained.dir.plots.iterdir()} >= {"loss.png", "bleu.png"}
    (sample,) = trained.dir.samples.iterdir()
    pairs = {
        text for pair in trained.built.validation for text in (pair.source, f"({pair.target})")
    }
    assert pairs <= {*sample.read_text(encoding="utf-8").splitlines()}


def test_an_interrupted_run_resumes_bit_for_bit(trained, tmp_path):
    """And the average is the mean of the last checkpoints."""
    folder = interrupted(trained, tmp_path / "run", 3, pretraining=True).dir.path
    assert 3 <= read_metrics(folder / "metrics.jsonl")[-1]["step"] < STEPS
    resumed = resume(folder)
    assert_same_state(resumed, trained)
    for checkpoint in ("best", "average"):
        (actual, step), (expected, at) = (r.parameters(checkpoint) for r in (resumed, trained))
        assert step == at
        jax.tree.map(np.testing.assert_array_equal, actual, expected)
    checkpoints = [trained.parameters(str(step))[0] for step in (2, 4, 6)]
    mean = jax.tree.map(lambda *arrays: np.mean(np.float64(arrays), axis=0), *checkpoints)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), actual, mean)
    assert max(np.abs(mean[name] - checkpoints[-1][name]).max() for name in mean) > 1e-3


def test_an_extended_run_equals_one_that_had_all_its_steps(trained, tmp_path):
    start_like(trained, tmp_path / "run", steps=4).train()
    extended = Run.open(tmp_path / "run", steps=STEPS)
    extended.train(report=False)
    assert_same_state(extended, trained)


def test_evaluation_prints_loss_bleu_and_matches(trained, capsys):
    capsys.readouterr()
    trained.evaluate(checkpoint="last")
    line = read_metrics(trained.dir.metrics)[-1]
    assert f"validation loss {line['loss']:.4f}, 3 sentences\n" in capsys.readouterr().out
    trained.evaluate(checkpoint="average", split="test")
    out = capsys.readouterr().out
    assert f"average checkpoint: step {STEPS}\n" in out
    assert re.search(r"test loss \d\.\d{4}, 3 sentences\n", out)
    for name in ("greedy", "beam 2, length penalty 0.6"):
        for case in ("lc", "mixed"):
            assert re.search(rf"{name}: BLEU \d+\.\d\d \(SD \d+\.\d\d\)  \S*case:{case}\S*\n", out)
        assert re.search(rf"{name}: exact match \d+\.\d \(SD \d+\.\d\) %\n", out)
    for pair in trained.experiment.data.pairs("test"):
        assert f"\n  {pair.source}\n" in out
        assert f"\n  ({pair.target})\n" in out
    # A model that is loaded without its data translates the same.
    alone, _ = load_run(trained.dir, "last", 1)
    among = trained.trainer.models(trained.parameters("last")[0])[1]
    translations = (trained.translations(m, ["a b c d", "d c b a"], beam=2) for m in (alone, among))
    assert next(translations) == next(translations)


def test_references_have_the_case_and_form_of_outputs(sentences, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.de").write_text(" A\u0301 B\nB A\u0308\nA b C d\nC\n")  # decomposed
    lower = {"tokenizer": PairSubwords(num_subwords=20, lowercase=True), "truncate": True}
    run = Run.create(varied(sentences, **lower), tmp_path / "r")
    pairs = run.built.validation
    form = lambda text: unicodedata.normalize("NFC", text).lower().lstrip()  # noqa: E731
    right = {pair.source: form(pair.target) for pair in pairs}
    monkeypatch.setattr(run, "translations", lambda _, texts, **__: [right[t] for t in texts])
    parameters = run.trainer.init().parameters
    assert run.extra_metrics(parameters, {})["exact_match"].tolist() == [1, 1]
    run.print_scores(run.built.validation, parameters)
    out = capsys.readouterr().out
    assert "greedy: BLEU 100.00 (SD 0.00)" in out
    assert "case:lc" in out
    assert "case:mixed" not in out  # it would be 0
