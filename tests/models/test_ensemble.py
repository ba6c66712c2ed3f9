"""Ensembles: the mean of the replicas' probabilities, in full, with caches and in a search."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same, integers, normal
from tests.helpers.models import Shifted, call, extend
from tlite import models as M
from tlite.decoding.translate import translate
from tlite.runs.run import finite_models

N, V, T = 3, 7, 6
SIZES = {"vocabulary_size": V, "context": T, "width": 8, "num_heads": 2, "num_blocks": 1}
CONFIGS = {
    "generator": M.GeneratorConfig(**SIZES),
    "classifier": M.ClassifierConfig(num_classes=4, **SIZES),
    "logistic": M.LogisticConfig(vocabulary_size=V, num_classes=3, context=T),
    "translator": M.Seq2SeqConfig(source_vocabulary_size=V, **SIZES),
}
TOKENS = jax.device_put(1 + np.asarray(integers(V - 1, 2, T)))  # no padding
END = 3


def replicas(config, number=N):
    """Return models far from each other, and from uniform probabilities."""
    shapes = jax.eval_shape(lambda: M.make_model(config, rng=jax.random.key(0)))
    arrays, structure = jax.tree.flatten(shapes)
    return [
        jax.tree.unflatten(
            structure,
            [normal(*a.shape, seed=100 * replica + i) for i, a in enumerate(arrays)],
        )
        for replica in range(number)
    ]


def stacked(models):
    return M.Ensemble(jax.tree.map(lambda *arrays: jax.device_put(np.stack(arrays)), *models))


def inputs(kind):
    return (TOKENS, TOKENS[:, :4]) if kind == "translator" else (TOKENS,)


def softmax(logits):
    """Return the softmax in float64."""
    powers = np.exp(np.asarray(logits, np.float64))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", CONFIGS)
def test_probabilities_are_the_mean_of_the_replicas(kind):
    models = replicas(CONFIGS[kind])
    probabilities = np.stack([softmax(call(model, *inputs(kind))) for model in models])
    assert probabilities.std(0).max() > 0.1
    assert len(stacked(models)) == N
    assert_same(call(stacked(models[:1]), *inputs(kind)), call(models[0], *inputs(kind)))
    logits = call(stacked(models), *inputs(kind))
    np.testing.assert_allclose(np.exp(np.asarray(logits)), probabilities.mean(0), atol=2e-6)


def test_models_that_have_diverged_are_left_out(capsys):
    arrays = {"a": np.ones((3, 2)), "b": np.array([1, np.nan, 2])}
    kept = finite_models(arrays)
    assert {name: a.tolist() for name, a in kept.items()} == {"a": [[1, 1]] * 2, "b": [1, 2]}
    assert "diverged models: 1 of 3" in capsys.readouterr().err
    nothing = {"a": np.full((2, 1), np.inf)}
    assert finite_models(nothing) is nothing


def test_logit_of_minus_infinity_is_finite_in_the_mean():
    """One replica predicts class 0 alone (other logits are -inf), the other all classes equally."""
    model = replicas(CONFIGS["logistic"], 1)[0]
    sure, flat = (jax.tree.map(jnp.zeros_like, model) for _ in range(2))
    sure.bias[...] = jnp.array([0.0, -jnp.inf, -jnp.inf])
    logits = stacked([sure, flat])(TOKENS)
    np.testing.assert_allclose(np.exp(logits), [[2 / 3, 1 / 6, 1 / 6]] * 2, atol=1e-6)


# Cached decoding


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("generator", {}), ("generator", {"feed_forward": Shifted()}), ("translator", {})],
    ids=str,
)
def test_cached_logits_equal_those_of_a_full_pass(kind, fields):
    ensemble = stacked(replicas(dataclasses.replace(CONFIGS[kind], num_blocks=2, **fields)))
    (*source, target), caches = inputs(kind), ensemble.empty_caches(len(TOKENS))
    expected = call(ensemble, *source, target)
    names = {"memories": ensemble.memories(*source)} if source else {}
    for start, end in ((0, 3), (3, T)):
        chunk, names["start"] = target[:, start:end], jnp.int32(start)
        logits, caches = extend(ensemble, chunk, caches=caches, **names)
        assert_close(logits, expected[:, start:end], 1e-4)


def test_beam_search_of_equal_replicas_equals_that_of_one():
    (model,) = replicas(CONFIGS["translator"], 1)
    sources = [np.append(np.asarray(row), END) for row in TOKENS[:, : T - 1]]
    models = model, stacked([model] * N)
    one, many = (translate(each, sources, max_length=5, beam=3) for each in models)
    for expected, hypotheses in zip(one, many, strict=True):
        assert [t.tolist() for t, _ in hypotheses] == [t.tolist() for t, _ in expected]
        assert_close([score for _, score in hypotheses], [score for _, score in expected], 1e-4)
