"""Dataclasses from the words of a command line, and what is wrong with these in one sentence."""

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import tyro
import tyro.constructors

from tlite.errors import UserError
from tlite.experiment_files import did_you_mean


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
        raise UserError(
            f"there is no option {unknown[0]}{did_you_mean(unknown[0], _options(kind))}"
        )
    return value


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


def _options(kind: Any) -> list[str]:
    """Every option of a dataclass and of the instances in it."""
    names = []
    for field in dataclasses.fields(kind):
        if tyro.conf.Fixed in getattr(field.type, "__metadata__", ()):
            continue
        value = getattr(kind, field.name, None)
        inner = dataclasses.is_dataclass(value)
        names += ["--" + field.name.replace("_", "-"), *(_options(value) if inner else [])]
    return names


OPTION = r"Error parsing (?:-\w/)?(--[\w-]+): .*"  # and Python's or tyro's own words
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
