"""What is told of a model's parts: which attention it has, and what is the user's own."""

import dataclasses
from collections.abc import Iterator

from tlite.models import Attention
from tlite.own_code import is_own, name_of


def named_parts(config) -> Iterator[tuple[str, str]]:
    """Name and what is told: of attention always, of the user's functions and parts if any."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name
        if not dataclasses.is_dataclass(value):
            if callable(value):
                yield name, name_of(value)
        elif is_own(value):
            yield name, name_of(type(value))
        elif isinstance(value, Attention):
            yield name, name_of(value.function)
        else:
            for inner, told in named_parts(value):
                yield name if inner == "function" else inner, told
