"""The gated delta rule equals its formula, by token and by chunk, with states and padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arrays import assert_all_finite, assert_close, over_batch
from tlite import functional as F

BATCH, K, KV = (2, 3), 6, 4


def draw(length, batch=BATCH, seed=0, scale=1.0):
    """Return normalised queries and keys, some equal, values, gates and a state.

    `scale` is the standard deviation of log(-log alpha).
    """
    rng = np.random.default_rng([seed, length])
    query, key = rng.normal(size=(2, *batch, length, K))
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    key[..., ::3, :] = key[..., :1, :]
    value, state = rng.normal(size=(*batch, length, KV)), rng.normal(size=(*batch, KV, K))
    log_alpha = -np.exp(scale * rng.normal(size=(*batch, length)))
    beta = 2 * rng.random((*batch, length))
    return [x.astype(np.float32) for x in (query, key, value, log_alpha, beta, state)]


def reference(query, key, value, log_alpha, beta, state):
    """S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and o_t = S_t q_t."""
    outputs = []
    for q, k, v, log_a, b in zip(query, key, value, log_alpha, beta, strict=True):
        state = np.exp(log_a) * state @ (np.eye(K) - b * np.outer(k, k)) + b * np.outer(v, k)
        outputs.append(state @ q)
    return np.stack(outputs), state


@functools.partial(jax.jit, static_argnums=0)
def results(rule, arrays, valid=None):
    """Return outputs, the final state, and gradients with respect to every array."""

    def loss(arrays):
        output, state = rule(*arrays, valid=valid)
        return jnp.sin(output).sum() + jnp.cos(state).sum(), (output, state)

    gradients, values = jax.grad(loss, has_aux=True)(arrays)
    return *values, gradients


@functools.cache
def chunks_of(size):
    return functools.partial(F.chunked_gated_delta_rule, chunk_size=size)


each_form = pytest.mark.parametrize(
    "rule", [F.gated_delta_rule, chunks_of(4)], ids=["by token", "by chunk"]
)


@each_form
@pytest.mark.parametrize("batch", [(), BATCH])
def test_gated_delta_rule_is_its_formula(rule, batch):
    arrays = draw(7, batch)
    assert_close(results(rule, arrays)[:2], over_batch(batch, reference, *arrays))
    zeros = np.zeros_like(arrays[-1])
    assert_close(jax.jit(rule)(*arrays[:-1]), over_batch(batch, reference, *arrays[:-1], zeros))


@pytest.mark.parametrize(("length", "size"), [(1, 4), (4, 4), (11, 4), (11, 64)])
@given(st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 5.0]))
def test_chunks_have_outputs_and_gradients_of_the_definition(length, size, seed, scale):
    """Draw alpha from 0 to 1, and padding anywhere."""
    arrays = draw(length, seed=seed, scale=scale)
    valid = np.random.default_rng(seed).random((BATCH[0], 1, length)) < 0.8
    expected = results(F.gated_delta_rule, arrays, valid)
    assert_close(results(chunks_of(size), arrays, valid), expected)


@each_form
def test_padding_leaves_the_state_unchanged(rule):
    *arrays, state = draw(9)
    valid = np.array([True, False, True, True, False, False, True, True, False])
    output, final = jax.jit(rule)(*arrays, state, valid=np.broadcast_to(valid, (1, 1, 9)))
    without = [x[:, :, valid] for x in arrays]
    assert_close((output[:, :, valid], final), jax.jit(rule)(*without, state))


@each_form
def test_a_state_continues_its_sequence_and_a_reset_discards_it(rule):
    *arrays, state = draw(9)
    rule, parts = jax.jit(rule), []
    for part in (slice(0, 5), slice(5, 9)):
        output, state = rule(*(x[:, :, part] for x in arrays), state)
        parts.append(output)
    expected = rule(*arrays, draw(9)[-1])
    assert_close((np.concatenate(parts, axis=-2), state), expected)
    arrays[3][:, :, 5] = -np.inf
    outputs, state, gradients = results(rule, [*arrays, state])
    assert_close((outputs[:, :, 5:], state), rule(*(x[:, :, 5:] for x in arrays)))
    assert_all_finite(gradients)


@each_form
def test_16_bit_inputs_have_a_float32_state(rule):
    *arrays, _ = (jnp.asarray(x, jnp.bfloat16) for x in draw(9))
    output, state = jax.jit(rule)(*arrays)
    assert (output.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    exact = [x.astype(jnp.float32) for x in arrays]
    expected = jax.jit(jax.vmap(rule))(*exact)
    assert_close(state, expected[1])
    assert_close(output.astype(jnp.float32), expected[0], tolerance=1e-2)
