"""What differs between configs, as rows of text."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tlite.comparison.entries import Entry

ABSENT = "–"


def differing_fields(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """By the field's name what it is in each of the entries; only those that differ.

    A field of a model's part is "norm.epsilon"; the function that it calls is "norm" itself.
    """
    differ = _differ("", [entry.experiment for entry in entries])
    names = Counter(_short(path) for path, _ in differ)
    found = {}
    for path, values in differ:
        name, texts = _short(path), list(map(shown, values))
        if len(set(texts)) == 1:  # functions of one name, in files that have changed
            texts = [
                f"{text} ({_digest(value)})" for text, value in zip(texts, values, strict=True)
            ]
        found[name if names[name] == 1 else path] = texts
    return found


def _short(path: str) -> str:
    """The last name of a path; of what is in a model's part those after the model."""
    if path.startswith("model."):
        return path.removeprefix("model.").removesuffix(".function")
    return path.rpartition(".")[2]


def _differ(path: str, values: list[Any]) -> list[tuple[str, list[Any]]]:
    """(path, values) of what is not the same in all; parts of one kind are looked into."""
    if all(value == values[0] for value in values):
        return []
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1 or kinds <= {"", None, "function"}:
        return [(path, values)]
    values = [value.get("fields", value) for value in values]
    names = dict.fromkeys(name for value in values for name in value)
    found = []
    for name in names:
        inner = f"{path}.{name}" if path else name
        found += _differ(inner, [value.get(name) for value in values])
    return found


def _kind(value: Any) -> Any:
    """What two values have in common if one looks into them: of the user's class all but fields."""
    if not isinstance(value, dict):
        return ""
    if value.get("kind") == "class":
        return tuple((name, v) for name, v in value.items() if name != "fields")
    return value.get("kind")


def shown(value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or ABSENT
    if isinstance(value, dict) and value.get("kind") == "function":
        return f"{value.get('name')} of {value.get('file')}"
    if isinstance(value, dict):
        own = value.get("kind") == "class"
        name = f"{value.get('name')} of {value.get('file')}" if own else value.get("kind", "")
        fields = value.get("fields", {}) if own else value
        given = {n: v for n, v in fields.items() if n != "kind" and v is not None}
        inner = ", ".join(f"{n} {shown(v)}" for n, v in given.items())
        return name + (f"({inner})" if inner else "")
    return str(value) if value != "" else ABSENT


def _digest(value: Any) -> str:
    return str(value.get("sha256", ""))[:8] if isinstance(value, dict) else repr(value)
