"""The parabolic average equals its formula."""

import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers import reference
from tests.helpers.arrays import assert_all_finite, assert_close, exact
from tlite import baselines as B

S = 5
average = jax.jit(B.parabolic_average)
average_and_gradient = jax.jit(jax.value_and_grad(B.parabolic_average))


@hypothesis.given(arrays(np.float32, S, elements=st.floats(0, 1, width=32)), arrays(bool, S))
def test_the_parabolic_average_is_its_formula_with_finite_gradients(p, mask):
    value, gradient = average_and_gradient(p, mask)
    assert_close(value, reference.parabolic_average(*exact((p, mask))))
    assert_all_finite(gradient)
    assert not np.asarray(gradient)[~mask].any()
    both_classes = average(np.stack([p, 1 - p]), np.stack([mask, mask]))
    assert_close(both_classes, np.stack([value, 1 - np.asarray(value)]))
