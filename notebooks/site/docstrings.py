"""Public names of tlite, and a griffe extension that converts its docstrings to Markdown."""

import ast
import re
from collections import defaultdict
from contextlib import suppress

import griffe

TOKENS = re.compile(r"`([^`\n]+)`|[*<\[]")  # names, and Markdown syntax in prose


def public_names(package: griffe.Module) -> dict[str, dict[str, list[str]]]:
    """Return the public names of each package, by the module that defines them.

    A package defines them in `__init__` or imports them there. Names that tlite exports too are
    documented in their package only.
    """
    lists = {name: ast.literal_eval(str(package[name].value)) for name in ("FOLDERS", "MODULES")}
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
        for module, entries in modules.items():
            home = package[module.removeprefix("tlite.")]
            entries.sort(key=lambda name, home=home: home[name].lineno)
        names[folder.path] = dict(modules)
    for module, exported in lists["MODULES"].items():
        for name in exported.split():
            if not any(name in modules.get(module, ()) for modules in names.values()):
                names["tlite"][module].append(name)
    return names


def resolve(entry: griffe.Object, name: str, package: griffe.Module) -> str | None:
    """Return the path of a name in a docstring, or None for arguments and unknown names."""
    head, dot, rest = name.partition(".")
    if entry.is_function and head in entry.parameters:
        return None
    paths = [name.removeprefix("tlite.")] if dot else []
    with suppress(griffe.NameResolutionError):
        paths.insert(0, f"{entry.resolve(head)}{dot}{rest}".removeprefix("tlite."))
    for path in paths:
        with suppress(KeyError, griffe.GriffeError):
            target = package[path]
            if dot or not target.is_module:  # a module may have the name of an argument
                return target.canonical_path
    return None


def markdown(entry: griffe.Object, package: griffe.Module) -> str:
    """Return a docstring with fenced examples, unchanged formulas and links to entries."""

    def convert(match: re.Match) -> str:
        if match[1] is None:
            return {"<": "&lt;"}.get(match[0], f"\\{match[0]}")
        path = resolve(entry, match[1], package)
        return f'<autoref identifier="{path}" optional>{match[0]}</autoref>' if path else match[0]

    blocks = entry.docstring.value.split("\n\n")
    for number, block in enumerate(blocks):
        if block.startswith(">>> "):
            blocks[number] = f"```pycon\n{block}\n```"
        elif not all(line.startswith("    ") for line in block.splitlines()):
            blocks[number] = TOKENS.sub(convert, block)
    return "\n\n".join(blocks)


class Docstrings(griffe.Extension):
    """Convert every docstring after all are loaded."""

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        entries = [pkg] if pkg.name == "tlite" else []
        while entries:
            entry = entries.pop()
            if entry.docstring:
                entry.docstring.value = markdown(entry, pkg)
            entries += [member for member in entry.members.values() if not member.is_alias]
