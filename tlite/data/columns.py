"""Which columns of a table hold the texts, their classes, or the two sides of a translation."""

import re
from collections.abc import Iterable, Sequence

from tlite.errors import UserError

TEXT = (
    "text", "review", "sentence", "content", "body", "comment", "message", "document", "question",
    "tweet", "review_body", "review_text", "reviewtext",
)  # fmt: skip
CLASS = (
    "label", "labels", "class", "category", "stars", "rating", "star_rating", "overall",
    "sentiment", "polarity", "topic", "intent", "emotion", "target",
)  # fmt: skip
SIDES = ("source", "target"), ("src", "tgt"), ("src", "trg")
CODE = re.compile(r"[a-z]{2,3}([_-][a-z]{2,4})?")  # of a language: en, de_at
LANGUAGES = (
    "arabic", "chinese", "czech", "danish", "dutch", "english", "finnish", "french", "german",
    "greek", "hebrew", "hindi", "hungarian", "indonesian", "italian", "japanese", "korean",
    "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "spanish", "swahili",
    "swedish", "thai", "turkish", "ukrainian", "vietnamese", "deutsch", "español", "français",
)  # fmt: skip
MOST_CLASSES = 1000


def text_column(names: Sequence[str], where: str, label: str = "") -> str:
    """The column with the text: the one that is called so; of two the one that is not the class.

    Raises:
        UserError: there is none, or there are several.
    """
    others = [name for name in names if name != label]
    left = [name for name in others if label or _plain(name) not in CLASS]
    return _the_one(_known(others, TEXT) or left, names, "the text", "--text-column", where)


def class_column(names: Sequence[str], text: str, where: str) -> str:
    """The column with the class: the one that is called so; of two the one that is not the text.

    Raises:
        UserError: there is none, or there are several.
    """
    others = [name for name in names if name != text]
    return _the_one(_known(others, CLASS) or others, names, "the class", "--label-column", where)


def known_sides(names: Sequence[str]) -> tuple[str, str] | None:
    """The columns with a sentence and its translation, if two are called so, or are languages."""
    plain = {_plain(name): name for name in names}
    for left, right in SIDES:
        if left in plain and right in plain:
            return plain[left], plain[right]
    languages = [name for name in names if _is_language(name)]
    if len(languages) > 2:  # id is Indonesian, but most often a number
        languages = [name for name in languages if _plain(name) != "id"]
    return (languages[0], languages[1]) if len(languages) == 2 else None


def pair_columns(names: Sequence[str], source: str, target: str, where: str) -> tuple[str, str]:
    """The columns with a sentence and its translation, of which one may be given.

    Those that are known; or, of two, the first and the second.

    Raises:
        UserError: there are none, or more.
    """
    if source and source == target:
        raise UserError(f"the source and the target can't both be the column {source!r}")
    given = {source, target} - {""}
    free = [name for name in names if name not in given]
    if (known := known_sides(names)) and given <= {*known}:
        free = [name for name in known if name not in given]
    if len(free) != 2 - len(given):
        options = {"--source-column": source, "--target-column": target}
        missing = " and ".join(option for option, name in options.items() if not name)
        columns = ", ".join(map(repr, names))
        raise UserError(f"{where} has the columns {columns}: say which with {missing}")
    left = iter(free)
    return source or next(left), target or next(left)


def has_known_names(names: Sequence[str]) -> bool:
    """Whether one is a column's known name, or all are languages."""
    known = {*TEXT, *CLASS, *LANGUAGES, "id", *(name for pair in SIDES for name in pair)}
    return bool(known & {*map(_plain, names)}) or all(map(_is_language, names))


def in_order(values: Iterable[str]) -> list[str]:
    """Numbers by their size, words by the alphabet."""
    values = list(values)
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _plain(name: str) -> str:
    return str(name).strip().lower().replace(" ", "_").replace("-", "_")


def _is_language(name: str) -> bool:
    return _plain(name) in LANGUAGES or CODE.fullmatch(_plain(name)) is not None


def _known(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Those of the names that are known; the first of the known ones goes before all others."""
    found = [name for name in names if _plain(name) in known]
    first = [name for name in found if _plain(name) == known[0]]
    return first or found


def _the_one(found: Sequence[str], names: Iterable[str], what: str, option: str, where: str) -> str:
    if len(found) == 1:
        return found[0]
    told = f"no column that is known to be {what}, only {', '.join(map(repr, names))}"
    if found and _plain(found[0]) in TEXT + CLASS:
        told = f"several columns that may be {what}, {', '.join(map(repr, found))}"
    raise UserError(f"{where} has {told}: say {option}")
