"""`--replica all`: the mean of the replicas' probabilities in each command, and single ones."""

import json
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite as package
from tlite.runs import Run

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

NAME = "the ensemble of all 2 replicas"
TEXTS = "'The sound is superb.' 'The price is awful. The lamp is weak.'"


@pytest.fixture
def trained(classifier, generator, translator):
    """A run of each kind."""
    return SimpleNamespace(
        classifier=classifier.run, generator=generator.run, translator=translator.run
    )


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(Run, "save_plots", lambda *_: None)


def probabilities(out):
    return np.array([[*json.loads(line)["probabilities"].values()] for line in out.splitlines()])


def test_a_text_has_the_mean_of_the_replicas_probabilities(works):
    for checkpoint in ("best", "average"):
        line = (
            f"classify {{classifier}} {TEXTS} --format jsonl --checkpoint {checkpoint} --replica "
        )
        first, second, mean = (
            probabilities(works(line + replica)) for replica in ("0", "1", "all")
        )
        assert np.abs(first - second).max() > 1e-3
        np.testing.assert_allclose(mean, (first + second) / 2, atol=2e-6)


def test_a_classifiers_ensemble_is_scored_beside_its_replicas(works, trained):
    pytest.importorskip("sklearn")
    out = works("evaluate {classifier} --replica all")
    run = Run.open(trained.classifier)
    examples = [e for e in run.data.validation if e.label is not None]
    by_replica, _ = run.predict(examples)
    labels = np.array([e.label for e in examples])
    chosen = by_replica[:, np.arange(len(labels)), labels].astype(np.float64)
    right = 100 * (by_replica.mean(0).argmax(-1) == labels).mean()
    losses = -np.log(chosen).mean(1)
    expected = (
        f"{NAME}: accuracy {right:.1f} %, loss {-np.log(chosen.mean(0)).mean():.4f} "
        f"(single replicas: {losses.mean():.4f} (SD {losses.std(ddof=1):.4f}))\n"
    )
    assert expected in out
    assert "scores by class (the ensemble)" in out
    single = works("evaluate {classifier}").splitlines()
    assert single[0] in out  # the replicas' own accuracy
    assert NAME not in "".join(single)


def test_a_generators_ensemble_is_scored_on_every_token(works, trained):
    """By hand, in float64: -log of the mean of the replicas' probabilities of each next token."""
    single, message, interval = works("evaluate {generator} --replica all").splitlines()
    assert works("evaluate {generator}") == f"{single}\n{interval}\n"
    run = Run.open(trained.generator)
    inputs, targets, weights = run.data.validation.windows()
    chosen = []
    for replica in range(2):
        model, _ = package.load(trained.generator, replica=replica)
        logits = np.asarray(jax.jit(lambda model: model(jnp.asarray(inputs)))(model), np.float64)
        powers = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        chosen.append(np.take_along_axis(powers, targets[..., None], -1)[..., 0])
    losses = -np.log(np.mean(chosen, axis=0))
    loss = (weights * losses).sum() / weights.sum()
    bits = loss * run.data.validation.targets_per_byte / np.log(2)
    match = re.fullmatch(
        rf"{NAME}: loss (\S+) nats per character, perplexity (\S+), (\S+) bits per byte, .*",
        message,
    )
    values = [float(value) for value in match.groups()]
    np.testing.assert_allclose(values, [loss, np.exp(loss), bits], atol=1e-3)
    by_replica = [-(weights * np.log(p)).sum() / weights.sum() for p in chosen]
    assert loss < np.mean(by_replica)  # -log is convex


def test_translations_and_bleu_of_an_ensemble(works):
    out = works("evaluate {translator} --replica all")
    for name in ("loss", "greedy: BLEU", "greedy: exact match", "beam 3, length penalty"):
        assert len(re.findall(rf"{NAME}(?:, |: ){name}", out)) >= 1
    assert re.search(r"^greedy: BLEU \S+ \(SD ", out, re.MULTILINE)
    lines = works("translate {translator} 'a b c' 'd c' --replica all").splitlines()
    assert len(lines) == 2
    best = works("translate {translator} 'a b c' --replica all --n-best 2").splitlines()
    assert best[0].split("\t")[2] == lines[0]


def test_a_pretrained_folder_has_no_ensemble(fails, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    message = fails("translate {folder} a --replica all", folder=tmp_path)
    assert "this folder has one model" in message
    (tmp_path / "a.txt").write_text("text")
    line = "evaluate {folder} --replica all --path a.txt"
    assert "this folder has one model" in fails(line, folder=tmp_path)
