"""Configs as JSON and back."""

import dataclasses
import math
import reprlib
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tlite.user_code import describe_code, find_code, is_own


def check_size(name: str, value: int, most: int = 2**31 - 1) -> None:
    """Raises a ValueError for a size or a count that is below 1, or more than can be counted to."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, not {value}")


def validate_fields(
    config, *, sizes: str = "", counts: str = "", positive: str = "", rates: str = ""
) -> None:
    """Check the words and booleans of a dataclass, and the numbers in the fields named.

    Args:
        sizes: at least 1, or None.
        counts: at least 0.
        positive: finite numbers above 0, or None.
        rates: dropout rates, in [0, 1).

    Raises:
        ValueError: a value is not allowed; field and value are named.
    """
    _validate_words(config)
    for name in sizes.split():
        if getattr(config, name) is not None:
            check_size(name, getattr(config, name))
    for name in counts.split():
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative, not {getattr(config, name)}")
        check_size(name, max(getattr(config, name), 1))
    for name in positive.split():
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, not {value}")
    for name in rates.split():
        if not 0 <= getattr(config, name) < 1:
            label = "dropout rate" if name == "dropout" else name.replace("_", " ")
            raise ValueError(f"the {label} must be in [0, 1), not {getattr(config, name)}")


def _validate_words(config) -> None:
    for field in dataclasses.fields(config):
        kind, value = field.type, getattr(config, field.name)
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        if not any(get_origin(each) is Literal or each is bool for each in kinds):
            continue
        if not (callable(value) and Callable in kinds):
            try:
                from_dict(kind, value)
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from error


def to_dict(config) -> dict[str, Any]:
    """A dataclass as a dictionary that JSON can hold, with its class's name under "kind".

    One of a user's own class is what `describe_code` says of the class, with its "fields".
    """
    kind = type(config)
    values = {f.name: _to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if is_own(kind):
        return describe_code(kind) | {"fields": values}
    return {"kind": kind.__name__, **values}


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return tuple(map(_to_plain, value))
    return describe_code(value) if callable(value) else value


def from_dict(kind, value: Any):
    """The config of type `kind` that `to_dict` wrote as `value`.

    Raises:
        ValueError: a field is unknown, missing or of another type; it is named.
    """
    origin, args = get_origin(kind), get_args(kind)
    written = value.get("kind") if isinstance(value, dict) else None
    if origin in (Union, UnionType):
        for each in args:
            try:
                return from_dict(each, value)
            except ValueError:
                own = written == "class" and dataclasses.is_dataclass(each)
                if own or written == _name(each):
                    raise
    elif dataclasses.is_dataclass(kind):
        if written == "class" and isinstance(value.get("fields"), dict):
            return _filled(find_code(value), value["fields"])
        if written == kind.__name__:
            return _filled(kind, value)
    elif kind is Callable:
        return find_code(value)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(from_dict(args[0], item) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {from_dict(args[0], k): from_dict(args[1], v) for k, v in value.items()}
    elif kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    elif type(value) is kind or (origin is Literal and type(value) is str and value in args):
        return value
    raise ValueError(f"expected {_name(kind)}, not {reprlib.repr(written or value)}")


def _name(kind) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_name, get_args(kind)))
    return "function" if kind is Callable else getattr(kind, "__name__", str(kind))


def _filled(kind: type, values: dict[str, Any]):
    hints, filled = get_type_hints(kind), {}
    given = {name: value for name, value in values.items() if name != "kind"}
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := given.keys() - fields.keys():
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    required = {name for name, f in fields.items() if f.default is f.default_factory}
    if missing := required - given.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    for name, value in given.items():
        try:
            filled[name] = from_dict(hints[name], value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return kind(**filled)
