"""Checks of configs (frozen dataclasses), changes by dotted name, and configs as JSON."""

import dataclasses
import difflib
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tlite.user_code import describe_code, find_code, is_user_code


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
        kinds = alternatives(field.type)
        if any(get_origin(each) is Literal or each is bool for each in kinds):
            try:
                from_dict(field.type, getattr(config, field.name))
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from error


def to_dict(config) -> dict[str, Any]:
    """Return a dataclass as a dictionary for JSON, with its class's name as "kind".

    A user's class is the dictionary of `describe_code`, with "fields".
    """
    kind = type(config)
    values = {f.name: _to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if is_user_code(kind):
        return describe_code(kind) | {"fields": values}
    return {"kind": kind.__name__, **values}


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return tuple(map(_to_plain, value))
    return describe_code(value) if callable(value) else value


def from_dict(kind, value: Any):
    """Return the config of type `kind` that `to_dict` wrote as `value`.

    A component or a function that is one already is returned as it is.

    Raises:
        ValueError: a field is unknown, missing or of another type; it is named.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in (int, float) and hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    written = value.get("kind") if isinstance(value, dict) else None
    if origin in (Union, UnionType):
        for each in args:
            try:
                return from_dict(each, value)
            except ValueError:
                is_custom = written == "class" and dataclasses.is_dataclass(each)
                if is_custom or written == type_name(each):
                    raise
    elif dataclasses.is_dataclass(kind):
        if isinstance(value, kind) or _is_custom_config(value):
            return value
        if written == "class" and isinstance(value.get("fields"), dict):
            return _filled(find_code(value), value["fields"])
        if written == kind.__name__:
            return _filled(kind, value)
    elif kind is Callable:
        return value if callable(value) else find_code(value)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(from_dict(args[0], item) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {from_dict(args[0], k): from_dict(args[1], v) for k, v in value.items()}
    elif kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    elif type(value) is kind or (origin is Literal and type(value) is str and value in args):
        return value
    raise ValueError(f"expected {type_name(kind)}, not {reprlib.repr(written or value)}")


def _is_custom_config(value: Any) -> bool:
    is_config = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_config and is_user_code(type(value))


def type_name(kind) -> str:
    """Return the name of a type in messages: "int or None"."""
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if len(alternatives(kind)) > 1:
        return " or ".join(map(type_name, alternatives(kind)))
    names = {Callable: "function", NoneType: "None"}
    return names.get(kind) or getattr(kind, "__name__", str(kind))


def alternatives(kind) -> tuple:
    """Return the types of a union; of any other type a tuple of this type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _filled(kind: type, values: dict[str, Any]):
    hints, filled = get_type_hints(kind), {}
    values = {name: value for name, value in values.items() if name != "kind"}
    if unknown := values.keys() - {f.name for f in dataclasses.fields(kind)}:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    for name, value in values.items():
        try:
            filled[name] = from_dict(hints[name], value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return _create(kind, filled)


def _create(kind: type, values: dict[str, Any]):
    required = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory}
    if missing := required - values.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return kind(**values)


# Changes by dotted name


def override(
    config: Any, changes: Mapping[str, Any], convert: Callable[[Any, Any], Any] = from_dict
) -> Any:
    """Return a copy of a config with new values of some fields, which are checked together.

    >>> override(experiment, {"training.steps": 500, "model.width": 60, "model.num_heads": 6})
    >>> override(experiment, {"model.positions": "rotary", "model.positions.base": 7.0})

    Args:
        config: a dataclass, such as an experiment.
        changes: values by dotted name. A number leads into a tuple ("model.block.0.pre_norm"). A
            component is set before its fields, whatever their order; one that is None is created.
        convert: `convert(type, value)` returns the value for a field of this type.

    Raises:
        ValueError: no such field (the message has the nearest), a value of the wrong type, or
            values that are invalid together.
    """
    return _override(config, changes, "", convert)


def _override(config: Any, changes: Mapping[str, Any], prefix: str, convert: Callable) -> Any:
    """Change a dataclass, or create one from a class."""
    kind = config if isinstance(config, type) else type(config)
    hints, fields = get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind)}
    values = {n: getattr(config, n) for n, f in fields.items() if f.init and hasattr(config, n)}
    for name, inner in _group(changes).items():
        if name not in fields:
            raise ValueError(_no_field(config, prefix, name, next(iter(inner))))
        value, path = values.get(name), prefix + name
        values[name] = _change(fields[name], hints[name], value, inner, path, convert)
    try:
        return _create(kind, values)
    except ValueError as error:
        raise ValueError(f"{prefix[:-1]}: {error}" if prefix else str(error)) from error


def _change(field: dataclasses.Field, kind, value: Any, changes: dict, path: str, convert) -> Any:
    """Return the new value of a field, or of an item of its tuple, of type `kind`."""
    if "" in changes:
        value, changes = _set(field, kind, value, changes, path, convert)
    if not changes:
        return value
    if isinstance(value, tuple):
        return _change_items(field, kind, value, changes, path, convert)
    name = next(iter(changes)).partition(".")[0]
    if value is None:
        kinds = filter(dataclasses.is_dataclass, alternatives(kind))
        value = next((k for k in kinds if name in k.__dataclass_fields__), None)
    if not dataclasses.is_dataclass(value):
        raise ValueError(f"no field '{path}.{name}': {path} is {value!r}")
    return _override(value, changes, f"{path}.", convert)


def _set(field, kind, value: Any, changes: dict, path: str, convert) -> tuple[Any, dict]:
    """Return the value that is set, a component for a word, and the changes of its fields."""
    inner = {name: change for name, change in changes.items() if name}
    parse, word_field = word_parser(field, kind), field.metadata.get("word_field")
    try:
        new = convert(kind | str if parse else kind, changes[""])
        component = parse(new) if parse and isinstance(new, str) else new
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if word_field and component is not new and type(component) is type(value):
        return value, {word_field: changes[""]} | inner
    return component, inner


def _change_items(field, kind, items: tuple, changes: dict, path: str, convert) -> tuple:
    values = list(items)
    item_kind = next(get_args(k)[0] for k in alternatives(kind) if get_origin(k) is tuple)
    for index, inner in _group(changes).items():
        if not (index.isdecimal() and int(index) < len(items)):
            raise ValueError(f"no field '{path}.{index}': {path} is a tuple of {len(items)}")
        at, each = int(index), f"{path}.{index}"
        values[at] = _change(field, item_kind, items[at], inner, each, convert)
    return tuple(values)


def _group(changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group by the first name: {"a": 1, "a.b": 2} as {"a": {"": 1, "b": 2}}."""
    groups: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        groups.setdefault(name, {})[rest] = value
    return groups


def word_parser(field: dataclasses.Field, kind) -> Callable[[str], Any] | None:
    """Return the function that makes a component of a word, if the field accepts words.

    It is the field's metadata "parse"; or the class of an optional component whose first field
    holds a word: `scaling: RotaryScaling | None` accepts "yarn".
    """
    kinds = [each for each in alternatives(kind) if dataclasses.is_dataclass(each)]
    if "parse" in field.metadata or len(kinds) != 1 or NoneType not in alternatives(kind):
        return field.metadata.get("parse")
    first = alternatives(next(iter(get_type_hints(kinds[0]).values())))
    return kinds[0] if any(k is str or get_origin(k) is Literal for k in first) else None


def walk_fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field]]:
    """Yield (dotted name, component, field) of the fields of a config and of its components."""
    for field in dataclasses.fields(config):
        path, value = prefix + field.name, getattr(config, field.name, None)
        yield path, config, field
        items = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for index, item in items:
            if dataclasses.is_dataclass(item):
                yield from walk_fields(item, f"{path}." if index is None else f"{path}.{index}.")


def _no_field(config: Any, prefix: str, name: str, rest: str) -> str:
    """Return the message for an unknown field: the nearest name, here or in a component."""
    paths = [path for path, *_ in walk_fields(config)]
    paths.sort(key=lambda path: path.count("."), reverse=True)
    by_name = {path.rpartition(".")[2]: path for path in paths}
    path = ".".join(filter(None, [prefix + name, rest]))
    if near := difflib.get_close_matches(name, by_name, n=1):
        nearest = ".".join(filter(None, [prefix + by_name[near[0]], rest]))
        return f"no field {path!r}: did you mean {nearest!r}?"
    kind = config if isinstance(config, type) else type(config)
    names = ", ".join(f.name for f in dataclasses.fields(kind))
    return f"no field {path!r}: {kind.__name__} has {names or 'no fields'}"


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ": did you mean NAME?" for the nearest known name, or "" if none is near."""
    nearest = difflib.get_close_matches(word.partition("=")[0], [*known], n=1, cutoff=0.5)
    return f": did you mean {prefix}{nearest[0]}?" if nearest else ""
