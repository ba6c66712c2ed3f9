"""What the tests of inspection share: random models."""

import jax
import numpy as np


def drawn(kind, config, *, spread=0.4):
    """A model of random numbers, about 1 in the scales of norms: none of them is 0 or 1."""
    draw = np.random.default_rng(0)

    def fill(path, leaf):
        middle = "scale" in jax.tree_util.keystr(path)
        numbers = middle + spread * draw.normal(size=leaf.shape)
        return jax.device_put(numbers.astype(leaf.dtype))

    abstract = jax.eval_shape(lambda: kind(config, rng=jax.random.key(0)))
    return jax.tree.map_with_path(fill, abstract)
