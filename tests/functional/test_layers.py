"""Layers: equal to their formulas; dropout drops what it says."""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_close,
    assert_same,
    exact,
    feed_forward_parameters,
    integers,
    linear_parameters,
    norm_parameters,
    normal,
    over_batch,
)
from tlite import functional as F

T, D = 3, 4
LAYERS = {
    "linear": (F.linear, reference.linear, linear_parameters(D, 5)),
    "linear without bias": (F.linear, reference.linear, linear_parameters(D, 5, bias=False)),
    "layer norm": (F.layer_norm, reference.layer_norm, norm_parameters(D)),
    "layer norm without bias": (F.layer_norm, reference.layer_norm, norm_parameters(D, bias=False)),
    "rms norm": (F.rms_norm, reference.rms_norm, norm_parameters(D, bias=False)),
    "zero-centred rms norm": (
        F.zero_centred_rms_norm,
        reference.zero_centred_rms_norm,
        norm_parameters(D, bias=False),
    ),
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
    "feed-forward": (F.feed_forward, reference.feed_forward, feed_forward_parameters(D, 6)),
    "feed-forward with tanh": (
        lambda params, x: F.feed_forward(params, x, jnp.tanh),
        lambda params, x: reference.feed_forward(params, x, np.tanh),
        feed_forward_parameters(D, 6, bias=False),
    ),
    "gated feed-forward": (
        lambda params, x: F.feed_forward(params, x, jax.nn.silu),
        lambda params, x: reference.feed_forward(params, x, reference.silu),
        feed_forward_parameters(D, 6, gated=True),
    ),
    "gated feed-forward with squared relu": (
        lambda params, x: F.feed_forward(params, x, F.squared_relu),
        lambda params, x: reference.feed_forward(params, x, reference.squared_relu),
        feed_forward_parameters(D, 6, bias=False, gated=True),
    ),
    "soft cap": (
        lambda params, x: F.soft_cap(x * params, 0.7),
        lambda params, x: reference.soft_cap(x * params, 0.7),
        normal(D, seed=3),
    ),
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


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm, F.zero_centred_rms_norm])
def test_norms_of_equal_numbers_are_finite(norm):
    params = norm_parameters(D, bias=False)
    value_and_gradient = jax.jit(jax.value_and_grad(lambda x: norm(params, x).sum()))
    for x in (np.zeros(D, np.float32), np.full(D, 1e6, np.float32)):
        value, gradient = value_and_gradient(x)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_eps_of_norms_is_theirs_to_choose():
    x = 0.01 * np.asarray(normal(T, D))
    for name in ("layer_norm", "rms_norm", "zero_centred_rms_norm"):
        norm, formula = getattr(F, name), getattr(reference, name)
        params = norm_parameters(D)
        assert_close(
            jax.jit(norm, static_argnums=2)(params, x, 0.1), formula(*exact((params, x)), 0.1)
        )


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_embedding_looks_up_rows(shape):
    table, tokens = normal(5, D), integers(5, *shape)
    assert_same(jax.jit(F.embed)(table, tokens), np.asarray(table)[np.asarray(tokens)])


def test_a_zero_centred_norm_is_an_rms_norm_of_one_more():
    x, scale = normal(T, D), np.asarray(normal(D, seed=1))
    expected = jax.jit(F.rms_norm)(F.NormParameters(1 + scale), x)
    assert_same(jax.jit(F.zero_centred_rms_norm)(F.NormParameters(scale), x), expected)


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


def test_an_activation_with_parameters_of_its_own_gets_them_first():
    class Layer(NamedTuple):
        hidden: F.LinearParameters
        output: F.LinearParameters
        own: Any

    params, x = feed_forward_parameters(D, 6), normal(T, D)
    layer = Layer(params.hidden, params.output, SimpleNamespace(slope=0.3))
    output = jax.jit(lambda x: F.feed_forward(layer, x, lambda own, x: own.slope * x))(x)
    assert_close(output, jax.jit(lambda x: F.feed_forward(params, x, lambda x: 0.3 * x))(x))


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


def test_dropout_under_vmap_and_jit_is_dropout_with_many_keys():
    keys, x = jax.random.split(jax.random.key(0), 3), normal(3, T, D)
    drop = jax.jit(jax.vmap(lambda key, x: F.dropout(key, x, 0.5)))
    assert_same(drop(keys, x), dropout(keys, x, 0.5))


def test_gradients_of_dropout_are_its_scale_where_it_keeps():
    key, x = jax.random.key(0), np.ones(50, np.float32)
    gradient = jax.jit(jax.grad(lambda x: F.dropout(key, x, 0.2).sum()))(x)
    assert_same(gradient, dropout(key, x, 0.2))


def test_dropout_in_a_feed_forward_falls_on_what_its_hidden_layer_gives():
    params, x, key = feed_forward_parameters(50, 50), normal(T, 50), jax.random.key(0)
    shown = params._replace(output=F.LinearParameters(np.eye(50, dtype=np.float32)))
    dropping = jax.jit(functools.partial(F.feed_forward, dropout_rate=0.5, key=key))
    hidden = feed_forward(shown, x)
    dropped = dropping(shown, x)
    assert_close(dropped, dropout(key, hidden, 0.5))
    assert 0.2 < (np.asarray(dropped) == 0)[np.asarray(hidden) > 0].mean() < 0.8
    assert_close(dropping(params, x), linear(params.output, dropped))


@pytest.mark.parametrize("settings", [{"dropout_rate": 0.5}, {"key": jax.random.key(0)}])
def test_a_feed_forward_without_key_or_rate_drops_nothing(settings):
    params, x = feed_forward_parameters(D, 6), normal(T, D)
    with_settings = jax.jit(functools.partial(F.feed_forward, **settings))
    assert_same(with_settings(params, x), feed_forward(params, x))


def test_a_feed_forward_takes_a_key_for_each_sample():
    params, x = feed_forward_parameters(D, 6), normal(3, T, D)
    keys = jax.random.split(jax.random.key(0), 3)

    def feed(x, key):
        return F.feed_forward(params, x, dropout_rate=0.5, key=key)

    assert_close(jax.jit(jax.vmap(feed))(x, keys), jax.jit(feed)(x, keys))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_dropout_rate_outside_0_to_1_is_named(rate):
    with pytest.raises(ValueError, match=f"not {rate}"):
        F.dropout(None, normal(T, D), rate)
