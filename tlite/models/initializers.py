"""Initial values of parameters by dotted name, in place of those that the layers draw.

A word stands for a distribution of all matrices; a function is a jax initializer
(key, shape, dtype) -> array; a table of (pattern, word or function) sets only what matches.
"""

import fnmatch
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from tlite.functional import fold_in
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


def resolve_init(value: Any) -> Any:
    """Return a word, a function, or a table of pairs as it is.

    Raises:
        ValueError: it is none of these.
    """
    pairs = value if isinstance(value, tuple) else (("*", value),)
    for pair in pairs:
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        each = pair[1] if is_pair else None
        if isinstance(each, str) and each not in {"default", *WORDS}:
            raise ValueError(f"init must be one of default, {', '.join(WORDS)}, not {each!r}")
        if not (isinstance(each, str) or (callable(each) and not isinstance(each, type))):
            expected = (
                "a word, a function (key, shape, dtype), or a tuple of (pattern, one of both)"
            )
            raise ValueError(f"init must be {expected}: {value!r}")
    return value


def draw_initial_values(
    init: Any, arrays: Mapping[str, Array], key: Key[Array, ""]
) -> dict[str, Array]:
    """Return the arrays by name with the initial values that `init` stands for.

    Args:
        init: as `TrainingConfig.init`.
        arrays: the values that the layers have drawn.
        key: folded with a hash of each name, so that a value does not depend on other names.

    Raises:
        ValueError: a pattern matches no array.
    """
    if not isinstance(init, tuple):
        return {name: _draw(init, name, a, arrays, key) for name, a in arrays.items()}
    drawn = dict(arrays)
    for pattern, each in init:
        matched = [name for name in arrays if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            raise ValueError(f"init: {pattern!r} matches no parameter among {', '.join(arrays)}")
        drawn |= {n: _draw(each, n, arrays[n], arrays, key, matched=True) for n in matched}
    return drawn


def _draw(init: Any, name: str, array, arrays, key, *, matched: bool = False) -> Array:
    has_table = init in WITH_TABLES if isinstance(init, str) else False
    is_drawn = is_matrix(name, array) or (has_table and name.endswith("table"))
    if init == "default" or not (is_drawn or matched):
        return array
    values = draw_by_name(WORDS[init] if isinstance(init, str) else init, name, array, key)
    if init == "gpt2" and name.endswith("output.kernel") and (match := IN_BLOCK.fullmatch(name)):
        values = values / num_outputs(match[1], arrays) ** 0.5
    return values


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
    key = fold_in(key, zlib.crc32(generic.encode()) % 2**31)

    def draw(key: Key[Array, ""]) -> Array:
        values = initializer(key, shape, array.dtype)
        if jnp.shape(values) != shape:
            raise ValueError(f"init of {name} has the shape {jnp.shape(values)}, not {shape}")
        return values

    if is_stacked(name):
        return jax.vmap(lambda i: draw(fold_in(key, i)))(jnp.arange(array.shape[0]))
    return draw(fold_in(key, int(match[2])) if match else key)


def num_outputs(prefix: str, arrays: Mapping[str, Array]) -> int:
    """Return the number of layers whose outputs are added up in a stack of blocks: 2 L."""
    return sum(
        a.shape[0] if is_stacked(name) else 1
        for name, a in arrays.items()
        if name.startswith(prefix) and name.endswith("output.kernel")
    )
