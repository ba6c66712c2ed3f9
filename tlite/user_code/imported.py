"""Comparison of a module that Python has imported with the file that a run records for it.

The file may have been edited since the import, and the module's variables may have been set.
Functions that a decorator may have changed, and attributes of classes, are not compared.
"""

import ast
import dis
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from os.path import basename
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tlite.user_code.library import instruction_names

SCALAR = bool | int | float | str | None
PRESERVING = {"dataclass", "jit"}
"""Decorators that leave the code of functions and methods as it is."""


class RecordedSource:
    """Functions and plain values that the source of a file defines; it is not executed.

    Attributes:
        codes: code objects of functions by qualified name, without those that a decorator may have
            changed; several if a function is defined several times.
        values: variables of the module that are set once, to a literal, and literal defaults of
            functions, as a tuple.
        attributes: names of attributes that the module sets, maybe those of another module.
    """

    def __init__(self, content: bytes):
        tree = ast.parse(content)
        tree.body = [each for each in tree.body if not _is_main_guard(each)]
        code = compile(tree, "", "exec", dont_inherit=True)
        decorated = {node.name for node in ast.walk(tree) if _is_decorated(node)}
        self.codes: dict[str, list[CodeType]] = {}
        for each in _inner_codes(code):
            if decorated.isdisjoint(each.co_qualname.split(".")):
                self.codes.setdefault(each.co_qualname, []).append(each)
        stores = Counter(i.argval for i in dis.get_instructions(code) if i.opname == "STORE_NAME")
        computed = decorated | instruction_names(code, "STORE_GLOBAL")
        once = {name for name in stores if stores[name] == 1} - computed
        self.values = {name: value for name, value in _literals(tree.body) if name in once}
        self.attributes = instruction_names(code, "STORE_ATTR")


def find_change(function: Any, modules: Iterable[tuple[ModuleType, RecordedSource]]) -> str:
    """Describe the first difference of what a function uses from the source; "": none.

    Args:
        function: a function or class of one of the modules.
        modules: modules of the program with the sources that the run records.
    """
    sources = {id(vars(module)): (module, source) for module, source in modules}
    attributes = {name for _, source in sources.values() for name in source.attributes}
    pending = [(vars(sys.modules[function.__module__]), function.__qualname__)]
    seen = set()
    while pending:
        namespace, name = pending.pop()
        if (id(namespace), name) in seen or id(namespace) not in sources or name not in namespace:
            continue
        seen.add((id(namespace), name))
        module, source = sources[id(namespace)]
        live = namespace[name]
        is_compared = name in source.values and name not in attributes and not callable(live)
        recorded = source.values.get(name)
        if is_compared and repr(live) != repr(recorded):
            return f"{name} is {live!r:.60}, but {recorded!r:.60} in {basename(module.__file__)}"
        for each in _functions(live):
            module, source = sources.get(id(each.__globals__), (None, None))
            if source is None:
                continue
            if not _is_recorded(each, source):
                return f"{name} differs from its definition in {basename(module.__file__)}"
            pending += _variables(each)
    return ""


def _is_recorded(function: FunctionType, source: RecordedSource) -> bool:
    """Return False if the source defines a function of this name differently."""
    name = function.__code__.co_qualname
    codes = source.codes.get(name, [function.__code__])
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    has_defaults = repr(defaults) == repr(source.values.get(name, defaults))
    return has_defaults and _without_lines(function.__code__) in map(_without_lines, codes)


def _functions(value: Any) -> list[FunctionType]:
    """Return a function without its decorators, or the methods of a class."""
    values = vars(value).values() if isinstance(value, type) else [value]
    functions = [inspect.unwrap(each) for each in values if callable(each)]
    return [each for each in functions if isinstance(each, FunctionType)]


def _variables(function: FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield namespace and name of each variable `x` or `module.x` that a function reads."""
    namespace = function.__globals__
    for code in (function.__code__, *_inner_codes(function.__code__)):
        for first, second in pairwise(dis.get_instructions(code)):
            if first.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            yield namespace, first.argval
            value = namespace.get(first.argval)
            if isinstance(value, ModuleType) and second.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                yield vars(value), second.argval


def _is_decorated(node: ast.AST) -> bool:
    """True for a definition with a decorator that may change a function's code."""
    decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
    names = {text.partition("(")[0].rpartition(".")[2] for text in decorators}
    return not names <= PRESERVING


def _is_main_guard(statement: ast.stmt) -> bool:
    is_if = isinstance(statement, ast.If)
    return is_if and ast.unparse(statement.test) == "__name__ == '__main__'"


def _literals(body: list[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of variables that are plain literals, and defaults of functions."""
    for each in body:
        if isinstance(each, ast.FunctionDef):
            defaults = [*each.args.defaults, *filter(None, each.args.kw_defaults)]
            names, node = [each.name], ast.Tuple(defaults)
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names, node = [t.id for t in targets if isinstance(t, ast.Name)], each.value
        else:
            continue
        try:
            value = ast.literal_eval(node)
        except ValueError:
            continue
        if all(isinstance(v, SCALAR) for v in (value if isinstance(value, tuple) else [value])):
            yield from ((name, value) for name in names)


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects of all functions and classes inside of a code object."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inner_codes(each)


def _without_lines(code: CodeType) -> CodeType:
    """Return the code without what depends on where it is in its file."""
    constants = (_without_lines(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(
        co_consts=tuple(constants), co_firstlineno=1, co_linetable=b"", co_filename=""
    )
