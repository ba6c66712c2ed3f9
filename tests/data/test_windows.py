"""Windows of a text: every target is the token that follows its input."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.data import draw_windows, every_window, split_tokens

CONTEXT = 4


def draw(num_tokens, seed=0, size=200):
    """Windows of 0, 1, 2, ...: a window's first input is where it starts."""
    tokens = jax.numpy.arange(num_tokens)
    return map(np.asarray, draw_windows(jax.random.key(seed), tokens, CONTEXT, size))


@pytest.mark.parametrize("spare", [0, 1, 5])
def test_drawn_windows_start_at_every_valid_place_and_no_other(spare):
    inputs, targets = draw(CONTEXT + 1 + spare)
    assert set(inputs[:, 0]) == set(range(spare + 1))
    np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(CONTEXT))
    np.testing.assert_array_equal(targets, inputs + 1)


def test_drawn_windows_are_a_function_of_the_key():
    (first, _), (again, _), (other, _) = draw(100), draw(100), draw(100, seed=1)
    assert (first == again).all()
    assert (first != other).any()


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 7))
def test_every_token_but_the_first_is_a_target_once(num_tokens, context, multiple_of):
    tokens = np.arange(num_tokens, dtype=np.int32)
    inputs, targets, weights = every_window(tokens, context, multiple_of)
    counted = weights == 1
    np.testing.assert_array_equal(targets[counted], tokens[1:])
    np.testing.assert_array_equal(inputs[counted], tokens[:-1])
    assert (weights[~counted] == 0).all()
    assert inputs.shape == targets.shape == weights.shape == (len(inputs), context)
    assert len(inputs) % multiple_of == 0
    assert counted.any(1).sum() > len(inputs) - multiple_of


@given(st.integers(0, 1000), st.floats(0, 1))
def test_the_parts_of_a_split_are_the_whole_in_order(num_tokens, fraction):
    tokens = np.arange(num_tokens)
    training, validation = split_tokens(tokens, fraction)
    np.testing.assert_array_equal(np.concatenate([training, validation]), tokens)
    assert len(validation) == round(num_tokens * fraction)
