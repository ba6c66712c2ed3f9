"""Checks of configs (frozen dataclasses), changes by dotted name, and configs as JSON."""

import dataclasses
import difflib
import functools
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from tlite.user_code import describe_code, find_code, is_user_code


def check_size(name: str, value: int, most: int = 2**31 - 1) -> None:
    """Raise a ValueError for a size or a count that is below 1 or above `most`."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, not {value}")


class Config:
    """Base class of frozen dataclasses whose fields are checked when an instance is made.

    Fields of type `Literal`, bool or int (or a union with one of them), and tuples of int or str,
    are checked and converted: integers of NumPy to int, lists to tuples. The class keywords name
    fields whose range is checked too, as in
    `class Dropout(Config, rates="rate")`. A subclass adds to those of its bases.

    Args:
        sizes: at least 1, or None.
        counts: at least 0.
        positive: finite numbers above 0, or None.
        nonnegative: finite numbers of at least 0, or None.
        rates: dropout rates, in [0, 1).
    """

    _checks: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs (check, field name)."""

    def __init_subclass__(cls, **checks: str):
        for check, names in checks.items():
            if check not in ("sizes", "counts", "positive", "nonnegative", "rates"):
                raise TypeError(f"{cls.__name__}: unknown check {check}")
            for name in names.split():
                cls._checks += ((check, name),)

    def __post_init__(self):
        """Raise a `ValueError` for a value that is not allowed; field and value are named."""
        for name, kind in field_types(type(self)).items():
            kinds = {get_origin(each) or each for each in alternatives(kind)}
            is_tuple = get_origin(kind) is tuple and get_args(kind)[0] in (int, str)
            if is_tuple or kinds & {bool, int, Literal}:
                try:
                    value = from_dict(kind, getattr(self, name))
                    object.__setattr__(self, name, value)  # NumPy's int, a list
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
        for check, name in self._checks:
            # Counts and rates must not be None: the comparisons below raise a TypeError.
            if (value := getattr(self, name)) is None and check not in ("counts", "rates"):
                continue
            if check == "counts" and value < 0:
                raise ValueError(f"{name} must not be negative, not {value}")
            if check == "sizes" or (check == "counts" and value > 0):
                check_size(name, value)
            elif check == "positive" and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, not {value}")
            elif check == "nonnegative" and not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative or infinite, not {value}")
            elif check == "rates" and not 0 <= value < 1:
                label = "dropout rate" if name == "dropout" else name.replace("_", " ")
                raise ValueError(f"the {label} must be in [0, 1), not {value}")


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, also of those that are annotated by strings."""
    fields = dataclasses.fields(kind)
    try:
        hints = get_type_hints(kind)
    except NameError:  # a type that is imported for type checkers only
        return {field.name: field.type for field in fields}
    return {field.name: hints[field.name] for field in fields}


def resolve_word(field: str, words: Mapping[str, Any], arguments: str, value: Any) -> Any:
    """Return what a word stands for, or a function as it is.

    Args:
        field: name of the field, for messages.
        words: what each word stands for.
        arguments: what the function must be a function of.
    """
    if isinstance(value, str):
        if value not in words:
            raise ValueError(f"{field} must be one of {', '.join(words)}, not {value!r}")
        return words[value]
    if isinstance(value, type) or not callable(value):
        raise ValueError(f"{field} must be a word or a function of {arguments}: {value!r}")
    return value


def to_dict(config: Any) -> Any:
    """Return a config, or the value of a field, for JSON; its class's name is "kind".

    A user's class or function is the dictionary of `describe_code`; a class has "fields".
    """
    if isinstance(config, tuple):
        return tuple(map(to_dict, config))
    kind = type(config)
    if not dataclasses.is_dataclass(kind):
        return describe_code(config) if callable(config) else config
    values = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if is_user_code(kind):
        return describe_code(kind) | {"fields": values}
    return {"kind": kind.__name__, **values}


def from_dict(kind, value: Any):
    """Return the config of type `kind` that `to_dict` wrote as `value`.

    A component or a function that is one already is returned as it is.

    Raises:
        ValueError: a field is unknown, missing or of another type; it is named.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in (int, float) and hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    name = value.get("kind") if isinstance(value, dict) else None
    if origin in (Union, UnionType):
        for each in args:
            try:
                return from_dict(each, value)
            except ValueError:
                is_custom = name == "class" and dataclasses.is_dataclass(each)
                if is_custom or (name and name == getattr(each, "__name__", "")):
                    raise
    elif dataclasses.is_dataclass(kind):
        is_config = dataclasses.is_dataclass(type(value))
        if isinstance(value, kind) or (is_config and is_user_code(type(value))):
            return value
        if name == "class" and isinstance(value.get("fields"), dict):
            return _create(find_code(value), value["fields"])
        if name == kind.__name__:
            return _create(kind, {field: v for field, v in value.items() if field != "kind"})
    elif kind is Callable:
        return value if callable(value) else _create_callable(value)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(from_dict(args[0], item) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {from_dict(args[0], k): from_dict(args[1], v) for k, v in value.items()}
    elif kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    elif type(value) is kind or (origin is Literal and type(value) is str and value in args):
        return value
    raise ValueError(f"expected {type_name(kind)}, not {reprlib.repr(name or value)}")


def _create_callable(value: Any) -> Callable:
    """Return a user's function, or an instance of a callable dataclass, from JSON."""
    code = find_code(value)
    return _create(code, value["fields"]) if "fields" in value else code


def _create(kind: type, values: Mapping[str, Any]):
    """Return a dataclass whose fields have values from JSON."""
    hints, fields = field_types(kind), {}
    for name, value in values.items():
        if name not in kind.__dataclass_fields__:
            raise ValueError(f"{kind.__name__} has no field {name}")
        try:
            fields[name] = from_dict(hints[name], value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    required = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory}
    if missing := required - fields.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return kind(**fields)


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


# Changes by dotted name


def override(
    config: Any,
    changes: Mapping[str, Any],
    convert: Callable[[Any, Any], Any] = from_dict,
    prefix: str = "",
) -> Any:
    """Return a copy of a config with new values of some fields, which are checked together.

    >>> override(experiment, {"training.steps": 500, "model.width": 60, "model.num_heads": 6})
    >>> override(experiment, {"model.positions": "rotary", "model.positions.base": 7.0})

    Args:
        config: a dataclass, such as an experiment; or a dataclass type, to create an instance.
        changes: values by dotted name. A component is set before its fields, whatever their order;
            one that is None is created.
        convert: `convert(type, value)` returns the value for a field of this type.
        prefix: dotted name of the config in messages, with a dot at its end.

    Raises:
        ValueError: no such field (the message has the nearest), a value of the wrong type, or
            values that are invalid together.
    """
    kind = config if isinstance(config, type) else type(config)
    hints, fields, values = field_types(kind), kind.__dataclass_fields__, {}
    groups: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():  # {"a": 1, "a.b": 2} as {"a": {"": 1, "b": 2}}
        name, _, rest = path.partition(".")
        groups.setdefault(name, {})[rest] = value
    for name, inner in groups.items():
        if name not in fields:
            raise ValueError(_no_field(config, prefix, name, next(iter(inner))))
        value, path = getattr(config, name, None), prefix + name
        values[name] = _change(fields[name], hints[name], value, inner, path, convert)
    try:
        return _create(kind, values) if config is kind else dataclasses.replace(config, **values)
    except ValueError as error:
        raise ValueError(f"{prefix[:-1]}: {error}" if prefix else str(error)) from error


def convert_value(
    config: Any, name: str, value: Any, convert: Callable[[Any, Any], Any] = from_dict
) -> Any:
    """Return a value as the field of this dotted name has it.

    Args:
        convert: as in `override`.
    """
    values = []

    def convert_and_keep(kind, source):
        values.append(convert(kind, source))
        return values[-1]

    override(config, {name: value}, convert_and_keep)
    return values[-1]


def _change(field: dataclasses.Field, kind, value: Any, changes: dict, path: str, convert) -> Any:
    """Return the new value of a field of type `kind`."""
    if "" in changes:  # the value itself
        source, parse = changes.pop(""), word_parser(field, kind)
        new = source
        try:
            new = convert(kind | str if parse else kind, source)
            is_word = parse is not None and isinstance(new, str)
            new = parse(new) if is_word else new
        except ValueError as error:
            is_converted = new is not source or isinstance(source, str | dict)
            if parse and "words" in field.metadata and not is_converted:
                parse(source)  # its message says what the field may be
            raise ValueError(f"{path}: {error}") from error
        if is_word and type(new) is type(value) and "word_field" in field.metadata:
            changes = {field.metadata["word_field"]: source} | changes
        else:
            value = new
    if not changes:
        return value
    name = next(iter(changes)).partition(".")[0]
    if value is None:
        kinds = filter(dataclasses.is_dataclass, alternatives(kind))
        value = next((k for k in kinds if name in k.__dataclass_fields__), None)
    if not dataclasses.is_dataclass(value):
        raise ValueError(f"no field '{path}.{name}': {path} is {value!r:.80}")
    return override(value, changes, convert, f"{path}.")


def word_parser(field: dataclasses.Field, kind) -> Callable[[str], Any] | None:
    """Return the function that makes a component of a word, if the field accepts words.

    It is the field's metadata "parse"; or the class of an optional component whose first field
    holds a word: `scaling: RotaryScaling | None` accepts "yarn".
    """
    if "parse" in field.metadata:
        return field.metadata["parse"]
    kinds = list(filter(dataclasses.is_dataclass, alternatives(kind)))
    if len(kinds) != 1 or NoneType not in alternatives(kind):
        return None
    name = dataclasses.fields(kinds[0])[0].name  # hints begin with those of base classes
    first = alternatives(field_types(kinds[0])[name])
    return kinds[0] if str in first or Literal in map(get_origin, first) else None


def walk_fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field]]:
    """Yield (dotted name, component, field) of the fields of a config and of its components."""
    for field in dataclasses.fields(config):
        yield prefix + field.name, config, field
        if dataclasses.is_dataclass(value := getattr(config, field.name, None)):
            yield from walk_fields(value, f"{prefix}{field.name}.")


def _no_field(config: Any, prefix: str, name: str, rest: str) -> str:
    """Return the message for an unknown field, with the nearest one here or in a component."""
    paths = sorted((path for path, *_ in walk_fields(config)), key=lambda path: -path.count("."))
    by_name = {path.rpartition(".")[2]: path for path in paths}  # prefers the outermost
    rest = f".{rest}" if rest else ""
    if near := difflib.get_close_matches(name, by_name, n=1):
        advice = f"did you mean '{prefix}{by_name[near[0]]}{rest}'?"
    else:
        kind = config if isinstance(config, type) else type(config)
        names = ", ".join(field.name for field in dataclasses.fields(kind))
        advice = f"{kind.__name__} has {names or 'no fields'}"
    return f"no field '{prefix}{name}{rest}': {advice}"


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ": did you mean NAME?" for the nearest known name, or "" if none is near."""
    nearest = difflib.get_close_matches(word.partition("=")[0], [*known], n=1, cutoff=0.5)
    return f": did you mean {prefix}{nearest[0]}?" if nearest else ""
