"""The log-count ratios of naive Bayes are their formula."""

import math

import jax.numpy as jnp
import numpy as np

from tlite import functional as F

COUNTS = jnp.array([[3.0, 0.0, 1.0], [2.0, 2.0, 2.0], [0.0, 5.0, 0.0], [0.0, 0.0, 0.0]])


def test_the_ratios_are_those_of_the_formula():
    for smoothing in (1.0, 0.3):
        found = F.log_count_ratios(COUNTS, smoothing)
        for c in range(3):
            p = [row[c] + smoothing for row in COUNTS]
            q = [sum(row) - row[c] + smoothing for row in COUNTS]
            for v in range(4):
                expected = math.log((p[v] / sum(p)) / (q[v] / sum(q)))
                np.testing.assert_allclose(found[v, c], expected, rtol=1e-5, atol=1e-6)
