"""Values inside a model by name, so that they can be taken out or changed without hooks.

A function that takes `observe` calls it as `x = observe("name", x)` and goes on with what it
returns. `unobserved` returns x as it is: the compiled program is the same as without.
"""

import inspect
from collections.abc import Callable
from functools import partial

from jaxtyping import Array

Observe = Callable[[str, Array], Array]


def unobserved(name: str, value: Array) -> Array:
    """The value as it is."""
    return value


def within(observe: Observe, place: str) -> Observe:
    """`observe` for a part of a model: "weights" in "attention" is "attention.weights"."""
    if observe is unobserved:
        return unobserved
    return lambda name, value: observe(f"{place}.{name}", value)


def taking(function: Callable, **settings) -> Callable:
    """The function with those of the settings that it takes."""
    taken = inspect.signature(function).parameters
    return partial(function, **{name: v for name, v in settings.items() if name in taken})
