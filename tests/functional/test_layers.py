"""Layers equal their formulas; dropout has its rate; 16-bit inputs are reduced in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    feed_forward_parameters,
    linear_parameters,
    norm_parameters,
    normal,
    over_batch,
)
from tests.helpers.reference_models import ACTIVATIONS
from tlite import functional as F
from tlite.baselines import parabolic_average
from tlite.models.classifier import attention_pool, mean_pool

T, D = 3, 4
dropout = jax.jit(F.dropout, static_argnums=2)
NORMS = [("layer_norm", {}), ("rms_norm", {}), ("rms_norm", {"offset": 1.0})]
FEED_FORWARD = [("relu", False, True), ("tanh", False, False)]  # activation, gated, bias
FEED_FORWARD += [("silu", True, True), ("squared_relu", True, False)]
LAYERS = [  # name of a function, keyword arguments, parameters
    *(("linear", {}, linear_parameters(D, 5, bias)) for bias in (True, False)),
    *(("unembed", {}, linear_parameters(D, 5, bias)) for bias in (True, False)),
    ("soft_cap", {}, normal(D, seed=3)),
    ("layer_norm", {}, norm_parameters(D, bias=False)),
    *(
        (name, kwargs | {"eps": eps}, norm_parameters(D, bias=name == "layer_norm"))
        for name, kwargs in NORMS
        for eps in (1e-5, 0.1)
    ),
    *(
        ("feed_forward", {"activation": name}, feed_forward_parameters(D, 6, bias, gated=gated))
        for name, gated, bias in FEED_FORWARD
    ),
]


def apply(module, name, kwargs, params, x):
    """Call a function of `functional` or `reference`, whose activations have the same names."""
    if name == "unembed":
        return module.unembed(params.kernel.T, x, params.bias)
    if name == "soft_cap":
        return module.soft_cap(x * params, 0.7)
    if "activation" in kwargs:
        activations = F.ACTIVATIONS if module is F else ACTIVATIONS
        kwargs = {"activation": activations[kwargs["activation"]]}
    return getattr(module, name)(params, x, **kwargs)


@pytest.mark.parametrize(("name", "kwargs", "params"), LAYERS)
def test_layers_equal_their_formulas(name, kwargs, params):
    layer = jax.jit(functools.partial(apply, F, name, kwargs))
    for batch in ((), (2, 3)):
        x = normal(*batch, T, D)
        formula = functools.partial(apply, reference, name, kwargs)
        assert_close(layer(params, x), over_batch(batch, formula, x, params=params))


def test_required_keywords_are_bound_or_an_error():
    def some(x, *, a, b=2):
        return x, a, b

    bind = F.bind_supported_kwargs
    assert bind(some, {"b": 5, "c": None}, a=1, d=3)(0) == (0, 1, 5)
    assert bind(functools.partial(some, a=7), c=5)(0) == (0, 7, 2)
    assert bind(lambda x, **settings: settings, {"a": 1}, b=2)(0) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="'c'"):
        bind(some, {"a": 1, "c": 3})


@pytest.mark.parametrize(("name", "kwargs"), NORMS)
def test_norms_of_equal_numbers_are_finite(name, kwargs):
    params = norm_parameters(D, bias=False)
    norm = jax.jit(jax.value_and_grad(lambda x: apply(F, name, kwargs, params, x).sum()))
    for number in (0.0, 1e6):
        assert_all_finite(norm(np.full(D, number, np.float32)))


N = 20_000


@pytest.mark.parametrize("key", [jax.random.key(0), None])
def test_dropout_rates_are_0_for_the_identity_to_below_1(key):
    x = normal(T, D)
    assert F.dropout(key, x, 0.0) is x
    for rate in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"not {rate}"):
            F.dropout(key, x, rate)


DROPPING = {
    "dropout": lambda rng: F.dropout(rng, normal(2, D), 0.5),
    "feed-forward": lambda rng: F.feed_forward(
        feed_forward_parameters(D, 6), normal(T, D), dropout_rate=0.5, rng=rng
    ),
    "attention": lambda rng: F.scaled_dot_product_attention(
        *[normal(T, D)] * 3, dropout_rate=0.5, rng=rng
    ),
}


@pytest.mark.parametrize("drop", DROPPING.values(), ids=DROPPING)
def test_dropout_needs_a_typed_key(drop, without_type_checks):
    with pytest.raises(ValueError, match=r"0\.5"):
        drop(None)
    with pytest.raises(TypeError, match="uint32"):
        drop(jax.random.PRNGKey(0))
    drop(jax.random.key(0))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_dropout_zeroes_its_rate_and_scales_the_others(rate):
    dropped = np.asarray(dropout(jax.random.key(0), np.ones(N, np.float32), rate))
    assert abs((dropped == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / N)
    assert_close(dropped[dropped != 0], 1 / (1 - rate))


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_dropout_of_a_sample_is_independent_of_its_batch(batch):
    keys = jax.jit(jax.random.split, static_argnums=1)(jax.random.key(0), batch)
    x = np.asarray(normal(*batch, T, D))
    together = np.asarray(dropout(keys, x, 0.5))
    for i in np.ndindex(*batch):
        assert_same(together[i], dropout(keys[i], x[i], 0.5))
    assert_same(dropout(keys[::-1], x[::-1], 0.5), together[::-1])
    mapped = jax.jit(jax.vmap(lambda rng, x: F.dropout(rng, x, 0.5)))
    assert_same(mapped(keys, x), together)
    assert (together[0] != together[1]).any()


def test_feed_forward_dropout_applies_to_its_hidden_units():
    params, x, key = feed_forward_parameters(50, 50), normal(T, 50), jax.random.key(0)
    without_output = params._replace(output=F.LinearParameters(np.eye(50, dtype=np.float32)))
    feed_forward = jax.jit(functools.partial(F.feed_forward, dropout_rate=0.5, rng=key))
    hidden = F.feed_forward(without_output, x)
    dropped = feed_forward(without_output, x)
    assert_close(dropped, dropout(key, hidden, 0.5))
    assert 0.2 < (np.asarray(dropped) == 0)[np.asarray(hidden) > 0].mean() < 0.8
    assert_close(feed_forward(params, x), F.linear(params.output, dropped))


WIDE = 4_097  # not a bfloat16 number
REDUCING = {
    "layer norm": lambda x: F.layer_norm(norm_parameters(WIDE), x),
    "rms norm": lambda x: F.rms_norm(norm_parameters(WIDE, bias=False), x),
    "mean pool": lambda x: mean_pool(x.T, jnp.ones(WIDE, bool)),
    "attention pool": lambda x: attention_pool(linear_parameters(T, 1), x.T, jnp.ones(WIDE, bool)),
    "parabolic average": lambda x: parabolic_average(jax.nn.sigmoid(x), jnp.ones((T, WIDE), bool)),
    "attention": lambda x: F.scaled_dot_product_attention(x[:1, :T], x.T, x.T)[0],
    "mixed attention": lambda x: F.mixed_attention(x[:1, :T], x.T, x.T)[0],
    "attention by rows": lambda x: F.chunked_causal_attention(F.scaled_dot_product_attention, 2)(
        x[:, :T], x[:, :T], x[:, :T], F.causal_mask(T), is_causal=True
    )[0],
}


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", REDUCING)
def test_16_bit_inputs_are_reduced_in_float32(name, dtype):
    size = 1 if "average" in name else 30 if "attention" in name else 300
    reduce, x = REDUCING[name], (size * normal(T, WIDE)).astype(dtype)
    result, expected = reduce(x), np.asarray(reduce(x.astype(jnp.float32)))
    assert result.dtype == dtype
    rounding = float(jnp.finfo(dtype).eps) * (4 if "attention" in name else 1)
    assert_close(result.astype(jnp.float32), expected, rounding * max(1, abs(expected).max()))
    gradient = jax.grad(lambda x: reduce(x).astype(jnp.float32).sum())(x)
    assert gradient.dtype == dtype
    assert_all_finite(gradient.astype(jnp.float32))
