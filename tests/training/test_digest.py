import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import NamedSharding, PartitionSpec

from tlite.training import digest
from tlite.training.digest import MODULUS, array_digest, parts_digest

DTYPES = ["bool", "int8", "uint16", "float16", "int32", "float32", "float64", "complex128"]

arrays = hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, min_side=0))


def bits(array) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def by_hand(array: np.ndarray) -> int:
    """The definition, an element after the other."""
    size, total = min(array.itemsize, 8), 0
    for place, word in enumerate(np.ascontiguousarray(array).reshape(-1).view(f"u{size}")):
        x = (place * int(digest.GOLDEN)) % MODULUS ^ int(word)
        for factor in (int(digest.FIRST), int(digest.SECOND), 1):
            x = (x ^ x >> 33) * factor % MODULUS
        total += x
    return total % MODULUS


@given(arrays)
def test_it_is_the_sum_over_the_elements(array):
    assert array_digest(array) == by_hand(array)


@given(arrays, st.data())
def test_a_changed_bit_changes_it(array, data):
    changed = bits(array).copy()
    if changed.size and array.dtype != bool:
        place = data.draw(st.integers(0, changed.size - 1))
        changed[place] ^= 1 << data.draw(st.integers(0, 7))
        changed = changed.view(array.dtype).reshape(array.shape)
        assert array_digest(changed) != array_digest(array)


@given(arrays, st.data())
def test_exchanged_elements_change_it(array, data):
    places = st.integers(0, max(array.size - 1, 0))
    one, other = data.draw(places), data.draw(places)
    changed = array.copy().reshape(-1)
    if changed.size:
        changed[[one, other]] = changed[[other, one]]
    same = np.array_equal(bits(array), bits(changed))
    assert (array_digest(changed.reshape(array.shape)) == array_digest(array)) == same


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_changed_signs_do_not_cancel(dtype):
    """Sums of products would: the highest bit leaves no room to mix upwards."""
    right = np.random.default_rng(0).normal(size=64).astype(dtype)
    for pair in itertools.combinations(range(right.size), 2):
        changed = right.copy()
        changed[list(pair)] *= -1
        assert array_digest(changed) != array_digest(right)


@given(hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(max_dims=4, max_side=7)), st.data())
def test_the_parts_add_up_to_the_whole(array, data):
    cuts = []
    for size in array.shape:
        inner = data.draw(st.lists(st.integers(0, size), max_size=2))
        cuts.append([slice(*pair) for pair in itertools.pairwise([0, *sorted(inner), size])])
    parts = [(index, array[index]) for index in itertools.product(*cuts)]
    assert parts_digest(parts, array.shape) == array_digest(array)


@pytest.mark.parametrize("shape", [(3, 5, 40000), (70000, 3), (40000, 1, 2)])
def test_large_arrays_are_worked_through_in_blocks(shape, monkeypatch):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = array_digest(array)
    monkeypatch.setattr(digest, "BLOCK", 10**9)
    assert array_digest(array) == found


@pytest.mark.parametrize("spec", [(), ("a",), (None, "b"), ("a", "b"), (("b", "a"),), (None, "a")])
def test_it_does_not_depend_on_the_devices(spec):
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    array = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    placed = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
    assert array_digest(placed) == array_digest(array)


def test_places_beyond_what_32_bits_count():
    part, shape = np.ones((1, 4), np.float32), (2**40, 2**10)
    found = {
        parts_digest([((slice(row, row + 1), slice(column, column + 4)), part)], shape)
        for row, column in itertools.product([0, 1, 2**22, 2**39, 2**40 - 1], [0, 1, 1000])
    }
    assert len(found) == 15
