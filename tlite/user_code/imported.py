"""Comparison of a module that Python has imported with the file that a run records for it.

The file may have been edited since the import, and the module's variables may have been set.
"""

import ast
import dis
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

SCALAR = bool | int | float | str | None
TYPES = (bool, int, float, str, type(None), tuple)


class RecordedSource:
    """Functions and plain values that the source of a file defines; it is not executed.

    Attributes:
        codes: code objects of functions by qualified name; several if it is defined several times.
        values: variables of the module that are set once, to a literal; `f.x` for a default of a
            function and an attribute of a class.
        attributes: names of attributes that the module sets, maybe those of another module.
    """

    def __init__(self, content: bytes):
        tree = ast.parse(content)
        tree.body = [each for each in tree.body if not _is_main_guard(each)]
        code = compile(tree, "", "exec", dont_inherit=True)
        self.codes: dict[str, list[CodeType]] = {}
        for each in _inner_codes(code):
            self.codes.setdefault(each.co_qualname, []).append(each)
        stores = Counter(_stored(code, "STORE_NAME"))
        computed = {name for name in stores if stores[name] > 1}
        computed.update(n for each in _inner_codes(code) for n in _stored(each, "STORE_GLOBAL"))
        self.values = {
            name: value
            for name, value in _literals(tree.body)
            if name.partition(".")[0] not in computed
        }
        self.attributes = {*_stored(code, "STORE_ATTR")}


def _stored(code: CodeType, operation: str) -> list[str]:
    """Return the names that a code object sets by an operation of Python's bytecode."""
    return [i.argval for i in dis.get_instructions(code) if i.opname == operation]


def find_change(
    function: Any, modules: Iterable[tuple[ModuleType, RecordedSource]]
) -> tuple[ModuleType, str] | None:
    """Return the first difference of what a function uses from the source; None: none.

    Args:
        function: a function or class of one of the modules.
        modules: modules of the program with the sources that the run records.

    Returns:
        the module, and the start of a sentence that ends with the name of its file.
    """
    modules = [*modules]
    attributes = {name for _, source in modules for name in source.attributes}
    names, pending = {function.__qualname__}, [function.__qualname__]
    while pending:
        name = pending.pop()
        for module, source in modules:
            if name not in vars(module):
                continue
            live = vars(module)[name]
            if change := _changed_value(name, live, source.values, attributes):
                return module, change
            for each in _functions(live, module):
                codes = source.codes.get(each.__code__.co_qualname, [])
                if codes and _without_lines(each.__code__) not in map(_without_lines, codes):
                    return module, f"the code of {name} is not that of"
                new = _names(each.__code__) - names
                names |= new
                pending += new
    return None


def _changed_value(name: str, live: Any, values: dict[str, Any], attributes: set[str]) -> str:
    """Describe a variable, default or class attribute that differs from the source; "": none.

    Args:
        attributes: names that modules set as attributes, which may have any value.
    """
    bound = {name: live}
    if isinstance(live, type):
        bound = {f"{name}.{n}": v for n, v in vars(live).items() if type(v) in TYPES}  # no Enum
    elif isinstance(live, FunctionType):
        parameters = inspect.signature(live, follow_wrapped=False).parameters.values()
        bound = {f"{name}.{p.name}": p.default for p in parameters}
    for each, value in bound.items():
        is_literal = each in values and each.rpartition(".")[2] not in attributes
        if is_literal and repr(value) != repr(values[each]):
            return f"{each} is {value!r:.60}, but {values[each]!r:.60} in"
    return ""


def _functions(value: Any, module: ModuleType) -> list[FunctionType]:
    """Return a function of a module without its decorators, or the methods of a class of it."""
    values = vars(value).values() if isinstance(value, type) else [value]
    functions = [inspect.unwrap(each) for each in values if callable(each)]
    return [f for f in functions if isinstance(f, FunctionType) and f.__globals__ is vars(module)]


def _is_main_guard(statement: ast.stmt) -> bool:
    is_if = isinstance(statement, ast.If)
    return is_if and ast.unparse(statement.test) == "__name__ == '__main__'"


def _literals(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of variables, class attributes and defaults that are plain literals."""
    for each in body:
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(each, ast.ClassDef) and not prefix:
            yield from _literals(each.body, f"{each.name}.")
        elif isinstance(each, ast.FunctionDef) and not prefix:
            positional = [a.arg for a in (*each.args.posonlyargs, *each.args.args)]
            pairs += zip(reversed(positional), reversed(each.args.defaults), strict=False)
            pairs += zip([a.arg for a in each.args.kwonlyargs], each.args.kw_defaults, strict=True)
            pairs = [(f"{each.name}.{name}", node) for name, node in pairs]
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            pairs = [(prefix + t.id, each.value) for t in targets if isinstance(t, ast.Name)]
        for name, node in pairs:
            try:
                value = ast.literal_eval(node) if node else ...
            except ValueError:
                continue
            if all(isinstance(v, SCALAR) for v in (value if isinstance(value, tuple) else [value])):
                yield name, value


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects of all functions and classes inside of a code object."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inner_codes(each)


def _names(code: CodeType) -> set[str]:
    return {name for each in (code, *_inner_codes(code)) for name in each.co_names}


def _without_lines(code: CodeType) -> CodeType:
    """Return the code without what depends on where it is in its file."""
    constants = (_without_lines(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(
        co_consts=tuple(constants), co_firstlineno=1, co_linetable=b"", co_filename=""
    )
