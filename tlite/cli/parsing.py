"""Dataclasses from the words of a command line, and what is wrong with these in one sentence."""

import contextlib
import dataclasses
import io
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

import tyro
import tyro.constructors
from tyro.constructors import StructConstructorSpec, StructFieldSpec, StructTypeInfo

from tlite.errors import UserError
from tlite.experiment_files import did_you_mean

GONE = {"--learning-rates": "--vary learning-rate 1e-3 3e-3 trains and compares several"}


def parse(kind: type, arguments: list[str], program: str, whose: str = "") -> Any:
    """An instance of a dataclass from the command line.

    Args:
        whose: whose options these are, where a class with others has read the command line before.

    Raises:
        UserError: an unknown option (the nearest is named), or a value that does not fit.
    """
    if whose:
        given = (word.split("=")[0].replace("_", "-") for word in arguments)
        known = {"--", *_options(kind)}
        foreign = [n for n in given if n[:2] == "--" and n.replace("--no-", "--") not in known]
        if foreign:
            raise UserError(f"there is no option {foreign[0]} for {whose}")
    value, unknown = parse_known(kind, arguments, program)
    if unknown and not unknown[0].startswith("-"):
        raise UserError(f"{unknown[0]!r} is one argument too many")
    if unknown:
        _check_gone(unknown[0])
        raise UserError(
            f"there is no option {unknown[0]}{did_you_mean(unknown[0], _options(kind))}"
        )
    return value


def _check_gone(word: str) -> None:
    """Raises a `UserError` for an option of version 0.2.0: it says what to do instead."""
    name = word.split("=")[0].replace("_", "-")
    if name in GONE:
        raise UserError(f"the option {name} is gone: {GONE[name]}")


def parse_known(kind: type, arguments: list[str], program: str) -> tuple[Any, list[str]]:
    """An instance of a dataclass, and the arguments that it has no place for."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), _wide(arguments):
            return tyro.cli(
                kind,
                args=arguments,
                prog=program,
                return_unknown_args=True,
                registry=REGISTRY,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    except SystemExit as stop:
        if stop.code:
            raise UserError(_first_sentence(complaint.getvalue())) from None
        raise


REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _function(kind: tyro.constructors.PrimitiveTypeInfo):
    """A function of the user's stands in a file: on the command line it can only be replaced."""
    if kind.type is not Callable:
        return None

    def refuse(words: list[str]) -> Callable:
        raise ValueError("a function of your own is handed over in an experiment's file")

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FUNCTION",
        instance_from_str=refuse,
        is_instance=callable,
        str_from_instance=lambda function: [function.__name__],
    )


@REGISTRY.struct_rule
def _model(info: StructTypeInfo) -> StructConstructorSpec | None:
    """A model's numbers and those of its parts, which have a dot: `positions.base`."""
    if not has_parts(info.default):
        return None
    return StructConstructorSpec(partial(_rebuilt, info.default), tuple(_numbers(info.default)))


def has_parts(config: Any) -> bool:
    """Whether it is the config of a model with parts, whose names are before their numbers'."""
    return hasattr(config, "EARLIER")


def _numbers(part: Any, prefix: str = "") -> Iterator[StructFieldSpec]:
    plain = StructTypeInfo.make(type(part), tyro.MISSING, in_union_context=False)
    for field in tyro.constructors.ConstructorRegistry.get_struct_spec(plain).fields:
        name, value = prefix + field.name, getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        elif not optional_part(type(part), field.name):
            kind = Annotated[field.type, tyro.conf.arg(name=name)]
            yield dataclasses.replace(field, name=name, type=kind, default=value)


def optional_part(kind: type, name: str) -> type | None:
    """The class of a part that a config may have in this field."""
    hint = get_type_hints(kind).get(name) if dataclasses.is_dataclass(kind) else None
    classes = filter(dataclasses.is_dataclass, get_args(hint))
    return next(classes, None) if type(None) in get_args(hint) else None


def _rebuilt(part: Any, **values: Any) -> Any:
    """A config with numbers for it and for the parts in it, all of which are checked."""
    inner: dict[str, dict[str, Any]] = defaultdict(dict)
    for name in [name for name in values if "." in name]:
        slot, _, number = name.partition(".")
        inner[slot][number] = values.pop(name)
    for slot, numbers in inner.items():
        try:
            values[slot] = _rebuilt(getattr(part, slot), **numbers)
        except ValueError as error:
            raise ValueError(f"{slot}: {error}") from error
    return dataclasses.replace(part, **values)


@contextlib.contextmanager
def _wide(arguments: list[str]) -> Iterator[None]:
    """Let tyro write what is wrong on one line; its help is as wide as the terminal."""
    before = os.environ.get("COLUMNS")
    if {"-h", "--help"}.isdisjoint(arguments):
        os.environ["COLUMNS"] = "9999"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = before


def _options(kind: Any, prefix: str = "--") -> list[str]:
    """Every option of a dataclass and of the instances in it."""
    names = []
    for field in dataclasses.fields(kind):
        if tyro.conf.Fixed in getattr(field.type, "__metadata__", ()):
            continue
        name, value = prefix + field.name.replace("_", "-"), getattr(kind, field.name, None)
        of_model = has_parts(kind) or prefix != "--"
        if not dataclasses.is_dataclass(value) or (of_model and field.name in _words()):
            names.append(name)
        if dataclasses.is_dataclass(value):
            names += _options(value, f"{name}." if of_model else "--")
    return names


def _words() -> Iterable[str]:
    """The parts that a word can name. Where there is a model, JAX has been imported."""
    from tlite.models.parts import WORDS

    return WORDS


OPTION = r"Error parsing (?:-\w/)?(--[\w.-]+): .*"  # and Python's or tyro's own words
COMPLAINTS = {
    r"Missing from (.*): [A-Z]+ (\w)([^;]*).*\. \(required\)": lambda m: (
        f"{m[1]} needs {m[2].lower()}{m[3]}"
    ),
    r"Missing value for argument '(.*?)'": lambda m: f"{m[1]} needs a value",
    r"invalid choice (.*) for argument '(.*?)'\. .* \((.*?),?\)": lambda m: (
        f"{m[2]} can't be {m[1]}: choose one of {m[3]}"
    ),
    rf"{OPTION}\{{(.*?)\}}\|FUNCTION could.* from \['(.*?)'\]": lambda m: (
        f"{m[1]} can't be {m[3]!r}: choose one of {m[2].replace(',', ', ')}"
    ),
    rf"{OPTION}int\(\) with base 10: (.*) - typing\.Literal\['(\w+)'\].*": lambda m: (
        f"{m[1]} must be a whole number or {m[3]}, not {m[2]}"
    ),
    rf"{OPTION}int\(\) with base 10: (.*)": lambda m: f"{m[1]} must be a whole number, not {m[2]}",
    rf"{OPTION}to float: (.*)": lambda m: f"{m[1]} must be a number, not {m[2]}",
    rf"{OPTION}integer string": lambda m: f"{m[1]} has too many digits",
    rf"{OPTION}valid parse for arguments: \[(.*)\]": lambda m: f"{m[1]} can't be {m[2]}",
}


def _first_sentence(box: str) -> str:
    """What stands in a box that tyro has drawn, up to its first rule, in our words."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()]
    text = " ".join(line for line in lines[1:] if line.strip("-"))  # the rules of an ASCII box
    text = re.split(r" Argument helptext:| For full helptext", text)[0]
    for pattern, words in COMPLAINTS.items():
        if found := re.match(pattern, text):
            return words(found)
    text = re.sub(r"^Error parsing ([\w.]+: )?", "", text)  # of a dataclass, not of an option
    return re.sub(r"'([^']{60})[^']*'", r"'\1...'", text)
