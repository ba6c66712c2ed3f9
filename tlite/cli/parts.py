"""The parts of a model on a command line: a word chooses one, a dot leads to its numbers.

A first look at the words changes the experiment's parts; what is left is read as any options are.
"""

import copy
import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any

from tlite.cli.parsing import optional_part
from tlite.errors import UserError
from tlite.models import Attention
from tlite.models.parts import WORDS


def choose(experiment, words: list[str]) -> tuple[Any, list[str]]:
    """The experiment with the parts that are named, and the other words, in today's options.

    Whether all makes sense is not checked: the other words are needed for that.

    Raises:
        UserError: there is no such part.
    """
    model, others = experiment.model, []
    for group in _groups(words):
        name, equals, value = group[0].partition("=")
        values = [value, *group[1:]] if equals else group[1:]
        paths = earlier(model, name)
        if paths == ["pool.projection"]:  # it had no norm unless that was asked for
            others.insert(0, ["--pool.projection.no-norm"])
        for path in paths or [_path(name)]:
            if path in WORDS and hasattr(model, path):
                model = _with(model, **{path: _named(getattr(model, path), path, values)})
                others.append(values[1:])
            else:
                others.append([option(path), *values] if paths else group)
    left = []
    for group in filter(None, others):
        name, equals, value = group[0].partition("=")
        path = _path(name).split(".")
        model = _opened(model, path)
        kind = _kind_at(model, path)
        if kind and name.startswith("--"):
            group = [f"{name}.{dataclasses.fields(kind)[0].name}{equals}{value}", *group[1:]]
        left += group
    return _with(experiment, model=model), left


def earlier(model, name: str) -> list[str]:
    """Paths to the fields that an option of version 0.2.0 is today; none for one of today's."""
    table, path = getattr(model, "EARLIER", {}), _path(name)
    if path in table:
        return table[path].split()
    found = table.get(path.removeprefix("no_"), "").split()
    return [f"{part}.no_{field}" for part, _, field in (each.rpartition(".") for each in found)]


def meant(model, name: str) -> list[str]:
    """The names of the fields that an option changes."""
    paths = earlier(model, name) or [_path(name.partition("=")[0])]
    return [re.sub(r"(^|\.)no_", r"\1", path).replace("_", "-") for path in paths]


def option(path: str) -> str:
    return "--" + path.replace("_", "-")


def described(model) -> str:
    """For `--help`."""
    words = [f"{option(slot)} {'|'.join(WORDS[slot])}" for slot in WORDS if hasattr(model, slot)]
    said = "Numbers inside of a part are reached with a dot: --positions rotary --positions.base 7."
    return f" A word chooses a part of the model: {', '.join(words)}. {said}" if words else ""


def _path(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _groups(words: list[str]) -> Iterator[list[str]]:
    """Each option with its values."""
    starts = [at for at, word in enumerate(words) if word.startswith("--") or at == 0]
    for start, end in itertools.pairwise([*starts, len(words)]):
        yield words[start:end]


def _named(part, slot: str, values: list[str]):
    """The part that a word names; how attention is computed is one of its numbers."""
    if not values:
        raise UserError(f"{option(slot)} needs a value")
    if values[0] not in WORDS[slot]:
        known = ", ".join(WORDS[slot])
        raise UserError(f"{option(slot)} can't be {values[0]!r}: choose one of {known}")
    if type(part) is Attention:
        return dataclasses.replace(part, function=values[0])
    return WORDS[slot][values[0]]


def _opened(part, path: list[str]):
    """The part with the optional ones that a path goes through."""
    name, *inner = path
    value, kind = getattr(part, name, None), optional_part(type(part), name)
    if value is None and kind:
        value = kind()
    if not dataclasses.is_dataclass(value):
        return part
    return _with(part, **{name: _opened(value, inner) if inner else value})


def _kind_at(part, path: list[str]) -> type | None:
    """The class of an optional part, if a path ends at one."""
    *outer, last = path
    for name in outer:
        part = getattr(part, name, None)
    return optional_part(type(part), last)


def _with(config, **values):
    """A config with other values, unchecked."""
    config = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config
