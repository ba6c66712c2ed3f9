"""Losses, batches, parameters, logits and texts are those of eac086c (tests/golden/expected.json).

XLA's optimisations are off (conftest.py), so sums keep their order. With other instructions
(SSE4.2, AVX2, AVX-512), losses after 30 steps differ by at most 8e-7 (1 + loss), logits by a
quarter of their tolerance, texts and batches not at all.
"""

import numpy as np
import pytest

from tests.helpers import golden
from tlite.runs.experiment_files import find_experiments

EXPECTED = golden.read()


def assert_close(numbers, expected, tolerance: float) -> None:
    np.testing.assert_allclose(numbers, expected, rtol=tolerance, atol=tolerance)


def assert_initial(initial: dict, expected: dict) -> None:
    assert {name: row[0] for name, row in initial.items()} == {n: r[0] for n, r in expected.items()}
    for name, (_, *values) in expected.items():
        np.testing.assert_allclose(initial[name][1:], values, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", golden.COURSES)
def test_loss_course_is_unchanged(name, tmp_path):
    numbers, expected = golden.course(name, tmp_path), EXPECTED[f"course: {name}"]
    for field in numbers.keys() - {"initial"}:
        if field.endswith("losses"):
            assert_close(numbers[field], expected[field], 1e-6)
        else:
            assert numbers[field] == expected[field]
    if "initial" in numbers:
        assert_initial(numbers["initial"], expected["initial"])


@pytest.mark.parametrize("name", find_experiments())
def test_shipped_model_is_unchanged(name):
    numbers, expected = golden.shipped_model(name), EXPECTED[f"model: {name}"]
    assert_initial(numbers["initial"], expected["initial"])
    for field in ("initial logits", "logits"):
        assert_close(numbers[field], expected[field], 1e-5)


def test_random_numbers_are_unchanged():
    numbers, expected = golden.random_numbers(), EXPECTED["random numbers"]["numbers"]
    assert numbers.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(numbers[name], np.asarray(values), err_msg=name)


def test_every_case_is_pinned():
    assert sorted(EXPECTED) == sorted(golden.cases())
