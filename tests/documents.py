"""Holds README and RESULTS to the tree: `make readme`.

Links lead somewhere, commands are known with their options, Python runs, and a figure of a table
stands in what a command has written into experiments/results.

RESULTS' tables are those that experiments/tools/tables.py writes. A row of README's table of
commands is checked against the log of that name: `make record-trec` against record-trec.log.
Numbers of others stand in RESULTS.md's table of what is compared with, beside their sources.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

from experiments.tools import tables as results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
NAMES = "README.md", "CHANGELOG.md", "experiments/LOG.md", "experiments/RESULTS.md"
DOCUMENTS = [ROOT / name for name in (*NAMES, "notebooks/README.md", "tests/README.md")]
FRONT, FIGURES = ROOT / "README.md", ROOT / "experiments" / "RESULTS.md"
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)")
CALLED = re.compile(r"make [a-z]|tlite [a-z]|python -m \w|pip install |\.ci/")
SOURCES = "here"  # the first column of RESULTS' one table that is not written from logs


# Links


def links(text: str) -> Iterator[str]:
    """What Markdown links and pictures point to."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r'(?:src|srcset)="([^"]+)"', text)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(document: Path) -> list[str]:
    """Links to files and headings that are not there; addresses in the network are not asked."""
    faults, text = [], document.read_text(encoding="utf-8")
    for link in links(text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists():
            faults.append(f"{document.name}: {link} is not there")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            faults.append(f"{document.name}: {link} has no such heading")
    return faults


# Commands


def fenced(text: str) -> list[str]:
    """The lines of fenced blocks that are no Python, each whole."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)
    blocks = [block for language, block in found if language != "python"]
    return [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]


def commands(text: str) -> list[str]:
    """What is called in fenced blocks and between backticks, on one line and without comments."""
    lines = fenced(text) + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    found = [re.sub(r"^(\w+=\S+ )*(?:\.venv/bin/)?", "", line.strip()) for line in lines]
    found = [re.split(r"\s{2,}|\s#\s", line)[0] for line in found]  # what it does stands after
    return list(dict.fromkeys(line for line in found if CALLED.match(line)))


def output_of_nothing(document: Path) -> list[str]:
    """Lines of fenced blocks that no command is, and that no log has."""
    logs = "\n".join(path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.log")))
    lines = fenced(document.read_text(encoding="utf-8"))
    strange = (line for line in lines if not CALLED.match(line) and line not in logs)
    return [f"{document.name}: no command, nor in a log: {line}" for line in strange]


def help_of(words: list[str]) -> str:
    """What `tlite ... --help` prints."""
    from tlite.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main([*words, "--help"])
    return said.getvalue() if code == 0 else ""


def fault_of_command(command: str, targets: set[str]) -> str | None:
    """Why a command could not be called; None if it could."""
    program, *words = shlex.split(command)
    if program == "make":
        return None if words[0] in targets else f"there is no target {words[0]}"
    if program == "python":
        return None if importlib.util.find_spec(words[1]) else f"there is no module {words[1]}"
    if program == "pip":
        extras = re.findall(r"[\w-]+", words[1].partition("[")[2])
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        missing = [extra for extra in extras if extra not in project["optional-dependencies"]]
        return f"there is no extra {missing[0]}" if missing else None
    if program.startswith("."):
        return None if os.access(ROOT / program, os.X_OK) else f"there is no program {program}"
    if words[0] == "launch" and "train" in words:
        words = words[words.index("train") :]
    name = words[0]
    if words[:2] == ["train", "--resume"]:
        name += " --resume RUN"
    elif name in ("train", "plan"):  # options are the experiment's; of any other the demo's
        named = words[1] if len(words) > 1 and words[1].islower() else "demo"
        name += " demo" if named.endswith(".py") else f" {named}"
    if not (said := help_of(name.split())):
        return f"tlite {name} --help says nothing"
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    unknown = [o for o in sorted(options) if not re.search(rf"{re.escape(o)}(?![\w-])", said)]
    return f"tlite {name} has no {', '.join(unknown)}" if unknown else None


def unknown_commands(document: Path) -> list[str]:
    """Commands and options that do not exist."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.findall(r"^([a-z][\w \-]*):(?!=)", makefile, flags=re.M)
    targets = {name for line in names for name in line.split()}
    found = commands(document.read_text(encoding="utf-8"))
    faults = ((command, fault_of_command(command, targets)) for command in found)
    return [f"{document.name}: {command}: {fault}" for command, fault in faults if fault]


# Figures


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Header and rows of every table that is not in a fenced block."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.M):
        rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines())
        header, _, *rows = ([cell.strip() for cell in row] for row in rows)
        yield header, rows


def log_of(command: str) -> str | None:
    """The name of the log of the command that a cell begins with."""
    called = re.match(r"`make ([\w-]+)(?: OPTIONS=\"(.*?)\")?", command)
    if not called:
        return None
    options = re.sub(r"[^\w]+", "-", called[2] or "").strip("-")
    return called[1] + (f"-{options}" if options else "")


def numbers(text: str) -> set[str]:
    """Numbers as they are written, without separators of thousands."""
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def unproven_figures(document: Path) -> list[str]:
    """Rows of commands with a number that their log lacks.

    Numbers of others RESULTS.md gives with their sources.
    """
    figures = FIGURES.read_text(encoding="utf-8")
    section = figures.split("## What the numbers are compared with")[1].split("\n## ")[0]
    faults, others = [], numbers(section)
    found = tables(document.read_text(encoding="utf-8"))
    of_commands = (row for header, rows in found if header[0] == "command" for row in rows)
    for command, *cells in of_commands:
        name, where = log_of(command), f"{document.name}, {command[:60]}"
        log = RESULTS / f"{name}.log"
        if not (name and log.is_file()):
            faults.append(f"{where}: no log {name} in experiments/results")
            continue
        missing = numbers(" ".join(cells)) - numbers(log.read_text(encoding="utf-8")) - others
        if missing := {number for number in missing if len(number) > 1}:  # no seeds, classes
            faults.append(f"{where}: {', '.join(sorted(missing))} not in {name}.log")
    return faults


def tables_by_hand(text: str) -> list[str]:
    """Why the tables of RESULTS are not those of the logs: all but the sources of others are."""
    faults = [] if results.with_tables(text) == text else ["run python -m experiments.tools.tables"]
    by_hand = re.sub(r"<!-- table: .*?<!-- end -->", "", text, flags=re.S)
    headers = (header for header, _ in tables(by_hand) if header[0] != SOURCES)
    faults += [f"a table of no log: {', '.join(header)}" for header in headers]
    names = (path.name for path in sorted(RESULTS.glob("*.log")))
    faults += [f"no table shows {name}" for name in names if f"(results/{name})" not in text]
    return [f"RESULTS.md: {fault}" for fault in faults]


def check() -> list[str]:
    """What is wrong, a line each."""
    faults = tables_by_hand(FIGURES.read_text(encoding="utf-8"))
    for document in DOCUMENTS:
        faults += broken_links(document)
    for document in (FRONT, FIGURES):
        faults += unknown_commands(document)
    return [*faults, *unproven_figures(FRONT), *output_of_nothing(FRONT)]
