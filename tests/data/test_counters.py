"""Random places: pure functions of seed, step and place, whole numbers far beyond 2^32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.data.counters import places

SEEDS = st.integers(-(2**63), 2**64 - 1)
STEPS = st.integers(0, 2**63)
BELOW = st.integers(1, 2**62)


@given(SEEDS, STEPS, st.integers(0, 40), st.integers(0, 40), BELOW, st.integers(0, 9))
def test_a_number_depends_on_seed_stream_step_and_place_alone(
    seed, step, first, number, below, stream
):
    whole = places(seed, step, first + number, below, stream=stream)
    part = places(seed, step, number, below, stream=stream, first=first)
    np.testing.assert_array_equal(part, whole[first:])
    assert whole.dtype == np.int64
    assert ((whole >= 0) & (whole < below)).all()


@given(SEEDS, STEPS)
def test_neighbouring_seeds_streams_and_steps_share_nothing(seed, step):
    below = 2**62
    drawn = [
        places(seed, step, 50, below),
        places(seed ^ 1, step, 50, below),
        places(seed, step + 1, 50, below),
        places(seed, step, 50, below, stream=1),
    ]
    assert len(np.unique(np.concatenate(drawn))) == 200


@pytest.mark.parametrize("below", [2, 7, 1000, 3 * 2**31, 5 * 10**9 - 1025])
def test_every_part_of_the_range_is_as_likely(below):
    """By chi squared over equal parts, at one in a million; beyond 2^31 and 2^32 too."""
    drawn = np.concatenate([places(3, step, 1000, below) for step in range(100)])
    parts = min(below, 50)
    counts = np.bincount(drawn * parts // below, minlength=parts)
    expected = len(drawn) / parts
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < parts + 5 * (2 * parts) ** 0.5 + 20


def test_the_numbers_are_those_of_every_version():
    """A run goes on with the windows it began with, whatever NumPy is installed by then."""
    assert places(1, 2, 5, 10**12).tolist() == [
        225691466853, 247354767353, 912739817215, 573715714986, 325398483027,
    ]  # fmt: skip


def test_there_are_no_places_in_nothing():
    with pytest.raises(ValueError, match="below must be at least 1"):
        places(0, 0, 3, 0)
