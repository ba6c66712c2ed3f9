"""Which names of tlite are public, and its docstrings as Markdown with references; for griffe."""

import ast
import re
from collections import defaultdict
from contextlib import suppress

import griffe

TOKENS = re.compile(r"`([^`\n]+)`|[*<\[]")  # what Markdown would read in prose, and names


def public_names(package: griffe.Module) -> dict[str, dict[str, list[str]]]:
    """Return the public names of each package, by the module that defines them.

    They are defined in the package's `__init__`, or imported there from its modules. A name that
    tlite exports too is documented in its own package only.
    """
    lists = {name: ast.literal_eval(str(package[name].value)) for name in ("FOLDERS", "FUNCTIONS")}
    names = {"tlite": defaultdict(list)}
    for name in sorted(lists["FOLDERS"]):
        folder, modules = package[name], defaultdict(list)
        defined = [member.path for member in folder.members.values() if not member.is_alias]
        for path in [*defined, *folder.imports.values()]:
            module, _, name = path.rpartition(".")
            if name[0] != "_" and f"{module}.".startswith(f"{folder.path}."):
                entry = package[path.removeprefix("tlite.")]
                if entry.is_function or entry.is_class or (entry.is_attribute and entry.docstring):
                    modules[module].append(name)
        names[folder.path] = {m: _in_order(package, m, modules[m]) for m in modules}
    for name, module in lists["FUNCTIONS"].items():
        if not any(name in modules.get(module, ()) for modules in names.values()):
            names["tlite"][module].append(name)
    return names


def _in_order(package: griffe.Module, home: str, names: list[str]) -> list[str]:
    """Sort names by their line in the file."""
    return sorted(names, key=lambda name: package[f"{home}.{name}".removeprefix("tlite.")].lineno)


def referred(entry: griffe.Object, name: str, package: griffe.Module) -> str | None:
    """The path of what a name in a docstring stands for, unless that is an argument."""
    head, dot, rest = name.partition(".")
    if entry.is_function and head in entry.parameters:
        return None
    paths = [name.removeprefix("tlite.")] if dot else []
    with suppress(griffe.NameResolutionError):
        paths.insert(0, f"{entry.resolve(head)}{dot}{rest}".removeprefix("tlite."))
    for path in paths:
        with suppress(KeyError, griffe.GriffeError):
            found = package[path]
            if dot or not found.is_module:  # one may be called like an argument
                return found.canonical_path
    return None


def markdown(entry: griffe.Object, package: griffe.Module) -> str:
    """Its docstring: examples are fenced, formulas stay as written, what has an entry is linked."""

    def token(match: re.Match) -> str:
        if match[1] is None:
            return {"<": "&lt;"}.get(match[0], f"\\{match[0]}")
        path = referred(entry, match[1], package)
        return f'<autoref identifier="{path}" optional>{match[0]}</autoref>' if path else match[0]

    blocks = entry.docstring.value.split("\n\n")
    for number, block in enumerate(blocks):
        if block.startswith(">>> "):
            blocks[number] = f"```pycon\n{block}\n```"
        elif not all(line.startswith("    ") for line in block.splitlines()):
            blocks[number] = TOKENS.sub(token, block)
    return "\n\n".join(blocks)


class Docstrings(griffe.Extension):
    """Rewrites every docstring, once all are read."""

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        left = [pkg] if pkg.name == "tlite" else []
        while left:
            entry = left.pop()
            if entry.docstring:
                entry.docstring.value = markdown(entry, pkg)
            left += [member for member in entry.members.values() if not member.is_alias]
