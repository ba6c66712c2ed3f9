import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import assert_close, over_batch
from tlite.functional import causal_mask, scaled_dot_product_attention
from tlite.functional.fast_attention import fused_attention, mixed_attention

SHAPES = {"one head": (5, 4), "batch and heads": (2, 3, 7, 5)}


def blind_in_row_2(t):
    return jnp.asarray(np.tri(t, dtype=bool) & (np.arange(t) != 2)[:, None])


MASKS = {
    "none": lambda t: None,
    "causal": causal_mask,
    "a row that sees nothing": blind_in_row_2,
}


def draw(shape, seed=0):
    """Numbers that bfloat16 holds exactly, so that only sums and weights are rounded."""
    numbers = np.random.default_rng([seed, *shape]).normal(size=(4, *shape))
    return [jax.device_put(x.astype(jnp.bfloat16).astype(np.float32)) for x in numbers]


@pytest.fixture(params=[mixed_attention, fused_attention], ids=["mixed", "fused"])
def output_of(request):
    return jax.jit(lambda *inputs: request.param(*inputs)[0])


def definition(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value, mask)[0]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_those_of_the_definition_up_to_rounding(shape, mask, output_of):
    query, key, value, gradient = draw(SHAPES[shape])
    mask = MASKS[mask](SHAPES[shape][-2])

    @functools.partial(jax.jit, static_argnums=0)
    def of(attention, *inputs):
        output, pull_back = jax.vjp(lambda *x: attention(*x, mask), *inputs)
        return output, *pull_back(gradient)

    results = (of(attention, query, key, value) for attention in (output_of, definition))
    for ours, expected in zip(*results, strict=True):
        assert ours.dtype == jnp.float32
        scale = np.abs(np.asarray(expected)).max()
        # 0.008 was measured: several operands are rounded by up to 0.002 of each (8 bits) in turn.
        np.testing.assert_allclose(ours, expected, atol=0.02 * scale)


def test_a_row_that_sees_nothing_gives_zeros_and_passes_nothing_back(output_of):
    query, key, value, gradient = draw((6, 4))
    mask = blind_in_row_2(6)

    @jax.jit
    def results(query):
        output, pull_back = jax.vjp(lambda q: output_of(q, key, value, mask), query)
        return output, *pull_back(gradient)

    for found in results(query):
        assert (np.asarray(found)[2] == 0).all()


def test_what_is_masked_has_no_gradient(output_of):
    query, key, value, _ = draw((6, 4))
    gradients = jax.grad(
        lambda k, v: output_of(query, k, v, causal_mask(6))[2].sum(), argnums=(0, 1)
    )
    by_key, by_value = map(np.asarray, jax.jit(gradients)(key, value))
    assert (by_key[3:] == 0).all()
    assert (by_value[3:] == 0).all()
    assert (by_value[:3] != 0).any()


def test_it_works_under_vmap_and_in_a_loop(output_of):
    query, key, value, _ = draw((2, 8, 4))
    mask = causal_mask(8)
    whole = output_of(query, key, value, mask)
    mapped = jax.jit(jax.vmap(output_of, in_axes=(0, 0, 0, None)))(query, key, value, mask)
    np.testing.assert_allclose(mapped, whole, atol=1e-6)
    looped = jax.jit(
        lambda q: jax.lax.fori_loop(0, 2, lambda _, q: output_of(q, key, value, mask), q)
    )
    assert np.isfinite(looped(query)).all()


@pytest.mark.parametrize("attention", [mixed_attention, fused_attention])
def test_weights_are_their_formula_and_times_the_values_the_output(attention):
    query, key, value, _ = draw((2, 3, 8, 4))
    output, weights = jax.jit(attention)(query, key, value, causal_mask(8))
    formula = functools.partial(reference.attention, mask=np.tri(8))
    _, expected = over_batch((2, 3), formula, query, key, value)
    assert_close(weights, expected, 1e-6)
    np.testing.assert_allclose(output, expected @ np.asarray(value), atol=0.01)


def test_masks_of_each_example_and_of_each_head_are_heeded_by_the_kernel():
    query, key, value, _ = draw((2, 3, 6, 4))
    for shape in ((2, 1, 1, 6), (2, 3, 6, 6), (1, 1, 6, 6)):
        mask = np.random.default_rng(5).random(shape) < 0.6
        output = jax.jit(fused_attention)(query, key, value, mask)[0]
        expected = np.asarray(jax.jit(definition)(query, key, value, mask))
        np.testing.assert_allclose(output, expected, atol=0.01 * np.abs(expected).max())
