"""Source of functions that are defined in a notebook or in Python's prompt, as one Python file.

The file has the function, the functions, classes and plain values of the notebook that it uses,
and the imports of these. Cells are read from `linecache`, where IPython keeps the source of each.
"""

import ast
import functools
import inspect
import linecache
import symtable
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from tlite.user_code.library import closure_values

FILE = "notebook.py"
"""Name of the file in a run's records and in messages."""
SCALAR = bool | int | float | str | bytes | None
PLAIN = SCALAR | tuple | list | dict
Definition = ast.FunctionDef | ast.ClassDef


class Cell(NamedTuple):
    """Where a function or a class is defined: its statement, and the cell around it."""

    source: str
    statements: list[ast.stmt]
    definition: Definition

    @property
    def texts(self) -> list[str]:
        """The definition with its decorators, and the attributes that its cell sets on it."""
        lines = self.source.splitlines(keepends=True)
        texts = []
        for each in self.statements:
            if each is self.definition or _sets_attribute(each, self.definition.name):
                start = min(n.lineno for n in (each, *getattr(each, "decorator_list", ())))
                texts.append("".join(lines[start - 1 : each.end_lineno]).rstrip() + "\n")
        return texts


def is_notebook_code(value: Any) -> bool:
    """True for a function or a class of a notebook: of `__main__`, which has no file."""
    main = sys.modules.get("__main__")
    is_main = getattr(value, "__module__", None) == "__main__"
    return is_main and callable(value) and getattr(main, "__file__", None) is None


def read_notebook_source(value: Callable) -> str:
    """Return a Python file that defines a function or a class of a notebook as the notebook does.

    Raises:
        ValueError: it is not on the top level of a cell, or it uses a value that can't be written
            into a file, such as an array.
    """
    imports: set[str] = set()
    values: dict[str, str] = {}
    definitions: dict[str, Cell] = {}
    _add_definition(value, imports, values, definitions)
    texts = [text for name in definitions for text in definitions[name].texts]
    heads = ["".join(sorted(imports)), "".join(values[name] for name in sorted(values))]
    return "\n\n".join(filter(None, [*heads, *texts]))


def find_changed_value(value: Any, copy: Any, name: str, seen: set[int]) -> str:
    """Return a description of a value that was bound by a definition and is another in its copy.

    Compared are the plain values of defaults, of closures and of the attributes of classes.

    Args:
        copy: the definition, executed again.
        name: name of `value` for the description.
        seen: the ids of objects that were compared before.

    Returns:
        "" if there is none.
    """
    if isinstance(value, SCALAR) or isinstance(copy, SCALAR):
        is_same = repr(value) == repr(copy)
        return "" if is_same else f"{name} was {value!r:.60} and would be {copy!r:.60} now"
    if id(value) in seen:
        return ""
    seen.add(id(value))
    copies = _bound_values(copy)
    changes = (
        find_changed_value(each, copies[key], key if isinstance(key, str) else name, seen)
        for key, each in _bound_values(value).items()
        if key in copies
    )
    return next(filter(None, changes), "")


def _bound_values(value: Any) -> dict[Any, Any]:
    """Return the values that a function, a class, a partial or a container holds, by name."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, functools.partial):
        return dict(enumerate((value.func, *value.args))) | value.keywords
    if isinstance(value, type):
        names = [n for n, v in vars(value).items() if callable(v) or not n.startswith("__")]
        return {name: vars(value)[name] for name in names}
    if isinstance(value, FunctionType):
        parameters = inspect.signature(value, follow_wrapped=False).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return defaults | closure_values(value)
    inner = getattr(value, "__wrapped__", getattr(value, "fget", None))
    return {} if inner is None else _bound_values(inner)


def _add_definition(
    value: Callable, imports: set[str], values: dict[str, str], definitions: dict[str, Cell]
) -> None:
    """Add a definition after those that it uses; mutual recursion ends at the first."""
    namespace = vars(sys.modules["__main__"])
    name, cell = value.__name__, _find_cell(value)
    definitions[name] = cell
    for used in _global_names("".join(cell.texts)):
        if used in definitions or used not in namespace:
            continue
        other = namespace[used]
        if is_notebook_code(other) and getattr(other, "__name__", None) == used:
            _add_definition(other, imports, values, definitions)
        elif text := _import_statement(used, other):
            imports.add(text)
        else:
            values[used] = f"{used} = {_plain_text(other, used, name)}\n"
    definitions[name] = definitions.pop(name)


def _find_cell(value: Callable) -> Cell:
    name, function = value.__name__, inspect.unwrap(value)
    if value.__qualname__ != name or name == "<lambda>":
        raise ValueError(
            f"{value.__qualname__} can't be recorded: define it by def on the top level of a cell"
        )
    for source, line in _sources(function):
        statements = _parse(source)
        for each in reversed(statements):
            if not isinstance(each, Definition) or each.name != name:
                continue
            if line not in (0, _first_line(each)):
                continue
            if function is not value and not each.decorator_list:
                raise ValueError(f"{name} can't be recorded: decorate it where it is defined")
            return Cell(source, statements, each)
    raise ValueError(
        f"{name} can't be recorded: define it under this name in a file or in a cell of a notebook"
    )


def _sources(value: Callable) -> Iterator[tuple[str, int]]:
    """Yield the sources that may define a function or class, and the line of it (0: unknown)."""
    if isinstance(value, FunctionType):
        code = value.__code__
        yield "".join(linecache.getlines(code.co_filename)), code.co_firstlineno
        return
    for method in vars(value).values():
        if isinstance(method, FunctionType):
            yield "".join(linecache.getlines(method.__code__.co_filename)), 0
    for cell in reversed(vars(sys.modules["__main__"]).get("In", [])):
        yield cell, 0


def _first_line(node: Definition) -> int:
    return min(each.lineno for each in (node, *node.decorator_list))


def _parse(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):
        return []


def _sets_attribute(statement: ast.stmt, name: str) -> bool:
    """True for `name.attribute = ...`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    owners = [t.value for t in targets if isinstance(t, ast.Attribute)]
    return any(isinstance(owner, ast.Name) and owner.id == name for owner in owners)


def _global_names(source: str) -> list[str]:
    """Return the names of the module that a source reads, and does not define."""
    top = symtable.symtable(source, FILE, "exec")
    names = {s.get_name() for s in top.get_symbols() if s.is_referenced() and not s.is_assigned()}
    tables = top.get_children()
    while tables:
        table = tables.pop()
        names |= {s.get_name() for s in table.get_symbols() if s.is_global()}
        tables += table.get_children()
    defined = {s.get_name() for s in top.get_symbols() if s.is_assigned()}
    return sorted(names - defined)


def _import_statement(name: str, value: Any) -> str:
    """Return the statement that binds a name to a module or to a value of one; "": none."""
    if isinstance(value, ModuleType):
        text = f"import {value.__name__}"
        return f"{text}\n" if value.__name__ == name else f"{text} as {name}\n"
    module = getattr(value, "__module__", None) or ""
    if module == "__main__" or module.startswith("__code_"):  # of a file that tlite has executed
        return ""
    for source in (module.partition(".")[0], module):
        for each in (getattr(value, "__name__", name), name):
            if getattr(sys.modules.get(source), each, None) is value:
                alias = "" if each == name else f" as {name}"
                return f"from {source} import {each}{alias}\n"
    return ""


def _plain_text(value: Any, name: str, user: str) -> str:
    text = repr(value)
    try:
        is_plain = isinstance(value, PLAIN) and ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        is_plain = False
    if not is_plain:
        raise ValueError(
            f"{user} uses {name} of the notebook ({type(value).__name__}), which a run can't "
            f"record: make it inside of {user}, or bind numbers by functools.partial"
        )
    return text
