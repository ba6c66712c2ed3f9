"""Blocks are causal; every argument of attention reaches it or is refused."""

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
)
from tlite import functional as F
from tlite import models as M
from tlite.models import attend, block

T, D, H = 3, 4, 2


def config(**components):
    return M.TransformerConfig(width=D, num_heads=H, dropout=0.0, **components)


def test_cross_attention_has_no_positions_of_the_decoder():
    """Bias, relative positions and window belong to self-attention."""
    calls = []

    def recorded(query, key, value, mask, *, bias=None, relative_positions, is_causal, window):
        calls.append((bias is None, relative_positions.any().item(), is_causal, window))
        return F.scaled_dot_product_attention(query, key, value, mask)

    arrays = {"bias": normal(H, T, T), "memory": normal(5, D), "mask": F.causal_mask(T)}
    arrays |= {"positions": jnp.arange(T), "key_positions": jnp.arange(T)}
    inputs = M.BlockInputs(**arrays, is_causal=True, window=T)
    params = block_parameters(D, 6, decoder=True)
    block(params, normal(T, D), inputs, config=config(attention=recorded))
    assert calls == [(False, True, True, T), (True, False, False, 0)]


@pytest.mark.parametrize(
    ("order", "norm", "rotary"), [("post_norm", "layer", False), ("pre_norm", "rms", True)]
)
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_gradients_reach_the_past_but_not_the_future(decoder, order, norm, rotary):
    params = block_parameters(D, 6, norm == "layer", decoder=decoder)
    inputs = {"mask": F.causal_mask(T)} | ({"memory": normal(5, D)} if decoder else {})
    inputs |= {"angles": F.rotary_angles(T, D // H)} if rotary else {}
    settings = {"inputs": M.BlockInputs(**inputs), "config": config(norm=norm, block=order)}
    assert_gradients_are_causal(lambda x: block(params, x, **settings)[0], normal(T, D))


# Attention


def attend_without_cache(attention, params, x, **arrays):
    attention = attention if isinstance(attention, M.Attention) else M.Attention(attention)
    tap = arrays.pop("tap", F.no_tap)
    components = config(attention=attention, norm=M.Norm("rms"))
    return attend(attention, params, x, M.BlockInputs(**arrays), config=components, tap=tap)[0]


@pytest.mark.parametrize("name", ["scale", "softcap", "bias"])
def test_an_argument_of_attention_applies_or_is_an_error(name):
    params, x = attention_parameters(D, D), normal(T, D)
    options = {"scale": {"scale": 100.0}, "softcap": {"softcap": 1e-3}}.get(name, {})
    arrays = {"bias": normal(H, T, T)} if name == "bias" else {}
    plain = attend_without_cache("exact", params, x)
    changed = attend_without_cache(M.Attention(**options), params, x, **arrays)
    assert np.abs(changed - plain).max() > 1e-3
    for function in ("mixed", "fused", lambda query, key, value, mask: (query, query)):
        with pytest.raises(ValueError, match=name):
            attend_without_cache(M.Attention(function, **options), params, x, **arrays)


TILT = np.arange(1, H + 1)[:, None, None] * np.arange(T)[:, None] * np.arange(np.float32(T))


def test_weights_of_a_users_attention_can_be_seen_not_changed():
    def tilted(query, key, value, mask=None):
        """Attention without `tap`; its bias depends on head, query and key."""
        assert query.shape[-3:-1] == key.shape[-3:-1] == (H, T)
        return F.scaled_dot_product_attention(query, key, value, mask, bias=jnp.asarray(TILT))

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
    """A reader follows a call, the loop over blocks, the block and attention."""
    frames = []

    def tap(name, value):
        if name == "blocks.0.attention.weights":
            frames.extend(f.name for f in traceback.extract_stack() if "/tlite/" in f.filename)
        return value

    model = M.make_model(M.GeneratorConfig(vocabulary_size=5), rng=jax.random.key(0))
    model(jnp.arange(3), tap=tap)
    path = [name for name in frames if name not in ("scoped_tap", "<lambda>")]
    assert path == ["__call__", "run_blocks", "block", "attend", "scaled_dot_product_attention"]
