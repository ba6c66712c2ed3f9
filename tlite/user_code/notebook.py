"""Source of functions that are defined in a notebook or in Python's prompt, as one Python file.

The file has the function, the functions, classes and plain values of the notebook that it uses,
and the imports of these. Cells are read from `linecache`, where IPython keeps the source of each.
"""

import ast
import inspect
import linecache
import symtable
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from tlite.user_code.library import closure_values, instruction_names

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


def named_values(source: bytes, module: ModuleType) -> set[str]:
    """Return the scalars and tuples that definitions of a module capture by name, as texts."""
    names = instruction_names(compile(source, FILE, "exec", dont_inherit=True), "LOAD_NAME")
    values = [vars(module)[name] for name in names if name in vars(module)]
    return {repr(value) for value in values if isinstance(value, SCALAR | tuple)}


def find_changed_value(
    value: Any, copy: Any, named: set[str], seen: frozenset = frozenset()
) -> str:
    """Describe the first captured value (default, closure variable, class attribute) that differs.

    Args:
        copy: the definition, executed again.
        named: texts of the values that definitions capture by name; another value may differ
            because it is random or counts calls.
        seen: the ids of functions that were compared before.
    """
    copies = _captured_values(copy)
    for name, old in _captured_values(value).items():
        new = copies.get(name)
        if isinstance(new, SCALAR | tuple) and repr(new) in named and repr(old) != repr(new):
            now = f"its cell would now capture {name}={new!r:.60}"
            return f"captured {name}={old!r:.60}, but {now}"
        is_new = callable(old) and id(old) not in seen
        if is_new and (change := find_changed_value(old, new, named, seen | {id(old)})):
            return change
    return ""


def _captured_values(value: Any) -> dict[str, Any]:
    """Return defaults and closure variables of a function, or attributes of a class, by name.

    Variables that a function assigns, and attributes that a class's methods set, are left out.
    """
    if isinstance(value, type):
        codes = [v.__code__ for v in vars(value).values() if isinstance(v, FunctionType)]
        assigned = {name for code in codes for name in instruction_names(code, "STORE_ATTR")}
        public = {n: v for n, v in vars(value).items() if callable(v) or not n.startswith("__")}
        return {name: public[name] for name in public.keys() - assigned}
    if isinstance(value, FunctionType):
        parameters = inspect.signature(value, follow_wrapped=False).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        closure, assigned = closure_values(value), instruction_names(value.__code__, "STORE_DEREF")
        return defaults | {name: closure[name] for name in closure.keys() - assigned}
    inner = getattr(value, "__wrapped__", None)
    return {} if inner is None else _captured_values(inner)


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
