"""Windows of tokens: targets follow inputs; random positions beyond 2^32."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.data import contiguous_windows, sample_positions, sample_windows, split_tokens

CONTEXT = 4
SEEDS = st.integers(-(2**63), 2**64 - 1)
STEPS = st.integers(0, 2**63)
BELOW = st.integers(1, 2**62)


@pytest.mark.parametrize("spare", [0, 1, 5])
def test_sampled_windows_start_at_every_valid_position(spare):
    """The tokens are 0, 1, 2, ...: a window's first input is its start."""
    tokens = jax.numpy.arange(CONTEXT + 1 + spare)
    windows = sample_windows(jax.random.key(0), tokens, CONTEXT, 200)
    inputs, targets = map(np.asarray, windows)
    assert set(inputs[:, 0]) == set(range(spare + 1))
    np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(CONTEXT))
    np.testing.assert_array_equal(targets, inputs + 1)


@given(st.integers(1, 200), st.integers(1, 20))
def test_contiguous_windows_have_each_target_once(num_tokens, context):
    tokens = np.arange(num_tokens, dtype=np.int32)
    inputs, targets, weights = contiguous_windows(tokens, context)
    counted = weights == 1
    np.testing.assert_array_equal(targets[counted], tokens[1:])
    np.testing.assert_array_equal(inputs[counted], tokens[:-1])
    assert (weights[~counted] == 0).all()
    assert inputs.shape == targets.shape == weights.shape == (len(inputs), context)
    assert counted.any(1).all()


@given(st.integers(0, 1000), st.floats(0, 1))
def test_split_tokens_keeps_all_tokens_in_order(num_tokens, fraction):
    tokens = np.arange(num_tokens)
    training, validation = split_tokens(tokens, fraction)
    np.testing.assert_array_equal(np.concatenate([training, validation]), tokens)
    assert len(validation) == round(num_tokens * fraction)


@given(SEEDS, STEPS, st.integers(0, 40), st.integers(0, 40), BELOW, st.integers(0, 9))
def test_positions_are_a_function_of_seed_step_and_index(seed, step, first, number, below, stream):
    positions = sample_positions(seed, step, first + number, below, stream=stream)
    last = sample_positions(seed, step, number, below, stream=stream, first=first)
    np.testing.assert_array_equal(last, positions[first:])
    assert positions.dtype == np.int64
    assert ((positions >= 0) & (positions < below)).all()
    changes = [
        (seed, step, 0),
        (seed ^ 1, step, 0),
        (seed ^ 2**63, step, 0),
        (seed, step + 1, 0),
        (seed, step, 1),
    ]
    drawn = [sample_positions(s, t, 50, 2**62, stream=stream + u) for s, t, u in changes]
    assert len(np.unique(np.concatenate(drawn))) == 250
    with pytest.raises(ValueError, match="at least 1, not 0"):
        sample_positions(seed, step, number, 0)


@pytest.mark.parametrize("below", [2, 7, 1000, 3 * 2**31, 5 * 10**9 - 1025])
def test_positions_are_uniform(below):
    """Chi-squared test over equal bins with p > 1e-6, also beyond 2^31 and 2^32."""
    drawn = np.concatenate([sample_positions(3, step, 1000, below) for step in range(100)])
    bins = min(below, 50)
    counts = np.bincount(drawn * bins // below, minlength=bins)
    expected = len(drawn) / bins
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < bins + 5 * (2 * bins) ** 0.5 + 20
