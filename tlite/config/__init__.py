"""Configs are frozen dataclasses; this turns them into JSON and back.

Nothing is run, but a file that the user has named for the functions of one's own in a config.
"""

import dataclasses
import reprlib
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tlite.config import own_code


def to_dict(config) -> dict[str, Any]:
    """A dataclass as a dictionary that JSON can hold, with its class's name under "kind".

    One of a user's own class is what `own_code` says of the class, with its "fields".
    """
    kind = type(config)
    values = {f.name: _to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if own_code.is_own(kind):
        return own_code.describe(kind) | {"fields": values}
    return {"kind": kind.__name__, **values}


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return tuple(map(_to_plain, value))
    return own_code.describe(value) if callable(value) else value


def from_dict(kind, values: Any):
    """The config of type `kind` that `to_dict` wrote as `values`.

    A field that once had another name says so: `field(metadata={"was": "..."})`.

    Raises:
        ValueError: a field is unknown, missing or of another type; it is named.
    """
    if _is_own(values) and any(map(dataclasses.is_dataclass, get_args(kind) or [kind])):
        reference = {name: value for name, value in values.items() if name != "fields"}
        return _filled(own_code.find(reference), values["fields"])
    if get_origin(kind) in (Union, types.UnionType):
        return _from_union(get_args(kind), values)
    if not dataclasses.is_dataclass(kind):
        return _plain(kind, values)
    if not isinstance(values, dict) or values.get("kind") != kind.__name__:
        other = values.get("kind") if isinstance(values, dict) else values
        raise ValueError(f"expected a {kind.__name__}, not {reprlib.repr(other)}")
    return _filled(kind, values)


def _is_own(values: Any) -> bool:
    """Whether it is what `to_dict` writes of a user's own class."""
    return (
        isinstance(values, dict)
        and values.get("kind") == "class"
        and isinstance(values.get("fields"), dict)
    )


def _filled(kind: type, values: dict[str, Any]):
    hints, given = get_type_hints(kind), of_today(kind, values)
    if unknown := given.keys() - {f.name for f in dataclasses.fields(kind)}:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    required = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory}
    if missing := required - given.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return kind(**{name: _field(name, hints[name], value) for name, value in given.items()})


def of_today(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Fields that `to_dict` wrote, of earlier versions too, as they are named today.

    Raises:
        ValueError: one says what there is no more.
    """
    earlier = {f.metadata["was"]: f.name for f in dataclasses.fields(kind) if "was" in f.metadata}
    given = {earlier.get(name, name): value for name, value in values.items() if name != "kind"}
    return kind.read_earlier(given) if hasattr(kind, "read_earlier") else given


def _field(name: str, kind, value: Any):
    try:
        return from_dict(kind, value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _from_union(kinds: tuple, values: Any):
    for kind in kinds:
        try:
            return from_dict(kind, values)
        except ValueError as error:
            if isinstance(values, dict) and values.get("kind") == _name(kind):
                raise error
    names = " or ".join(map(_name, kinds))
    raise ValueError(f"expected {names}, not {reprlib.repr(values)}")


def _name(kind) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    return "function" if kind is Callable else getattr(kind, "__name__", str(kind))


def _plain(kind, value: Any):
    if kind is Callable:
        return own_code.find(value)
    if get_origin(kind) is Literal:
        fits = type(value) is str and value in get_args(kind)
    elif get_origin(kind) is tuple:
        fits = isinstance(value, list | tuple)
        value = tuple(from_dict(get_args(kind)[0], v) for v in value) if fits else value
    elif get_origin(kind) is dict:
        fits = isinstance(value, dict)
        keys, values = get_args(kind)
        value = {_plain(keys, k): _plain(values, v) for k, v in value.items()} if fits else value
    elif kind is float and type(value) is int and abs(value) < 2**1000:
        value, fits = float(value), True
    else:
        fits = type(value) is (type(None) if kind is None else kind)
    if not fits:
        raise ValueError(f"expected {_name(kind)}, not {reprlib.repr(value)}")
    return value


def check_size(name: str, value: int, most: int = 2**31 - 1) -> None:
    """Raises a ValueError for a size or a count that is below 1, or more than can be counted to."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, not {value}")
