"""What the commands print is what they have printed before: golden/screen.txt, of version 0.2.0.

The demo trains on the text of LICENSE here: the one that a Python carries differs between versions.
"""

import difflib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.python import ROOT, forks

GOLDEN = (ROOT / "tests" / "golden" / "screen.txt").read_text(encoding="utf-8")
_, *CASES = re.split(r"^\$ (tlite.*)\n", GOLDEN, flags=re.MULTILINE)
BEFORE = {c: told.rstrip("\n") + "\n" for c, told in zip(CASES[::2], CASES[1::2], strict=True)}
"""What was printed, by command: each in a process of its own, one after the other."""
MASKS = {
    re.escape(str(ROOT)): "<tlite>",
    r"\S+ tokens/s": "# tokens/s",
    r" {2,}[\d,]+ +\d+\.\d\d$": "  # tokens/s  # minutes",  # the last columns of a comparison
    r"\d{4}-\d\d-\d\d \d\d:\d\d": "<date>",
    r"\d{8}-\d{6}": "<date>",
    r"on \d+ \S+ device\(s\)": "on # device(s)",
}
NUMBER = re.compile(r"\d[\d,]*\.\d+(?:e\d+)?")
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


def screens(folder: Path) -> Iterator[tuple[str, str]]:
    """Every command and what it prints in a folder where nothing is yet, masked."""
    package, work = folder / "python" / "pydoc_data", folder / "work"
    package.mkdir(parents=True)  # which the demo's text is read from
    (package / "__init__.py").touch()
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    (package / "topics.py").write_text(f"topics = {{'LICENSE': {text!r}}}\n", encoding="utf-8")
    work.mkdir()
    settings = {"COLUMNS": "100", "JAX_PLATFORMS": "cpu"}
    settings["PYTHONPATH"] = os.pathsep.join([str(folder / "python"), str(ROOT)])
    with forks(work, **settings) as tlite:
        for line in BEFORE:
            yield line, screen(*tlite(*shlex.split(line)[1:]))


def screen(code: int, out: str, err: str) -> str:
    """Both streams and the exit code, without what changes from one time to the next."""
    told = "".join(f"stderr: {line}\n" for line in err.splitlines())
    text = f"{out}{told}exit code: {code}\n"
    for pattern, mask in MASKS.items():
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in text.split("\n")[:-1])


def are_near(text: str, golden: str) -> bool:
    """Whether the texts are the same but for the last digits of numbers with decimals.

    XLA adds in another order where a processor has other instructions.
    """
    if NUMBER.sub("#", text) != NUMBER.sub("#", golden):
        return False
    pairs = zip(NUMBER.findall(text), NUMBER.findall(golden), strict=True)
    return all(is_near(one, other) for one, other in pairs)


def is_near(one: str, golden: str) -> bool:
    """Within 1e-4 of itself; the last digit of four or more may be rounded to the next."""
    a, b = (float(number.replace(",", "")) for number in (one, golden))
    decimals = len(golden.partition(".")[2])
    of_results = decimals >= 4 or len(re.sub(r"\D", "", golden).lstrip("0")) >= 4
    return abs(a - b) <= max(1e-4 * b, 1.01 * 10**-decimals if of_results else 0)


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    return dict(screens(tmp_path_factory.mktemp("screen")))


@pytest.mark.parametrize("command", BEFORE)
def test_a_command_prints_what_it_has_printed(printed, command):
    if command in NO_MISTAKES:
        assert printed[command].endswith("\nexit code: 0\n")
        assert "stderr: " not in printed[command]
        return
    before, lines = BEFORE[command], printed[command].splitlines(keepends=True)
    now = "".join(line for line in lines if not line.startswith(ADDED))
    for new, old in NEW_WORDS.items():
        now = now.replace(new, old)
    if words := TOLD_BY_TYRO.get(command):
        assert re.search(".*".join(map(re.escape, words)), now, re.DOTALL)
        before, now = (re.sub("(?m)^stderr:.*\n", "", text) for text in (before, now))
    if more := SAID_MORE.get(command):
        assert re.search(more, now)
        before, now = (re.sub(f"{more}| +", "", text) for text in (before, now))
    if not are_near(now, before):
        lines = (text.splitlines(keepends=True) for text in (before, now))
        changes = "".join(difflib.unified_diff(*lines, "before", "now"))
        pytest.fail(f"$ {command}\n{changes}{ADVICE}", pytrace=False)
