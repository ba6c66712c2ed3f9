"""References to functions of optax and JAX, for config.json.

A function is named by its module and name. A function that a factory of the library has returned,
such as `optax.cosine_decay_schedule(1.0, 500)`, is named by the factory and its arguments.
"""

import contextlib
import dis
import functools
import importlib
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

LIBRARIES = ("optax", "jax.nn")
"""Packages whose functions a config may name; none of the functions reads or writes files."""
FACTORIES = "schedule", "decay", "jax.nn.initializers."
"""A config may call functions whose names contain one of these, with arguments."""


def is_library_code(value: Any) -> bool:
    """True for a function of `LIBRARIES`, and for one that a factory of them has returned."""
    module = getattr(value, "__module__", None) or ""
    return callable(value) and f"{module}.".startswith(("optax.", "jax.nn.", "jax._src.nn."))


def describe_library_code(value: Callable) -> dict[str, Any]:
    """Return the reference to a library's function as a dictionary for JSON.

    Raises:
        ValueError: the function can't be found by its name, or made again by its factory.
    """
    module, name = value.__module__, value.__qualname__
    if "<locals>" not in name:
        reference = {"kind": "library", "name": f"{_public_module(module, name)}.{name}"}
        if _import_function(reference["name"]) is not value:
            raise ValueError(f"{module}.{name} is another function: a config can't name this one")
        return reference
    factory_name = name.partition(".<locals>")[0]
    try:
        factory = getattr(importlib.import_module(module), factory_name)
        arguments, names = closure_values(value), inspect.signature(factory).parameters
        kwargs = {n: _describe_argument(arguments[n]) for n in names if n in arguments}
        reference = describe_library_code(factory) | {"args": [], "kwargs": kwargs}
        is_same = _comparable(find_library_code(reference)) == _comparable(value)
    except (ValueError, TypeError, AttributeError):
        is_same = False
    if not is_same:
        raise ValueError(
            f"the arguments of {factory_name}(...) can't be recorded: write a function on the top "
            f"level of your file, def schedule(step): return optax.{factory_name}(...)(step)"
        )
    return reference


def find_library_code(reference: Any) -> Callable:
    """Return the function that `describe_library_code` has described.

    Raises:
        ValueError: `reference` is of another form, or names no function of `LIBRARIES`.
    """
    if not isinstance(reference, dict) or reference.get("kind") != "library":
        raise ValueError(f"expected a library's function, not {reference!r:.80}")
    name = reference.get("name")
    function = _import_function(name)
    if "args" not in reference:
        return function
    if not any(part in name for part in FACTORIES):
        raise ValueError(
            f"{name} is not a schedule or an initializer, which alone may be called with arguments "
            "in a config: call it in a function on the top level of your file"
        )
    try:
        args, kwargs = map(find_arguments, (reference["args"], reference["kwargs"]))
        result = function(*args, **kwargs)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name} can't be called with the arguments of the config") from error
    if not callable(result):
        raise ValueError(f"{name} returns no function")
    return result


def _import_function(path: Any) -> Callable:
    parts = path.split(".") if isinstance(path, str) else []
    is_inside = any(f"{path}.".startswith(f"{library}.") for library in LIBRARIES)
    if not parts or not is_inside or any(part.startswith("_") for part in parts):
        raise ValueError(f"{path!r:.80} is not a function of {' or '.join(LIBRARIES)}")
    value: Any = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:depth]))
            except ImportError as error:
                raise ValueError(f"there is no {path}") from error
    if not callable(value) or not is_library_code(value):
        raise ValueError(f"{path} is not a function of {' or '.join(LIBRARIES)}")
    return value


def _public_module(module: str, name: str) -> str:
    """Return the shortest module that has the function: optax for optax._src.alias.adamw."""
    function = getattr(importlib.import_module(module), name, None)
    public = ".".join(part for part in module.split(".") if not part.startswith("_"))
    for candidate in ("optax", "optax.contrib", "jax.nn", "jax.nn.initializers", public):
        try:
            exported = getattr(importlib.import_module(candidate), name, None)
        except ImportError:
            continue
        if exported is function and function is not None:
            return candidate
    return module


def _describe_argument(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_describe_argument(each) for each in value]
    if is_library_code(value):
        return describe_library_code(value)
    if hasattr(value, "item") and getattr(value, "size", 2) == 1:
        return value.item()
    raise ValueError(f"an argument {value!r:.60} of a function can't be saved")


def _has_list(value: Any) -> bool:
    """Return True for a list, or a tuple that contains one at any depth."""
    return isinstance(value, list) or (isinstance(value, tuple) and any(map(_has_list, value)))


def describe_arguments(values: Any) -> Any:
    """Return positional or keyword arguments as JSON, in which tuples are lists."""
    for value in values.values() if isinstance(values, dict) else values:
        if _has_list(value):
            raise ValueError(
                f"an argument {value!r:.60} of a partial contains a list: write a tuple"
            )
    if isinstance(values, dict):
        return {name: _describe_argument(value) for name, value in values.items()}
    return [_describe_argument(value) for value in values]


def find_arguments(values: Any) -> Any:
    """Return the arguments that `describe_arguments` has described."""

    def find(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(map(find, value))
        return find_library_code(value) if isinstance(value, dict) else value

    if isinstance(values, dict):
        return {name: find(value) for name, value in values.items()}
    return [find(value) for value in values]


def closure_values(function: Any) -> dict[str, Any]:
    """Return the variables of a closure by name, without those that are not set."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not set: a branch of the factory was not taken
            values[name] = cell.cell_contents
    return values


@functools.lru_cache
def instruction_names(code: CodeType, *operations: str) -> frozenset[str]:
    """Return the names that a code object and those inside of it use by operations of `dis`."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in operations}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(names.union(*(instruction_names(each, *operations) for each in inner)))


def _comparable(value: Any) -> Any:
    """Return nested lists and dicts that are equal if a function's code and variables are equal."""
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(each) for each in value]
    if isinstance(value, FunctionType):
        return [value.__code__, _comparable(closure_values(value))]
    return value.item() if hasattr(value, "item") and getattr(value, "size", 2) == 1 else value
