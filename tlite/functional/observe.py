"""Values inside a model by name, so that they can be taken out or changed without hooks.

A function that takes `observe` calls it as `x = observe("name", x)` and goes on with what it
returns. `unobserved` returns x as it is: the compiled program is the same as without.
"""

from collections.abc import Callable

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
