"""Scalings of rotary positions, and distances with the buckets that they are put in."""

import numpy as np
import pytest

LLAMA3 = [(8.0, 8192, 1.0, 4.0, 500_000.0), (32.0, 64, 1.0, 4.0, 1e4), (4.0, 100, 2.0, 3.0, 50.0)]
YARN = [(4.0, 4096, 32.0, 1.0, 1e4), (40.0, 128, 16.0, 2.0, 1e6), (8.0, 8192, 32.0, 1.0, 150.0)]
each_dim = pytest.mark.parametrize("dim", [2, 16, 128])
DISTANCES = np.concatenate([np.arange(-700, 701), [-(10**6), 10**6]])
BUCKETS = [(32, 128), (8, 20), (16, 100), (64, 256), (4, 3)]
