"""Initial values of parameters by dotted name, in place of those that the layers draw.

A word stands for a distribution of all matrices; a function is a jax initializer
(key, shape, dtype) -> array.
"""

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from tlite.config import resolve_word
from tlite.models.parameters import IN_BLOCK, is_matrix, is_stacked, shape_in_block

Initializer = Callable[[Key[Array, ""], tuple[int, ...], Any], Array]

WORDS: dict[str, Initializer] = {
    "glorot": jax.nn.initializers.glorot_uniform(),
    "normal": jax.nn.initializers.normal(0.02),
    "gpt2": jax.nn.initializers.normal(0.02),
    "orthogonal": jax.nn.initializers.orthogonal(),
}
"""gpt2: outputs of layers in blocks are also divided by the square root of their number."""
WITH_TABLES = "normal", "gpt2"
"""Words that stand for the values of embeddings and positions, too."""


KEPT_WORDS = {"default": "default"} | dict(zip(WORDS, WORDS, strict=True))
resolve_init = partial(resolve_word, "init", KEPT_WORDS, "(key, shape, dtype)")
"""Return a word or a function of (key, shape, dtype) as it is."""


def draw_initial_values(
    init: Any, arrays: Mapping[str, Array], key: Key[Array, ""], groups: Mapping[str, Any] = {}
) -> dict[str, Array]:
    """Return the arrays by name with the initial values that `init` stands for.

    Args:
        init: a word or an initializer, for all matrices (`WITH_TABLES`: also tables).
        arrays: the values that the layers have drawn.
        key: folded with a hash of each name, so that a value does not depend on other names.
        groups: words or initializers by the name of an array, for any array.
    """
    drawn = {}
    for name, array in arrays.items():
        each = groups.get(name, init)
        has_table = isinstance(each, str) and each in WITH_TABLES and name.endswith("table")
        if each == "default" or not (name in groups or has_table or is_matrix(name, array)):
            drawn[name] = array
            continue
        initializer = WORDS[each] if isinstance(each, str) else each
        drawn[name] = draw_by_name(initializer, name, array, key)
        match = IN_BLOCK.fullmatch(name)
        if match and isinstance(each, str) and each == "gpt2" and name.endswith("output.kernel"):
            drawn[name] /= num_outputs(match[1], arrays) ** 0.5
    return drawn


def draw_by_name(initializer: Initializer, name: str, array: Any, key: Key[Array, ""]) -> Array:
    """Return new values of an array, by a key that is folded with a hash of its name.

    The blocks of a list get the values that they would have in one stacked array.

    Args:
        array: an array or its shape and type.

    Raises:
        ValueError: the initializer returns another shape.
    """
    match, shape = IN_BLOCK.fullmatch(name), shape_in_block(name, array)
    generic = match[1] + match[3] if match else name
    key = jax.random.fold_in(key, zlib.crc32(generic.encode()) % 2**31)

    def draw(key: Key[Array, ""]) -> Array:
        values = initializer(key, shape, array.dtype)
        if jnp.shape(values) != shape:
            raise ValueError(f"init of {name} has the shape {jnp.shape(values)}, not {shape}")
        return values

    if is_stacked(name):
        return jax.vmap(lambda i: draw(jax.random.fold_in(key, i)))(jnp.arange(array.shape[0]))
    return draw(jax.random.fold_in(key, int(match[2])) if match else key)


def num_outputs(prefix: str, arrays: Mapping[str, Array]) -> int:
    """Return the number of layers whose outputs are added up in a stack of blocks: 2 L."""
    return sum(
        a.shape[0] if is_stacked(name) else 1
        for name, a in arrays.items()
        if name.startswith(prefix) and name.endswith("output.kernel")
    )
