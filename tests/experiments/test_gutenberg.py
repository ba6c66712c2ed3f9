"""Shakespeare from Project Gutenberg: both layouts come out as the same plain play text."""

import difflib
import gzip
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.gutenberg import plays, prepare

OLD = """\
THE TWO GARDENERS

DRAMATIS PERSONAE

  ROWAN, a gardener
  HAZEL,     "
  FIRST LORD

                    SCENE: A garden

ACT I. SCENE 1. A garden. Before the
house

Enter ROWAN and HAZEL

  ROWAN. Good morning, Hazel- if it be a morning-
    And not the night's last hour.
  HAZEL.     It is the day.
    [Aside] He never sleeps.             [Exit HAZEL]
    I am alone. HAZEL. You are not so.

                         SCENE 2.

                    Another garden

Enter FIRST LORD

  FIRST LORD. Who keeps the gate?
   ROWAN. I do.                          [Exeunt]

EPILOGUE
                        EPILOGUE.
                    Spoken by ROWAN

    The play is done.

THE END
"""

MODERN = """\
THE TWO GARDENERS

by Nobody

Contents

ACT I
Scene I. A garden. Before the house
Scene II. Another garden

EPILOGUE

 Dramatis Personæ

ROWAN, a gardener
HAZEL, a gardener
FIRST LORD

SCENE: A garden


ACT I

SCENE I. A garden. Before the house

 Enter ROWAN and HAZEL

ROWAN.
Good morning, Hazel—if it be a morning—
And not the night’s last hour.

HAZEL.
It is the day.
[_Aside_] He never sleeps.

 [_Exit HAZEL_]

I am alone.

HAZEL.
You are not so.

SCENE II. Another garden

 Enter FIRST LORD

FIRST LORD.
Who keeps the gate?

ROWAN.
I do.

 [_Exeunt_]

EPILOGUE

ROWAN.
The play is done.
"""

PREPARED = """\
Enter ROWAN and HAZEL

ROWAN.
Good morning, Hazel—if it be a morning—
And not the night's last hour.

HAZEL.
It is the day.
[Aside] He never sleeps.

[Exit HAZEL]

I am alone.

HAZEL.
You are not so.

Enter FIRST LORD

FIRST LORD.
Who keeps the gate?

ROWAN.
I do.

[Exeunt]

ROWAN.
The play is done.
"""

SMALL = "ACT I\n\nSCENE I. A room.\n\nROWAN.\nGood day.\n\nHAZEL.\n{}\n"


def said(text: str) -> str:
    """What becomes of a text that is the second speech of a small play."""
    return prepare(SMALL.format(text)).split("HAZEL.\n")[1].rstrip("\n")


@cache
def read(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@cache
def prepared_plays(path: Path) -> list[str]:
    return plays(read(path))


def sample(data_folder: Path, name: str) -> Path:
    path = data_folder / "shakespeare" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def words(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


def speakers(text: str) -> list[str]:
    return re.findall(r"^([A-Z]{2}[A-Z',.& -]*)\.$", text, flags=re.M)


@pytest.mark.parametrize("text", [OLD, MODERN], ids=["old", "modern"])
def test_both_layouts_come_out_the_same(text):
    assert prepare(text) == PREPARED


def test_both_layouts_and_a_poem_in_one_book():
    book = (
        "Contents\n\n  THE SONNETS\n\n  THE TWO GARDENERS\n\n  THE GARDENERS AGAIN\n\n"
        "  A LAMENT\n\n\n"
        "THE SONNETS\n\n      1\n\nA garden is a lovesome thing.\n\nTHE END\n\n1601\n\n"
        f"{OLD}\n\n1602\n\n{MODERN.replace('THE TWO GARDENERS', 'THE GARDENERS AGAIN')}\n\n"
        "A LAMENT\n\nThe leaves are down.\n\nI.\n\nThe leaves are gone.\n"
    )
    assert plays(book) == [PREPARED.rstrip(), PREPARED.rstrip()]


@pytest.mark.parametrize(
    ("header", "footer"),
    [
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK A ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK",
        ),
        ("***START OF THIS PROJECT GUTENBERG EBOOK A***", "End of Project Gutenberg’s Gardeners"),
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK\nA ***",
            "End of the Project Gutenberg EBook of",
        ),
        ("*END*THE SMALL PRINT! FOR ETEXTS*Ver.1*END*", "* CONTENT NOTE (added in 2017) *"),
        ("", "THE END\n\n*** START: FULL LICENSE ***"),
    ],
)
@pytest.mark.parametrize("text", [OLD, MODERN], ids=["old", "modern"])
def test_header_and_footer_are_removed(text, header, footer):
    licence = "\n\nLICENCE.\nYou may copy it.\n\nACT I\n\nCOURT.\nNo.\n"
    book = (
        f"\ufeffThe eBook.\r\n\r\nTitle: A\r\n\r\n{header}\r\n\r\ncover\r\n\r\n{text}\r\n{footer}"
    )
    assert prepare(book + licence) == PREPARED


def test_copyright_blocks_are_removed():
    block = "<<THIS ELECTRONIC VERSION IS\nCOPYRIGHT 1990. ACT I>>"
    assert said(f"One.\n{block}\nTwo.") == "One.\n\nTwo."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A crazèd, wingéd façade", "A crazed, winged facade"),
        ("Æacides and ÆNEAS, Phœbe, PERSONÆ, æon", "Aeacides and AENEAS, Phoebe, PERSONAE, aeon"),
        ("‘Tush,’ “so,” `no", "'Tush,' \"so,\" 'no"),
        (
            "sole son- a widow, and — so -- go.--Well!-Please",
            "sole son—a widow, and—so—go.—Well!—Please",
        ),
        ("a step-dame", "a step-dame"),
        ("one\ttwo\u00a0three   four", "one two three four"),
        ("_Bonum_ [_aside_]", "Bonum [aside]"),
        ("These 3. or 4. days of 1634", "These three or four days of"),
        ("a|b {c} \u2603", "ab c"),
    ],
)
def test_characters_become_plain(text, expected):
    assert said(text) == expected


def test_numbered_speakers_get_ordinals():
    text = SMALL.format("Ay.\n\n1. QUEEN.\nOne.\n\n2. QUEEN.\nTwo.")
    assert speakers(prepare(text)) == ["ROWAN", "HAZEL", "FIRST QUEEN", "SECOND QUEEN"]


def test_a_prologue_without_a_speaker_gets_one():
    text = SMALL.format("Ay.").replace("ACT I", "PROLOGUE\n\nHear us.\n\nACT I")
    assert prepare(text).startswith("PROLOGUE.\nHear us.\n\nROWAN.\n")


def test_slips_of_the_old_layout_are_still_speakers():
    names = ["ROWAN", "HAZEL", "MRS. ELM", "OLD ASH"]
    usual = "".join(f"  {name}. Ay.\n" for name in names)
    slips = "  ROWAN.. One.\n  HAZEL.Two.\n  MRS. ELM Three.\n OLD ASH. Four. ROWAN. Five. OLD\n"
    text = prepare(f"ACT I. SCENE I. A room\n\n{usual}{slips}  ASH. Six.\n")
    assert speakers(text) == [*names, *names, "ROWAN", "OLD ASH"]
    assert text.endswith("ROWAN.\nFive.\n\nOLD ASH.\nSix.\n")


@pytest.mark.parametrize("text", ["", "Contents\n", "ACT I\n\nSCENE I. A room\n", "ROWAN.\nAy.\n"])
def test_a_text_without_a_play_is_refused(text):
    with pytest.raises(ValueError, match="no play found"):
        prepare(text)


# fmt: off
LINES = ["", " ", "\r\n", "ACT II", "SCENE 2. Room", "EPILOGUE", "  ROWAN. Ay- me", "HAZEL.", "17",
         "[_Exit", "  aside_]", "Enter", "é—Æ", "    deep      [Dies]", "--", "Dramatis Personæ"]
# fmt: on
PIECES = st.one_of(st.sampled_from(LINES), st.text(max_size=12))


@given(st.lists(PIECES, max_size=25))
def test_output_has_only_plain_characters_and_no_stray_space(pieces):
    text = prepare(SMALL.format("\n".join(pieces)))
    assert re.fullmatch(r"(?:[ -/:-~\n—])*", text)
    assert not re.search(r" $|^ |  |\n\n\n", text, flags=re.M)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_every_play_is_found_and_nothing_else(data_folder):
    found = prepared_plays(sample(data_folder, "pg100.txt.gz"))
    assert len(found) == 38
    for play in found:
        counts = Counter(speakers(play))
        assert counts.total() > 450
        assert sum(1 for n in counts.values() if n == 1) < 0.04 * counts.total()
        assert not re.search(
            r"^(?:ACT|SCENE|Scene) [IVX\d]|Dramatis|Gutenberg|^THE END", play, re.M
        )
    text = "\n\n".join(found)
    assert "From fairest creatures" not in text
    assert "Even as the sun with purple-colour'd face" not in text
    assert set(text) <= {chr(i) for i in range(32, 127)} - set("0123456789") | {"\n", "—"}
    glued = [line for line in text.split("\n") if re.match(r"[A-Z]{3,}[A-Z ]*\. [A-Z][a-z]", line)]
    assert len(glued) < 5, glued


def test_the_dream_of_the_old_layout_is_that_of_the_modern_one(data_folder):
    (modern,) = prepared_plays(sample(data_folder, "pg1514.txt.gz"))
    book = prepared_plays(sample(data_folder, "pg100.txt.gz"))
    (old,) = (play for play in book if "Now, fair Hippolyta, our nuptial hour" in play)
    ours, theirs = words(old), words(modern)
    shared = (Counter(ours) & Counter(theirs)).total()
    # 0.985 and 0.980 measured; the editions differ ("but, O" and "but oh", "THISBY" and "THISBE").
    assert 2 * shared / (len(ours) + len(theirs)) > 0.98
    assert difflib.SequenceMatcher(None, ours, theirs, autojunk=False).ratio() > 0.975
    # 0.968 measured: the modern edition names Bottom and Flute by their parts in the interlude.
    assert len(speakers(old)) == len(speakers(modern))
    matcher = difflib.SequenceMatcher(None, speakers(old), speakers(modern), autojunk=False)
    assert matcher.ratio() > 0.96
