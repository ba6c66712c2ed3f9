"""Masks: what may attend to what."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers.arrays import integers
from tlite import functional as F

causal_mask = jax.jit(F.causal_mask, static_argnums=0)
padding_mask = jax.jit(F.padding_mask, static_argnums=1)
cache_mask = jax.jit(F.cache_mask, static_argnums=1)
window_mask = jax.jit(F.window_mask, static_argnums=2)
documents = jax.jit(F.documents, static_argnums=1)
document_mask = jax.jit(F.document_mask)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_causal_mask_shows_the_present_and_the_past(length):
    mask = np.asarray(causal_mask(length))
    assert mask.shape == (length, length)
    assert all(mask[t, s] == (s <= t) for t in range(length) for s in range(length))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_padding_mask_hides_padding_from_all_heads_and_queries(batch):
    tokens = np.asarray(integers(3, *batch, 5))
    mask = np.asarray(padding_mask(tokens, 0))
    assert mask.shape == (*batch, 1, 1, 5)
    assert (mask[..., 0, 0, :] == (tokens != 0)).all()


@given(st.lists(st.none() | arrays(bool, (2, 3)), max_size=4))
def test_combined_masks_allow_what_all_allow(masks):
    combined = F.combine_masks(*(None if mask is None else jax.device_put(mask) for mask in masks))
    given_masks = [mask for mask in masks if mask is not None]
    if given_masks:
        assert (combined == np.logical_and.reduce(given_masks)).all()
    else:
        assert combined is None


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cache_mask_shows_what_was_written_up_to_each_position(batch):
    positions = np.asarray(integers(4, *batch, 3))
    mask = np.asarray(cache_mask(positions, 6))
    assert mask.shape == (*batch, 1, 3, 6)
    for *i, t, s in np.ndindex(*batch, 3, 6):
        assert mask[(*i, 0, t, s)] == (s <= positions[(*i, t)])


@pytest.mark.parametrize("window", [1, 2, 9])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_window_mask_shows_what_is_nearer_than_the_window(batch, window):
    positions, key_positions = np.asarray(integers(9, *batch, 3)), np.asarray(integers(9, 5))
    mask = np.asarray(window_mask(positions, key_positions, window))
    assert mask.shape == (*batch, 1, 3, 5)
    for *i, t, s in np.ndindex(*batch, 3, 5):
        distance = abs(int(positions[(*i, t)]) - int(key_positions[s]))
        assert mask[(*i, 0, t, s)] == (distance < window)


@given(arrays(int, (2, 7), elements=st.integers(0, 2)))
def test_documents_are_counted_and_an_end_is_the_first_that_the_next_one_sees(tokens):
    numbers = documents(tokens, 0)
    for row, found in zip(tokens.tolist(), numbers.tolist(), strict=True):
        assert found == [row[: t + 1].count(0) for t in range(7)]


@given(arrays(int, (2, 5), elements=st.integers(0, 2)))
def test_document_mask_shows_the_present_and_the_past_of_a_document(numbers):
    mask = np.asarray(document_mask(numbers))
    assert mask.shape == (2, 1, 5, 5)
    for b, t, s in np.ndindex(2, 5, 5):
        assert mask[b, 0, t, s] == (s <= t and numbers[b, s] == numbers[b, t])
