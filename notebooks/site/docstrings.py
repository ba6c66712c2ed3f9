"""Which names of tlite are public, and its docstrings as Markdown with references; for griffe."""

import ast
import re
from collections import defaultdict
from contextlib import suppress

import griffe

TOKENS = re.compile(r"`([^`\n]+)`|[*<\[]")  # what Markdown would read in prose, and names


def rooms(package: griffe.Module) -> dict[str, dict[str, list[str]]]:
    """The public names of each room, by the module that defines them.

    They are its own, and what it imports from its own files.
    """
    lists = {name: ast.literal_eval(str(package[name].value)) for name in ("FOLDERS", "FUNCTIONS")}
    found = {"tlite": {home: [name] for name, home in lists["FUNCTIONS"].items()}}
    for name in sorted(lists["FOLDERS"]):
        room, homes = package[name], defaultdict(list)
        own = [member.path for member in room.members.values() if not member.is_alias]
        for path in [*own, *room.imports.values()]:
            home, _, name = path.rpartition(".")
            if name[0] != "_" and f"{home}.".startswith(f"{room.path}."):
                entry = package[path.removeprefix("tlite.")]
                if entry.is_function or entry.is_class or (entry.is_attribute and entry.docstring):
                    homes[home].append(name)
        found[room.path] = {home: _in_order(package, home, homes[home]) for home in homes}
    return found


def _in_order(package: griffe.Module, home: str, names: list[str]) -> list[str]:
    """As they stand in the file."""
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
