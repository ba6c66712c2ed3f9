"""What the commands print is what they have printed before: golden/screen.txt."""

import difflib
import re

import pytest

from tests.helpers import screen

TOLD_BY_TYRO = {
    "tlite train demo --learning-rat 0.01": ("--learning-rat,", "--learning-rate"),
    "tlite train demo --width wide": ("--width:", "'wide'"),
}
"""What is said of a wrong option has tyro's words now: these are in it, in order."""

NO_MISTAKES = ("tlite generate runs/one --temperature 0",)
"""What 0.2.0 refused, and now does its work."""

ADDED = ("  tlite follow RUN --to tensorboard ", "yelp  ", "about ", "95 % for ")
"""How lines begin that there were not yet: the golden file stays as 0.2.0 printed it."""

NEW_WORDS = {
    ", yelp:": ":",  # what the names of experiments end in
    ", compare and follow take a Hugging\nFace f": " and compare take a Hugging Face\nf",
}
"""What is inside of lines, and what was there."""
SAID_MORE = {
    "tlite compare runs/one runs/two": r" ± SD| \(on new text ± [\d.]+, with these seeds\)"
}
"""What is inside of lines that was not there yet; as it widens columns, spaces do not count."""

ADVICE = "If it is meant: say so in CHANGELOG.md, and name the line in this test."


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    return dict(screen.screens(tmp_path_factory.mktemp("screen")))


@pytest.mark.parametrize("command", screen.read())
def test_a_command_prints_what_it_has_printed(printed, command):
    if command in NO_MISTAKES:
        assert printed[command].endswith("\nexit code: 0\n")
        assert "stderr: " not in printed[command]
        return
    before, lines = screen.read()[command], printed[command].splitlines(keepends=True)
    now = "".join(line for line in lines if not line.startswith(ADDED))
    for new, old in NEW_WORDS.items():
        now = now.replace(new, old)
    if words := TOLD_BY_TYRO.get(command):
        assert re.search(".*".join(map(re.escape, words)), now, re.DOTALL)
        before, now = (re.sub("(?m)^stderr:.*\n", "", text) for text in (before, now))
    if more := SAID_MORE.get(command):
        assert re.search(more, now)
        before, now = (re.sub(f"{more}| +", "", text) for text in (before, now))
    if not screen.are_near(now, before):
        lines = (text.splitlines(keepends=True) for text in (before, now))
        changes = "".join(difflib.unified_diff(*lines, "before", "now"))
        pytest.fail(f"$ {command}\n{changes}{ADVICE}", pytrace=False)


def test_every_command_has_its_screen(printed):
    assert list(printed) == list(screen.read())
