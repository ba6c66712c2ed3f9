"""Project Gutenberg's Shakespeare as plain play text: speakers and speeches, little else.

`prepare` reads the complete works (#100) or one play, in the layout of any edition, and keeps the
plays. Speakers and headings are recognised by the structure of the text:

- a work begins at its title from the global contents; it is a play if an "ACT I" is in it;
- a play begins at its last "ACT I" (the ones before are contents) or the prologue before it;
- a speaker is a label in capitals with a full stop, at the indentation most labels have. In the
  modern layout it stands alone, in the older one the speech follows on the line.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

_NUMBERS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
            "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
            "eighteen", "nineteen", "twenty"]  # fmt: skip
_ORDINALS = ["", "FIRST", "SECOND", "THIRD", "FOURTH", "FIFTH", "SIXTH"]
_PLAIN = str.maketrans("‘’‛`´ʼ“”„‟«»–—―−‐‑", "'" * 6 + '"' * 6 + "—" * 4 + "--")

_NUMBER = r"(?:[IVXLC]+|\d+)\b"
_ACT = re.compile(rf"\W*(?:[A-Z ]+ )?(?:ACT|Act) +{_NUMBER}\W*(?:$|SCENE|Scene|PROLOGUE|EPILOGUE)")
_ACT_ONE = re.compile(r"\W*(?:[A-Z ]+ )?(?:ACT|Act) +[I1]\b\W*(?:$|(?:SCENE|Scene) +[I1]\b)")
_SCENE = re.compile(rf"(?:.*\bACT.*)?\W*(?:SCENE|Scene) +{_NUMBER}\W*(.*)")
_PART = re.compile(r"\W*(?:THE )?(PROLOGUE|EPILOGUE|INDUCTION)\b\W*(?:(?:THE )?\1\W*)?$")
_FIELD = re.compile(r" *[A-Z]+_\w+\|")  # "ACT_2|SC_7", a database field left in the text
_CONTENTS = re.compile(r"\W*(?:Table of )?Contents\W*$", re.I)
_PERSONS = re.compile(
    r"\W*(?:Dramatis Person(?:ae|a)|(?:The )?Persons (?:Represented|of the Play)\b.*"
    r"|(?:The )?(?:Names of (?:all )?)?(?:the )?Actors['’]?(?: Names)?"
    r"|Characters(?: in the play)?)\W*$",
    re.I,
)
_FINIS = re.compile(r"\W*(?:THE END|FINIS)\W*$")
_HEADER = re.compile(
    r"^\W*(?:START OF (?:THE|THIS) PROJECT GUTENBERG|END\W*THE SMALL PRINT).*$", re.M | re.I
)
_FOOTER = re.compile(
    r"^\W*(?:END OF (?:THE |THIS )?PROJECT GUTENBERG|START:? FULL LICENSE|\* CONTENT NOTE)",
    re.M | re.I,
)

_STAGE = re.compile(
    r"\W*(?:An? |Here )?(?:Re-?enter|Enters?|Exit|Exeunt|Exuent|Flourish|Alarums?|Sennet"
    r"|Excursions|Hautboys|Cornets|Trumpets?|Drums?|Thunder)\b",
    re.I,
)
_LEAVE = re.compile(r"(?:Exit|Exeunt|Exuent)\b")
_NAME = r"[A-Z](?:[A-Z'-]*[A-Z])?"
_LABEL = (  # LYSANDER, FIRST LORD, MRS. FORD, PAGE, SHALLOW and SLENDER, PRINCE OF Morocco
    rf"(?=[A-Z &-]*[A-Z]{{2}})(?:[A-Z]{{2,3}}\. )?{_NAME}"
    rf"(?:,? (?:{_NAME}|&C?|(?:of|de|and|the)\b))*(?: [A-Z][a-z]+)?"
)
_SPEECH = re.compile(rf"( *)({_LABEL})\.+(?= |$)(.*)")


class Layout(NamedTuple):
    """Typesetting of a play: indentation of its labels, the labels, speech on their line or not."""

    indent: int
    labels: frozenset[str]
    inline: bool


def prepare(text: str) -> str:
    """Return the plays in a text: "LYSANDER." on a line, his lines below, a blank line between.

    Everything else goes: licence, contents, titles, persons, act and scene headings, poems. The
    characters left are printable ASCII without digits, the newline, and the em dash.

    Raises:
        ValueError: there is no play in the text.
    """
    found = plays(text)
    if not found:
        raise ValueError("no play found: the text has no 'ACT I' followed by speeches")
    return "\n\n".join(found) + "\n"


def plays(text: str) -> list[str]:
    """Return the plays in a Gutenberg text, one string each, as `prepare` joins them."""
    return [
        play for work in _split_works(_to_plain_characters(text)) if (play := _extract_play(work))
    ]


def _to_plain_characters(text: str) -> str:
    """Replace letters, quotes, dashes and spaces by plain ones; digits stay."""
    text = re.sub(r"\r\n?|\u2028|\u2029|\f|\v", "\n", text.replace("\ufeff", ""))
    for ligature, letters in (("Æ", "Ae"), ("Œ", "Oe")):
        text = re.sub(f"{ligature}(?=[A-ZÆŒ])|(?<=[A-Z]){ligature}", letters.upper(), text)
        text = text.replace(ligature, letters).replace(ligature.lower(), letters.lower())
    text = unicodedata.normalize("NFKD", text.translate(_PLAIN)).translate(_PLAIN)
    text = re.sub(r"[^\S\n]", " ", text)
    text = re.sub(r"[^ -~\n—]", "", text)
    return re.sub(r"<<.*?>>", "", text, flags=re.S)


def _split_works(text: str) -> Iterator[list[str]]:
    """Yield the lines of each work; a title, a list of persons or contents starts a new one."""
    text = text[max((m.end() for m in _HEADER.finditer(text)), default=0) :]
    if footer := _FOOTER.search(text):
        text = text[: footer.start()]
    lines = [line.rstrip() for line in text.split("\n")]
    starts = _find_title_lines(lines)
    starts += [i for i, line in enumerate(lines) if _CONTENTS.match(line) or _PERSONS.match(line)]
    for start, end in pairwise([0, *sorted(starts), len(lines)]):
        contents = _CONTENTS.match(lines[start]) and end < len(lines) and _PERSONS.match(lines[end])
        if not contents:
            yield lines[start:end]


def _find_title_lines(lines: list[str]) -> list[int]:
    """Return the lines at which the works of the global contents begin; [] for a single play."""
    bare = [line.strip(" :;") for line in lines]
    first = next((i + 1 for i, line in enumerate(lines) if _CONTENTS.match(line)), len(lines))
    titles: list[str] = []
    for line in bare[first:]:
        if line in titles:
            break
        titles += [line] if line else []
    if any(_ACT.match(title) for title in titles):
        return []
    found, position = [], bare.index(titles[-1], first) + 1 if titles else first
    for title in titles:
        rest = range(position, len(bare))
        exact = (i for i in rest if bare[i] == title)
        # "OTHELLO, MOOR OF VENICE" for "THE TRAGEDY OF OTHELLO, MOOR OF VENICE", say.
        close = (i for i in rest if title.endswith(" " + bare[i]) and len(bare[i]) > 9)
        if start := next(exact, 0) or next(close, 0):
            found.append(start)
            position = start + 1
    return found


def _extract_play(lines: list[str]) -> str:
    """Return the spoken text and stage directions of one play; "" if there is none."""
    end = next((i for i, line in enumerate(lines) if _FINIS.match(line)), len(lines))
    lines = lines[:end]
    acts = [i for i, line in enumerate(lines) if _ACT.match(line)]
    start = max((i for i in acts if _ACT_ONE.match(lines[i])), default=None)
    if start is None:
        return ""
    before = max((i for i in acts if i < start), default=-1)
    parts = (i for i in range(before + 1, start) if _PART.match(lines[i]))
    lines = [_ordinal(line) for line in lines[next(parts, start) :]]
    layout = _detect_layout(lines)
    if not layout.labels:
        return ""
    if layout.inline:
        lines = _unfold(lines, layout)
        layout = _detect_layout(lines)
    return _tidy(_convert(lines, layout))


def _ordinal(line: str) -> str:
    """ "1. QUEEN." becomes "FIRST QUEEN."; other numbers that begin a line are dropped."""
    match = re.fullmatch(r" *(\d+)\. +([A-Z ]+\.?)", line)
    if match and int(match[1]) < len(_ORDINALS):
        return f"{_ORDINALS[int(match[1])]} {match[2]}"
    return re.sub(r"^( *)\d+\. +(?=[A-Z])", r"\1", line)


def _detect_layout(lines: list[str]) -> Layout:
    """Return the layout of most labels of the play."""
    spoken = [m for line in lines if not _is_heading(line) and (m := _SPEECH.match(line))]
    inline = sum(bool(m[3]) for m in spoken) * 2 > len(spoken)
    spoken = [m for m in spoken if bool(m[3]) == inline]
    indents = Counter(len(m[1]) for m in spoken)
    indent = indents.most_common(1)[0][0] if indents else 0
    return Layout(indent, frozenset(m[2] for m in spoken if len(m[1]) == indent), inline)


def _is_heading(line: str) -> bool:
    return bool(_ACT.match(line) or _SCENE.match(line) or _FIELD.match(line))


def _unfold(lines: list[str], layout: Layout) -> list[str]:
    """Give each speech its own line where several were run together ("Well met. IAGO. Ay.")."""
    text = "\n".join(lines)
    run_on = Counter(re.findall(rf"[a-z'][.?!] ({_LABEL})\. (?=[A-Z])", text))
    known = layout.labels | {name for name, count in run_on.items() if count > 2}
    names = sorted((x for x in known if not re.search(" and | & ", x)), key=len)[::-1]
    label = "(" + "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in names) + ")"
    gap = r"(?: +|\n *)"

    def own_line(match: re.Match[str]) -> str:
        name = " ".join(match[2].split())
        return f"{match[1]}\n{' ' * layout.indent}{name}."

    text = re.sub(rf"([.?!'\"\])]){gap}{label}\.(?=\s)", own_line, text)
    names_gone = rf"\b((?:Exit|Exeunt)(?:{gap}(?:and|{_NAME},?))*?)"
    return re.sub(rf"{names_gone}{gap}{label}\.(?= \S)", own_line, text).split("\n")


def _convert(lines: list[str], layout: Layout) -> Iterator[str]:
    """Lines of the result, "" for blank ones; headings and the places they name are dropped."""
    due = ""  # who speaks if no label comes: a prologue's or epilogue's text often has none
    heading = place = False  # in the heading's paragraph; waiting for the place it does not name
    direction = in_bracket = False  # the last line was a stage direction; its bracket is still open
    for last, line, following in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        text = line.strip()
        if not text:
            heading = direction = in_bracket = False
            yield ""
            continue
        part = _PART.match(line) if layout.inline or not following else None
        if part or _is_heading(line):
            due = part[1] if part and part[1] != "INDUCTION" else ""
            scene = _SCENE.match(line)
            heading, place = True, bool(scene and not scene[1])
            yield ""
            continue
        speech = _match_speech(line, last, following, layout)
        stage = _is_stage_direction(line, direction, in_bracket, layout)
        if (heading or place) and not speech and not _STAGE.match(text):
            heading, place = True, False
            if due and (name := text.split()[-1]) in layout.labels:  # "Spoken by PROSPERO"
                due = name
            continue
        heading = place = False
        if speech:
            due, direction, in_bracket = "", False, False
            yield from ("", speech[0] + ".")
            text = speech[1]
        elif stage:
            if not direction:
                yield ""
            yield text
            direction, in_bracket = True, "]" not in text and (in_bracket or text.startswith("["))
            continue
        elif direction:
            direction = False
            yield ""
        if due:
            yield from ("", due + ".")
            due = ""
        spoken, tail = _cut_tail(text) if layout.inline else (text, "")
        if spoken:
            yield spoken
        if tail:
            direction, in_bracket = True, tail.startswith("[") and "]" not in tail
            yield from ("", tail)


def _match_speech(line: str, last: str, following: str, layout: Layout) -> tuple[str, str] | None:
    """(label, what follows it on the line) if a speech begins here."""
    indent = len(line) - len(line.lstrip())
    if indent > layout.indent + 2:
        return None
    # A stage direction of several lines at the margin may begin one of them with a name.
    if indent < layout.indent - 1 and last and not last.startswith(" "):
        return None
    match, text = _SPEECH.match(line), line.strip()
    if match and (bool(match[3]) == layout.inline or match[2] in layout.labels or not last):
        label, rest = match[2].upper(), match[3].strip()
        # "MACBETH. LENNOX. What" and "PEMBROKE. and BIGOT. Our"
        while (two := _SPEECH.match(rest.removeprefix("and "))) and two[2] in layout.labels:
            label, rest = f"{label}, {two[2]}", two[3].strip()
        return (label, rest) if rest or match[2] in layout.labels else None
    names = sorted((name for name in layout.labels if text.startswith(name)), key=len)
    if names:  # known, and the full stop is missing or is something else
        rest = text[len(names[-1]) :]
        slip = re.match(r"[.,'\]}]*\.[.,'\]}]* *(?=[\w\[])|\] +|-(?=[A-Z])| +(?=[A-Z]| *\[)", rest)
        if slip and (layout.inline or rest[slip.end() :].startswith("[")):
            return names[-1], rest[slip.end() :]
    alone = text in layout.labels or (not layout.inline and re.fullmatch(_LABEL, text))
    return (text.upper(), "") if alone and not last and following else None


def _is_stage_direction(line: str, direction: bool, in_bracket: bool, layout: Layout) -> bool:
    """True if the line is a stage direction, or continues one."""
    indent, text = len(line) - len(line.lstrip()), line.strip()
    if in_bracket or (direction and indent > layout.indent + 9):
        return True
    if text.startswith("["):
        return bool(re.fullmatch(r"\[[^]]*\]?\.?", text))
    if not layout.inline:
        return indent == layout.indent + 1
    outside = indent < layout.indent or indent > layout.indent + 4
    flush_right = indent > 34 and not text.endswith(("'", '"'))
    return bool(
        flush_right
        or (indent == 0 and layout.indent > 0)
        or _LEAVE.match(text)
        or (outside and _STAGE.match(text))
    )


def _cut_tail(text: str) -> tuple[str, str]:
    """Return the speech, and the stage direction to the right of it on the same line."""
    match = re.fullmatch(r"(.*[^\s\]]) {3,}(\S.*[^\s'\"])", text)
    if not match or (re.search(r"\] *[A-Z]", match[2]) and not _STAGE.search(match[2])):
        return text, ""
    return match[1], match[2]


def _tidy(lines: Iterator[str]) -> str:
    """Return the text without italics, digits, stray signs, and double spaces or blank lines."""
    text = "\n".join(lines)
    text = re.sub(r"[^\w\s.,;:!?'\"()\[\]&—-]|_", "", text)
    text = re.sub(r"\b(\d{1,3})\b\.?", _spelled, text)
    text = re.sub(r"\d", "", text)
    # "a husband- a widow", "Well!-Please you", a hyphen that ends a line: dashes, all of them.
    text = re.sub(
        r"-{2,}|(?<=\S)-(?=['\")]?(?: |$))|(?<= )-(?= )|(?<=[.,;:!?])-", "—", text, flags=re.M
    )
    text = re.sub(r" *—[— ]*", "—", text)
    text = re.sub(r" +", " ", text)
    text = re.sub(r"^ | $", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _spelled(match: re.Match[str]) -> str:
    number = int(match[1])
    return _NUMBERS[number] if number < len(_NUMBERS) else ""
