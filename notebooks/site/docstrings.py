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


def documented(package: griffe.Module) -> set[str]:
    """The paths of all that has an entry."""
    found = set()
    for room, homes in rooms(package).items():
        found.add(room)
        for home, names in homes.items():
            found.add(home)
            for name in names:
                entry = package[f"{home}.{name}".removeprefix("tlite.")]
                found |= {entry.path} | {
                    member.path
                    for member in (entry.members if entry.is_class else {}).values()
                    if member.docstring and (member.name[0] != "_" or member.name == "__call__")
                }
    return found


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


def markdown(text: str, refer) -> str:
    """A docstring in which examples are fenced, formulas stay as written, and names are linked."""

    def token(match: re.Match) -> str:
        if match[1] is None:
            return {"<": "&lt;"}.get(match[0], f"\\{match[0]}")
        path = refer(match[1])
        return f"[{match[0]}][{path}]" if path else match[0]

    blocks = text.split("\n\n")
    for number, block in enumerate(blocks):
        if block.startswith(">>> "):
            blocks[number] = f"```pycon\n{block}\n```"
        elif not all(line.startswith("    ") for line in block.splitlines()):
            blocks[number] = TOKENS.sub(token, block)
    return "\n\n".join(blocks)


class Docstrings(griffe.Extension):
    """Rewrites every docstring, once all are read."""

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        if pkg.name != "tlite":
            return
        entries = documented(pkg)

        def rewrite(entry: griffe.Object) -> None:
            def refer(name: str) -> str | None:
                path = referred(entry, name, pkg)
                return path if path in entries else None

            if entry.docstring:
                entry.docstring.value = markdown(entry.docstring.value, refer)
            for member in entry.members.values():
                if not member.is_alias:
                    rewrite(member)

        rewrite(pkg)
