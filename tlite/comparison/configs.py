"""What differs between configs, as rows of text."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tlite.comparison.entries import Entry

ABSENT = "–"


def differing_fields(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """By the field's name what it is in each of the entries; only those that differ."""
    differ = _differ("", [entry.experiment for entry in entries])
    names = Counter(path.rpartition(".")[2] for path, _ in differ)
    found = {}
    for path, values in differ:
        name, texts = path.rpartition(".")[2], list(map(shown, values))
        if len(set(texts)) == 1:  # functions of one name, in files that have changed
            texts = [
                f"{text} ({_digest(value)})" for text, value in zip(texts, values, strict=True)
            ]
        found[name if names[name] == 1 else path] = texts
    return found


def _differ(path: str, values: list[Any]) -> list[tuple[str, list[Any]]]:
    """(path, values) of what is not the same in all; parts of one kind are looked into."""
    if all(value == values[0] for value in values):
        return []
    kinds = {value.get("kind") if isinstance(value, dict) else "" for value in values}
    if len(kinds) > 1 or kinds <= {"", None, "function"}:
        return [(path, values)]
    names = dict.fromkeys(name for value in values for name in value)
    found = []
    for name in names:
        inner = f"{path}.{name}" if path else name
        found += _differ(inner, [value.get(name) for value in values])
    return found


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
        inner = ", ".join(f"{n} {shown(v)}" for n, v in value.items() if n != "kind")
        return value.get("kind", "") + (f"({inner})" if inner else "")
    return str(value) if value != "" else ABSENT


def _digest(value: Any) -> str:
    return str(value.get("sha256", ""))[:8] if isinstance(value, dict) else repr(value)
