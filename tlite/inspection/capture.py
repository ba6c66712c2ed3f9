"""Take values out of a model by their names, and change them, as a pure function.

The names are those of the places in the model: `embedding`, `blocks.2.attention.weights`,
`blocks.1.residual`, `final`, ...; an encoder-decoder's begin with `encoder.` or `decoder.`. In a
pattern `*` stands for anything: `blocks.*.attention.weights`.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from tlite.models import Seq2Seq


def run(
    model,
    *inputs: Array,
    capture: Iterable[str] = (),
    edit: Mapping[str, Callable[[Array], Array]] | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The model's logits for its inputs, and the captured values by name, in their order.

    Works under `jit`, `grad` and `vmap`. Without `capture` and `edit` it compiles to the same
    program as the model alone.

    Args:
        inputs: tokens; of an encoder-decoder those of the source and of the target.
        capture: names or patterns.
        edit: for names or patterns a function of the value, whose result the model goes on with.
            All that match a name are applied, in their order; what is captured is the result.

    Raises:
        ValueError: there is no such name (the nearest are listed), or an edit changes a shape.
    """
    capture, edit = [capture] if isinstance(capture, str) else list(capture), dict(edit or {})
    if not capture and not edit:
        return model(*inputs), {}
    met, captured = [], {}

    def tap(name: str, value: Array) -> Array:
        met.append(name)
        shape = value.shape
        for change in (edit[pattern] for pattern in edit if fnmatchcase(name, pattern)):
            value = jnp.asarray(change(value))
            if value.shape != shape:
                raise ValueError(f"the edit of {name} changes the shape {shape} to {value.shape}")
        if any(fnmatchcase(name, pattern) for pattern in capture):
            captured[name] = value
        return value

    logits = model(*inputs, tap=tap)
    for pattern in (*capture, *edit):
        matching(pattern, met)
    return logits, captured


def names(model, *inputs: Array) -> list[str]:
    """The names of all values that can be captured or edited, in the order they are computed.

    Args:
        inputs: as those of `run`; the fewest tokens that the model takes unless given.
    """
    shapes: tuple[Any, ...] = inputs
    if not inputs:
        wide = getattr(model.config, "wide", None)
        length = model.config.context + 1 if wide and wide.has_ngrams else 1
        number = 2 if isinstance(model, Seq2Seq) else 1
        shapes = (jax.ShapeDtypeStruct((length,), jnp.int32),) * number
    found: dict[str, Array] = {}
    jax.eval_shape(lambda *inputs: found.update(run(model, *inputs, capture="*")[1]), *shapes)
    return list(found)


def matching(pattern: str, known: list[str]) -> list[str]:
    """The known names that a pattern stands for.

    Raises:
        ValueError: there are none; the nearest names are listed.
    """
    if found := [name for name in known if fnmatchcase(name, pattern)]:
        return found
    nearest = difflib.get_close_matches(pattern, known, n=4, cutoff=0.0)
    raise ValueError(f"nothing in the model is called {pattern!r}; near it: {', '.join(nearest)}")
