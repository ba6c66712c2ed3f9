"""Blocks equal their formulas; every argument of attention reaches it or is refused."""

import functools
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_close,
    assert_gradients_are_causal,
    attention_parameters,
    block_parameters,
    normal,
    over_batch,
    some_mask,
)
from tlite import functional as F
from tlite.models import (
    Attention,
    BlockInputs,
    GeneratorConfig,
    Norm,
    TransformerConfig,
    attend,
    block,
    make_model,
)

T, D, H, M = 3, 4, 2, 5  # M: length of the encoder's output
NORMS = {"layer": reference.layer_norm, "rms": reference.rms_norm}
each_model = pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
each_order = pytest.mark.parametrize("order", ["post_norm", "pre_norm"])


def config(**components):
    return TransformerConfig(width=D, num_heads=H, dropout=0.0, **components)


@functools.partial(jax.jit, static_argnames=("config", "is_causal", "window"))
def run(params, x, *, config, is_causal=False, window=0, **arrays):
    inputs = BlockInputs(**arrays, is_causal=is_causal, window=window)
    return block(params, x, inputs, config=config)[0]


def draw_memory(*batch):
    return {"memory": normal(*batch, M, D, seed=1)}


@pytest.mark.parametrize(("batch", "masked"), [((), False), ((2, 3), True)], ids=["open", "masked"])
@pytest.mark.parametrize("norm", NORMS)
@each_order
@each_model
def test_blocks_equal_their_formula(decoder, order, norm, batch, masked):
    params = block_parameters(D, 6, norm == "layer", decoder=decoder)
    arrays = draw_memory(*batch) if decoder else {}
    if masked:
        arrays["mask"] = some_mask(*batch, H, T, T)
        arrays |= {"memory_mask": some_mask(*batch, H, T, M)} if decoder else {}

    def formula(params, x, *values):
        kwargs = {"memory": None} | dict(zip(arrays, values, strict=True))
        return reference.decoder_block(
            params, x, **kwargs, num_heads=H, norm=NORMS[norm], pre_norm=order == "pre_norm"
        )

    x = normal(*batch, T, D)
    expected = over_batch(batch, formula, x, *arrays.values(), params=params)
    actual = run(params, x, config=config(norm=norm, block=order), **arrays)
    assert_close(actual, expected, 2e-5)


def test_cross_attention_has_no_positions_of_the_decoder():
    """Rotary angles, their factor, bias and window are those of the decoder's tokens."""
    params, x, causal = block_parameters(D, 6, decoder=True), normal(T, D), F.causal_mask(T)
    positions = {"angles": normal(T, D // H // 2), "bias": normal(H, T, T, seed=2)}
    inputs = {**positions, **draw_memory(), "mask": jnp.stack([causal] * H)}

    def formula(params, x, angles, bias, memory, mask):
        kwargs = {"angles": angles, "bias": bias, "magnitude": 2.0}
        return reference.decoder_block(params, x, memory, mask, num_heads=H, **kwargs)

    expected = over_batch((), formula, x, *inputs.values(), params=params)
    inputs["attention_factor"] = jnp.array(2.0)
    assert_close(run(params, x, config=config(), **inputs), expected, 2e-5)

    calls = []

    def recorded(query, key, value, mask, *, bias=None, relative_positions, is_causal, window):
        calls.append((bias is None, relative_positions.any().item(), is_causal, window))
        return F.scaled_dot_product_attention(query, key, value, mask)

    at = {"positions": jnp.arange(T), "key_positions": jnp.arange(T)}
    inputs = BlockInputs(**inputs, **at, is_causal=True, window=T)
    block(params, x, inputs, config=config(attention=recorded))
    assert calls == [(False, True, True, T), (True, False, False, 0)]


@pytest.mark.parametrize(("norm", "rotary"), [("layer", False), ("rms", True)])
@each_order
@each_model
def test_gradients_reach_the_past_but_not_the_future(decoder, order, norm, rotary):
    params = block_parameters(D, 6, norm == "layer", decoder=decoder)
    inputs = {"mask": F.causal_mask(T)} | (draw_memory() if decoder else {})
    inputs |= {"angles": F.rotary_angles(T, D // H)} if rotary else {}
    run_on = functools.partial(run, params, config=config(norm=norm, block=order), **inputs)
    assert_gradients_are_causal(run_on, normal(T, D))


# Attention


def attend_without_cache(attention, params, x, **arrays):
    attention = attention if isinstance(attention, Attention) else Attention(attention)
    tap = arrays.pop("tap", F.no_tap)
    components = config(attention=attention, norm=Norm("rms"))
    return attend(attention, params, x, BlockInputs(**arrays), config=components, tap=tap)[0]


@pytest.mark.parametrize("num_kv_heads", [H, 1])
def test_attend_equals_multi_head_attention(num_kv_heads):
    """With norms of queries and keys, rotary angles and a mask."""
    params = attention_parameters(D, D, kv_dim=D // H * num_kv_heads, norm_dim=D // H)
    x, mask, angles = normal(2, T, D), some_mask(2, H, T, T), normal(T, D // H // 2)
    expected = F.multi_head_attention(
        params, x, x, x, mask, num_heads=H, angles=angles, norm=F.rms_norm
    )
    assert_close(attend_without_cache("exact", params, x, mask=mask, angles=angles), expected[0])


@pytest.mark.parametrize("name", ["scale", "softcap", "bias"])
def test_an_argument_of_attention_applies_or_is_an_error(name):
    params, x = attention_parameters(D, D), normal(T, D)
    options = {"scale": {"scale": 100.0}, "softcap": {"softcap": 1e-3}}.get(name, {})
    arrays = {"bias": normal(H, T, T)} if name == "bias" else {}
    plain = attend_without_cache("exact", params, x)
    assert (
        np.abs(attend_without_cache(Attention(**options), params, x, **arrays) - plain).max() > 1e-3
    )
    for function in ("mixed", "fused", lambda query, key, value, mask: (query, query)):
        with pytest.raises(ValueError, match=name):
            attend_without_cache(Attention(function, **options), params, x, **arrays)


def tilted(query, key, value, mask=None):
    """Attention without `tap` that reads the numbers of heads and queries."""
    assert query.shape[-3:-1] == key.shape[-3:-1] == (H, T)
    return F.scaled_dot_product_attention(query, key, value, mask, bias=jnp.asarray(TILT))


TILT = np.arange(1, H + 1)[:, None, None] * np.arange(T)[:, None] * np.arange(np.float32(T))


def test_weights_of_a_users_attention_can_be_seen_not_changed():
    params, x = attention_parameters(D, D, kv_dim=D // H), normal(2, T, D)
    attend_to = functools.partial(attend_without_cache, tilted, params, x)

    @jax.jit
    def output_and_weights():
        tapped = {}
        return attend_to(tap=tapped.setdefault), tapped["weights"]

    results = output_and_weights()
    formula = functools.partial(reference.multi_head_attention, num_heads=H, bias=TILT)
    assert_close(results, over_batch((2,), lambda p, x: formula(p, x, x, x), x, params=params))
    with pytest.raises(ValueError, match="accepts no `tap`"):
        attend_to(tap=lambda name, v: 2 * v if name == "weights" else v)
    assert_close(attend_to(tap=lambda name, v: jnp.array(v)), results[0])  # an equal copy


def test_four_frames_lead_to_the_softmax():
    """The reader's path: a call, the loop over blocks, the block and attention."""
    frames = []

    def tap(name, value):
        if name == "blocks.0.attention.weights":
            frames.extend(f.name for f in traceback.extract_stack() if "/tlite/" in f.filename)
        return value

    model = make_model(GeneratorConfig(vocabulary_size=5), rng=jax.random.key(0))
    model(jnp.arange(3), tap=tap)
    path = [name for name in frames if name not in ("scoped_tap", "<lambda>")]
    assert path == ["__call__", "run_blocks", "block", "attend", "scaled_dot_product_attention"]
