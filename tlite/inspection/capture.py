"""Capture and edit the values inside a model by name, as a pure function.

A name is the value's path: `embedding`, `blocks.2.attention.weights`, `blocks.1.residual`, `final`;
in an encoder-decoder it begins with `encoder.` or `decoder.`. In a pattern, `*` matches any
characters: `blocks.*.attention.weights`.
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
    """Return the model's logits, and the captured values by name in order of computation.

    Works under `jit`, `grad` and `vmap`. Without `capture` and `edit`, it compiles to the same
    program as the model alone.

    Args:
        inputs: tokens; for an encoder-decoder, source and target tokens.
        capture: names or patterns of values to return, after edits.
        edit: maps names or patterns to functions of the value. The model continues with the
            result; all functions that match a name are applied, in this order.

    Raises:
        ValueError: a pattern matches no name, or an edit changes a shape.
    """
    capture, edit = [capture] if isinstance(capture, str) else list(capture), dict(edit or {})
    if not capture and not edit:
        return model(*inputs), {}
    names, captured = [], {}

    def tap(name: str, value: Array) -> Array:
        names.append(name)
        shape = value.shape
        for function in (edit[pattern] for pattern in edit if fnmatchcase(name, pattern)):
            value = jnp.asarray(function(value))
            if value.shape != shape:
                raise ValueError(f"the edit of {name} changes its shape {shape} to {value.shape}")
        if any(fnmatchcase(name, pattern) for pattern in capture):
            captured[name] = value
        return value

    logits = model(*inputs, tap=tap)
    for pattern in (*capture, *edit):
        match_names(pattern, names)
    return logits, captured


def tap_names(model, *inputs: Array) -> list[str]:
    """Return the names of all values that can be captured or edited, in order of computation.

    Args:
        inputs: as those of `run`; by default, the shortest that the model accepts.
    """
    shapes: tuple[Any, ...] = inputs
    if not inputs:
        wide = getattr(model.config, "wide", None)
        length = model.config.context + 1 if wide and wide.has_ngrams else 1
        number = 2 if isinstance(model, Seq2Seq) else 1
        shapes = (jax.ShapeDtypeStruct((length,), jnp.int32),) * number
    captured: dict[str, Array] = {}
    jax.eval_shape(lambda *inputs: captured.update(run(model, *inputs, capture="*")[1]), *shapes)
    return list(captured)


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match the pattern.

    Raises:
        ValueError: no name matches; the message lists the closest ones.
    """
    names = list(names)
    if matches := [name for name in names if fnmatchcase(name, pattern)]:
        return matches
    closest = difflib.get_close_matches(pattern, names, n=4, cutoff=0.0)
    raise ValueError(f"no value in the model matches {pattern!r}; closest: {', '.join(closest)}")
