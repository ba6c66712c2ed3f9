"""Masks: what may attend to what."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers.arrays import integers
from tlite import functional as F


@pytest.mark.parametrize("length", [1, 2, 5])
def test_causal_mask_shows_the_present_and_the_past(length):
    mask = F.causal_mask(length)
    assert mask.shape == (length, length)
    assert all(mask[t, s] == (s <= t) for t in range(length) for s in range(length))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_padding_mask_hides_padding_from_all_heads_and_queries(batch):
    tokens = integers(3, *batch, 5)
    mask = F.padding_mask(tokens, 0)
    assert mask.shape == (*batch, 1, 1, 5)
    assert (mask[..., 0, 0, :] == (tokens != 0)).all()


@given(st.lists(st.none() | arrays(bool, (2, 3)), max_size=4))
def test_combined_masks_allow_what_all_allow(masks):
    combined = F.combine_masks(*(None if mask is None else jnp.asarray(mask) for mask in masks))
    given_masks = [mask for mask in masks if mask is not None]
    if given_masks:
        assert (combined == np.logical_and.reduce(given_masks)).all()
    else:
        assert combined is None


def test_combined_masks_broadcast():
    tokens = jnp.array([[1, 1, 0], [1, 0, 0]])
    combined = F.combine_masks(F.causal_mask(3), None, F.padding_mask(tokens, 0))
    assert combined.shape == (2, 1, 3, 3)
    for b, t, s in np.ndindex(2, 3, 3):
        assert combined[b, 0, t, s] == (s <= t and tokens[b, s] != 0)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cache_mask_shows_what_was_written_up_to_each_position(batch):
    positions = integers(4, *batch, 3)
    mask = F.cache_mask(positions, 6)
    assert mask.shape == (*batch, 1, 3, 6)
    for *i, t, s in np.ndindex(*batch, 3, 6):
        assert mask[(*i, 0, t, s)] == (s <= positions[(*i, t)])


def test_cache_mask_of_positions_in_order_is_causal():
    assert (F.cache_mask(jnp.arange(5), 5)[0] == F.causal_mask(5)).all()


@pytest.mark.parametrize("window", [1, 2, 9])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_window_mask_shows_what_is_nearer_than_the_window(batch, window):
    positions, key_positions = integers(9, *batch, 3), integers(9, 5)
    mask = F.window_mask(positions, key_positions, window)
    assert mask.shape == (*batch, 1, 3, 5)
    for *i, t, s in np.ndindex(*batch, 3, 5):
        distance = abs(int(positions[(*i, t)]) - int(key_positions[s]))
        assert mask[(*i, 0, t, s)] == (distance < window)


def test_a_window_and_causality_leave_as_many_keys_as_the_window_is_long():
    mask = F.combine_masks(F.causal_mask(7), F.window_mask(jnp.arange(7), jnp.arange(7), 3))[0]
    assert (mask.sum(-1) == np.minimum(np.arange(7) + 1, 3)).all()


@given(arrays(int, (2, 7), elements=st.integers(0, 2)))
def test_documents_are_counted_and_an_end_is_the_first_that_the_next_one_sees(tokens):
    numbers = F.documents(jnp.asarray(tokens), 0)
    for row, found in zip(tokens.tolist(), numbers.tolist(), strict=True):
        assert found == [row[: t + 1].count(0) for t in range(7)]


@given(arrays(int, (2, 5), elements=st.integers(0, 2)))
def test_document_mask_shows_the_present_and_the_past_of_a_document(numbers):
    mask = F.document_mask(jnp.asarray(numbers))
    assert mask.shape == (2, 1, 5, 5)
    for b, t, s in np.ndindex(2, 5, 5):
        assert mask[b, 0, t, s] == (s <= t and numbers[b, s] == numbers[b, t])


def test_one_document_is_causal():
    assert (F.document_mask(jnp.zeros(4, int)) == F.causal_mask(4)).all()
