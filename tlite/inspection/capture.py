"""Capture and edit the values inside a model by name, as a pure function.

A name is the value's path: `embedding`, `blocks.2.attention.weights`, `blocks.1.residual`,
`final`, `logits`; in an encoder-decoder it begins with `encoder.` or `decoder.`, except `logits`.
In a pattern, `*` matches any characters: `blocks.*.attention.weights`.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
from jaxtyping import Array

from tlite.models import Seq2Seq, SequenceClassifier
from tlite.models.ensemble import Ensemble


def run(
    model,
    *inputs: Array,
    capture: Iterable[str] = (),
    edit: Mapping[str, Callable[[Array], Array]] | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Return the model's logits, and the captured values by name in order of computation.

    Works under `jit` (which sorts the names as text: 10 before 2), `grad` and `vmap`.

    Args:
        inputs: tokens; for an encoder-decoder, source and target tokens.
        capture: names or patterns of values to return, after edits.
        edit: functions by name or pattern. The model continues with the function's result; all
            that match a name are applied, in order.

    Raises:
        ValueError: a pattern matches no name, or an edit changes a shape.
    """
    capture, edit = [capture] if isinstance(capture, str) else list(capture), dict(edit or {})
    if not capture and not edit:
        return model(*inputs), {}
    check_single(model, capture)
    names, captured = [], {}

    def tap(name: str, value: Array) -> Array:
        names.append(name)
        shape = value.shape
        for pattern in edit:
            value = jnp.asarray(edit[pattern](value)) if fnmatchcase(name, pattern) else value
        if value.shape != shape:
            raise ValueError(f"the edit of {name} changes its shape {shape} to {value.shape}")
        if any(fnmatchcase(name, pattern) for pattern in capture):
            captured[name] = value
        return value

    logits = model(*inputs, tap=tap)
    for pattern in (*capture, *edit):
        match_names(pattern, names)
    return logits, captured


def check_single(model, capture: list[str]) -> None:
    """Raise a TypeError if values of an ensemble would be captured: its models share the names."""
    if capture and isinstance(model, Ensemble) and len(model) > 1:
        raise TypeError("an ensemble has no values by name: load one of its replicas")


def tap_names(model, *inputs: Array) -> list[str]:
    """Return the names of all values, in order of computation.

    Args:
        inputs: those of `run`; by default, the shortest that the model accepts.
    """
    if not inputs:
        has_ngrams = isinstance(model, SequenceClassifier) and model.config.wide.has_ngrams
        tokens = jnp.zeros(model.config.context + 1 if has_ngrams else 1, int)
        inputs = (tokens, tokens) if isinstance(model, Seq2Seq) else (tokens,)
    captured: dict[str, Array] = {}
    jax.eval_shape(lambda *inputs: captured.update(run(model, *inputs, capture="*")[1]), *inputs)
    return list(captured)


def match_names(pattern: str, names: list[str]) -> list[str]:
    """Return the names that match the pattern.

    Raises:
        ValueError: no name matches; the message lists the closest ones.
    """
    if matches := [name for name in names if fnmatchcase(name, pattern)]:
        return matches
    closest = difflib.get_close_matches(pattern, names, n=4, cutoff=0.0)
    raise ValueError(f"no value in the model matches {pattern!r}; closest: {', '.join(closest)}")
