"""Small models far from where they begin, and the same arrays under the same names in each."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from tests.functional.helpers import assert_all_finite, assert_same, normal
from tlite.training.named import parameter_names


def drawn(kind, config):
    """A model none of whose numbers is 0 or 1; an array depends on its name and shape alone."""
    shapes = jax.eval_shape(lambda: kind(config, key=jax.random.key(0)))
    arrays, structure = jax.tree.flatten(shapes)
    arrays = map(draw, parameter_names(shapes), (a.shape for a in arrays))
    return jax.tree.unflatten(structure, arrays)


def draw(name, shape):
    about = 1.0 if name.endswith("norm.scale") else 0.0
    width = 0.4 if name.endswith(("norm.scale", ".kernel")) else 0.7
    return about + width * normal(*shape, seed=zlib.crc32(name.encode()))


def difference(x, y):
    return np.abs(np.asarray(x) - np.asarray(y)).max()


def slopes(logits, model, x):
    """Of each row of logits (T, V), weighted, by the model and by the rows of x (T, D): (T, ...).

    `logits` is a function of both.
    """
    result, pull_back = jax.vjp(logits, model, x)
    weights = normal(*result.shape)
    by_row = jnp.eye(len(result))[:, :, None] * weights
    return jax.vmap(pull_back)(by_row)


def assert_slopes_reach(by_model, ignored=(".key.bias", ".key_norm.bias")):
    """Every array has finite gradients, and some that are not 0.

    A bias of all keys shifts all scores of a query alike, which the softmax ignores.
    """
    assert_all_finite(by_model)
    for name, leaf in zip(parameter_names(by_model), jax.tree.leaves(by_model), strict=True):
        assert name.endswith(ignored) or np.abs(leaf).max() > 1e-7, name


def assert_rows_reach(by_x, sees):
    """The gradient of row t is not 0 in the rows of x that it sees, and is 0 in all others."""
    assert_same(np.asarray(by_x).any(-1), sees)


def reach(windows, blocks, length, *, causal=True, real=True):
    """What is seen through blocks one after the other (T, T); of what is not real only itself."""
    seen, distances = np.eye(length, dtype=bool), np.subtract.outer(*[np.arange(length)] * 2)
    for block in range(blocks):
        window = windows[block % len(windows)] if windows else 0
        sees = np.abs(distances) < (window or length)
        sees &= (distances >= 0) | (not causal)
        seen = seen @ (sees & real | np.eye(length, dtype=bool))
    return seen


def ragged(sequences):
    """Starts, rows, tokens of pieces of two sequences, the last ones anew, each elsewhere."""
    for starts, length in [((0, 0), 3), ((3, 1), 2), ((4, 3), 1), ((2, 3), 2)]:
        start = jnp.array(starts)
        rows = start[:, None] + jnp.arange(length)
        yield start, rows[..., None], jnp.take_along_axis(sequences, rows, axis=1)


def moved(x, **places):
    """`observe` that adds rows of x to the values of these names, in their order."""

    def observe(name, value):
        return value + x[slice(*places[name])] if name in places else value

    return observe
