"""Layers: equal to their formulas; dropout drops what it says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_close,
    assert_same,
    feed_forward_parameters,
    integers,
    linear_parameters,
    norm_parameters,
    normal,
    over_batch,
)
from tlite import functional as F

T, D = 3, 4


def given(layer, settings):
    """The layer as a function of parameters and x."""
    return lambda params, x: layer(params, x, *settings)


NORMS = {  # and whether there may be a bias
    "layer norm": (F.layer_norm, reference.layer_norm, True),
    "rms norm": (F.rms_norm, reference.rms_norm, False),
    "zero-centred rms norm": (
        functools.partial(F.rms_norm, offset=1.0),
        functools.partial(reference.rms_norm, offset=1.0),
        False,
    ),
}
LAYERS = {
    "linear": (F.linear, reference.linear, linear_parameters(D, 5)),
    "linear without bias": (F.linear, reference.linear, linear_parameters(D, 5, bias=False)),
    "layer norm without bias": (F.layer_norm, reference.layer_norm, norm_parameters(D, bias=False)),
    "output layer": (
        lambda params, x: F.unembed(params.kernel.T, x, params.bias),
        lambda params, x: reference.unembed(params.kernel.T, x, params.bias),
        linear_parameters(D, 5),
    ),
    "output layer without bias": (
        lambda params, x: F.unembed(params.kernel.T, x),
        lambda params, x: reference.unembed(params.kernel.T, x),
        linear_parameters(D, 5, bias=False),
    ),
    "soft cap": (
        lambda params, x: F.soft_cap(x * params, 0.7),
        lambda params, x: reference.soft_cap(x * params, 0.7),
        normal(D, seed=3),
    ),
}
for eps in ((), (0.1,)):
    LAYERS |= {
        f"{name} {eps}": (given(norm, eps), given(formula, eps), norm_parameters(D, bias=bias))
        for name, (norm, formula, bias) in NORMS.items()
    }
ACTIVATIONS = {  # with biases, and a gate
    "feed-forward": ((), (), True, False),
    "feed-forward with tanh": ((jnp.tanh,), (np.tanh,), False, False),
    "gated": ((jax.nn.silu,), (reference.silu,), True, True),
    "gated with squared relu": ((F.squared_relu,), (reference.squared_relu,), False, True),
}
LAYERS |= {
    name: (
        given(F.feed_forward, ours),
        given(reference.feed_forward, theirs),
        feed_forward_parameters(D, 6, bias=bias, gated=gated),
    )
    for name, (ours, theirs, bias, gated) in ACTIVATIONS.items()
}
LAYERS = {
    name: (jax.jit(layer), formula, params) for name, (layer, formula, params) in LAYERS.items()
}
each_layer = pytest.mark.parametrize(("layer", "formula", "params"), LAYERS.values(), ids=LAYERS)
linear, feed_forward = jax.jit(F.linear), jax.jit(F.feed_forward)
soft_cap = jax.jit(F.soft_cap, static_argnums=1)
dropout = jax.jit(F.dropout, static_argnums=2)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@each_layer
def test_layers_are_their_formulas(layer, formula, params, batch):
    x = normal(*batch, T, D)
    assert_close(layer(params, x), over_batch(batch, formula, x, params=params))


@each_layer
def test_layers_treat_every_position_alike(layer, formula, params):
    x = normal(T, D)
    assert_close(jax.jit(jax.vmap(layer, in_axes=(None, 0)))(params, x), layer(params, x))


@pytest.mark.parametrize("norm", [norm for norm, *_ in NORMS.values()])
def test_norms_of_equal_numbers_are_finite(norm):
    params = norm_parameters(D, bias=False)
    value_and_gradient = jax.jit(jax.value_and_grad(lambda x: norm(params, x).sum()))
    for x in (np.zeros(D, np.float32), np.full(D, 1e6, np.float32)):
        value, gradient = value_and_gradient(x)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_embedding_looks_up_rows(shape):
    table, tokens = normal(5, D), integers(5, *shape)
    assert_same(jax.jit(F.embed)(table, tokens), np.asarray(table)[np.asarray(tokens)])


def test_a_soft_cap_bounds_keeps_what_is_small_and_the_order():
    x = np.linspace(-200, 200, 41, dtype=np.float32)
    capped = np.asarray(soft_cap(x, 30.0))
    assert np.abs(capped).max() <= 30
    assert (np.diff(capped[10:-10]) > 0).all()
    assert_close(soft_cap(0.01 * x, 30.0), 0.01 * x, 1e-2)
    assert_close(soft_cap(x, 1e5), x, 1e-4)


def test_a_gate_is_what_the_activation_is_of_and_hidden_is_what_was_multiplied():
    params, x = feed_forward_parameters(D, 6, gated=True), normal(T, D)

    @jax.jit
    def results():
        seen = {}
        F.feed_forward(params, x, jnp.tanh, observe=lambda name, v: seen.setdefault(name, v))
        return seen["hidden"], jnp.tanh(F.linear(params.gate, x)) * F.linear(params.hidden, x)

    assert_same(*results())


# Dropout

N = 20_000
RATES = [0.01, 0.1, 0.5, 0.9]


@pytest.mark.parametrize(("key", "rate"), [(None, 0.5), (jax.random.key(0), 0.0), (None, 0.0)])
def test_dropout_without_key_or_rate_is_the_identity(key, rate):
    x = normal(T, D)
    assert F.dropout(key, x, rate) is x


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", RATES)
def test_dropout_zeroes_a_fraction_near_its_rate_and_scales_the_rest(rate, seed):
    dropped = np.asarray(dropout(jax.random.key(seed), np.ones(N, np.float32), rate))
    assert abs((dropped == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / N)
    assert_close(dropped[dropped != 0], 1 / (1 - rate))
    assert abs(dropped.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / N)


def test_dropout_repeats_with_its_key_and_differs_without():
    x = np.ones(100, np.float32)
    first, second = jax.random.split(jax.random.key(0))
    of_first = np.asarray(dropout(first, x, 0.5))
    assert_same(dropout(first, x, 0.5), of_first)
    assert (of_first != dropout(second, x, 0.5)).any()


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_the_noise_of_a_sample_does_not_depend_on_its_batch(batch):
    keys = jax.jit(jax.random.split, static_argnums=1)(jax.random.key(0), batch)
    x = np.asarray(normal(*batch, T, D))
    together = np.asarray(dropout(keys, x, 0.5))
    for i in np.ndindex(*batch):
        assert_same(together[i], dropout(keys[i], x[i], 0.5))
    assert_same(dropout(keys[::-1], x[::-1], 0.5), together[::-1])
    mapped = jax.jit(jax.vmap(lambda rng, x: F.dropout(rng, x, 0.5)))
    assert_same(mapped(keys, x), together)


def test_gradients_of_dropout_are_its_scale_where_it_keeps():
    key, x = jax.random.key(0), np.ones(50, np.float32)
    gradient = jax.jit(jax.grad(lambda x: F.dropout(key, x, 0.2).sum()))(x)
    assert_same(gradient, dropout(key, x, 0.2))


def test_dropout_in_a_feed_forward_falls_on_what_its_hidden_layer_gives():
    params, x, key = feed_forward_parameters(50, 50), normal(T, 50), jax.random.key(0)
    shown = params._replace(output=F.LinearParameters(np.eye(50, dtype=np.float32)))
    dropping = jax.jit(functools.partial(F.feed_forward, dropout_rate=0.5, rng=key))
    hidden = feed_forward(shown, x)
    dropped = dropping(shown, x)
    assert_close(dropped, dropout(key, hidden, 0.5))
    assert 0.2 < (np.asarray(dropped) == 0)[np.asarray(hidden) > 0].mean() < 0.8
    assert_close(dropping(params, x), linear(params.output, dropped))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_dropout_rate_outside_0_to_1_is_named(rate):
    with pytest.raises(ValueError, match=f"not {rate}"):
        F.dropout(None, normal(T, D), rate)
