"""Dataclasses from the words of a command line: tyro reads them, and tells what is wrong."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tlite.errors import UserError

REGISTRY = ConstructorRegistry()
MARKERS = tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands


class WrongOption(UserError):
    """What tyro says of a command line, in a box of its own."""


def parse(kind: type, arguments: list[str], program: str, **settings: Any) -> Any:
    """An instance of a dataclass from the command line, as `tyro.cli` makes it.

    Args:
        settings: what else `tyro.cli` is told.

    Raises:
        WrongOption: an option is unknown, or a value does not fit.
    """
    box = io.StringIO()
    settings = {"registry": REGISTRY, "config": MARKERS} | settings
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(kind, args=arguments, prog=program, **settings)
    except SystemExit as stop:
        if stop.code:
            raise WrongOption(box.getvalue()) from None
        raise


@REGISTRY.primitive_rule
def _function(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """A function of the user's stands in a file: on the command line it can only be replaced."""
    if kind.type is not Callable:
        return None

    def refuse(words: list[str]) -> Callable:
        raise ValueError("a function of your own is handed over in an experiment's file")

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FUNCTION",
        instance_from_str=refuse,
        is_instance=callable,
        str_from_instance=lambda function: [function.__name__],
    )
