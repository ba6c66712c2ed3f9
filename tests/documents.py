"""Check links, commands and figures of README, RESULTS and the guides: `make readme`.

RESULTS' tables are those that experiments/tools/tables.py writes. Figures in README's table of
commands must occur in the log of the command: `make record-trec` in record-trec.log. Published
figures occur with their sources in a table of RESULTS.md.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from experiments.tools import tables as results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
NAMES = "README.md", "CHANGELOG.md", "experiments/LOG.md", "experiments/RESULTS.md"
GUIDES = sorted(ROOT.glob("notebooks/guides/*.md"))
OTHERS = [ROOT / name for name in (*NAMES, "notebooks/README.md", "tests/README.md")]
DOCUMENTS = [*OTHERS, *GUIDES]
FRONT, FIGURES = ROOT / "README.md", ROOT / "experiments" / "RESULTS.md"
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)")
COMMAND = re.compile(r"make [a-z]|tlite [a-z]|python -m \w|pip install |\.ci/")
SOURCES = "here"  # first column of the one table of RESULTS that is not written from logs


# Links


def links(text: str) -> Iterator[str]:
    """Yield the targets of Markdown links and pictures."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r'(?:src|srcset)="([^"]+)"', text)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(document: Path) -> list[str]:
    """Return errors for links to missing files and headings; URLs are not checked."""
    errors, text = [], document.read_text(encoding="utf-8")
    for link in links(text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists():
            errors.append(f"{document.name}: {link} does not exist")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            errors.append(f"{document.name}: {link} has no such heading")
    return errors


# Commands


def fenced(text: str) -> list[str]:
    """Return the lines of fenced blocks except Python, with continued lines joined."""
    matches = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)
    blocks = [block for language, block in matches if language != "python"]
    return [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]


def commands(text: str) -> list[str]:
    """Return the commands in fenced blocks and between backticks, without comments."""
    lines = fenced(text) + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    lines = [re.sub(r"^(?:srun )?(\w+=\S+ )*(?:\.venv/bin/)?", "", line.strip()) for line in lines]
    lines = [re.split(r"\s{2,}|\s#\s", line)[0] for line in lines]  # without the description
    return list(dict.fromkeys(line for line in lines if COMMAND.match(line)))


@cache
def help_text(words: str) -> str:
    """Return the output of `tlite WORDS --help`, empty if it fails."""
    from tlite.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main([*words.split(), "--help"])
    return output.getvalue() if code == 0 else ""


def command_error(command: str, targets: set[str]) -> str | None:
    """Return why a command would fail, or None."""
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
    if words[1:2] == ["--resume"]:
        name += " --resume RUN"
    elif name in ("train", "tune", "plan"):  # its help lists the options of the experiment
        experiment = words[1] if len(words) > 1 and words[1].islower() else "demo"
        name += " demo" if experiment.endswith(".py") else f" {experiment}"
    if not (text := help_text(name)):
        return f"tlite {name} --help fails"
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    unknown = [o for o in sorted(options) if not re.search(rf"{re.escape(o)}(?![\w-])", text)]
    return f"tlite {name} has no {', '.join(unknown)}" if unknown else None


def unknown_commands(document: Path) -> list[str]:
    """Return errors for commands and options that do not exist; test_readme.py runs README's."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.findall(r"^([a-z][\w \-]*):(?!=)", makefile, flags=re.M)
    targets = {name for line in names for name in line.split()}
    called = commands(document.read_text(encoding="utf-8"))
    called = [c for c in called if document != FRONT or not c.startswith("tlite")]
    errors = ((command, command_error(command, targets)) for command in called)
    return [f"{document.name}: {command}: {error}" for command, error in errors if error]


# Figures


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield header and rows of every table outside fenced blocks."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.M):
        rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines())
        header, _, *rows = ([cell.strip() for cell in row] for row in rows)
        yield header, rows


def log_name(command: str) -> str:
    """Return the name of the log of the command at the start of a cell."""
    match = re.match(r"`make ([\w-]+)(?: OPTIONS=\"(.*?)\")?", command)
    return re.sub(r"\W+", "-", " ".join(filter(None, match.groups()))).strip("-") if match else ""


def numbers(text: str) -> set[str]:
    """Return numbers as written, without thousands separators."""
    return {number.replace(",", "") for number in NUMBER.findall(text)}


def unproven_figures(document: Path) -> list[str]:
    """Return errors for rows of commands with a number in neither the log nor the literature."""
    figures = FIGURES.read_text(encoding="utf-8")
    section = figures.split("## What the numbers are compared with")[1].split("\n## ")[0]
    errors, published = [], numbers(section)
    all_tables = tables(document.read_text(encoding="utf-8"))
    command_rows = (row for header, rows in all_tables if header[0] == "command" for row in rows)
    for command, *cells in command_rows:
        name, row = log_name(command), f"{document.name}, {command[:60]}"
        log = RESULTS / f"{name}.log"
        if not log.is_file():
            errors.append(f"{row}: no log {name} in experiments/results")
            continue
        missing = numbers(" ".join(cells)) - numbers(log.read_text(encoding="utf-8")) - published
        if missing := {number for number in missing if len(number) > 1}:  # ignores small counts
            errors.append(f"{row}: {', '.join(sorted(missing))} not in {name}.log")
    return errors


def results_errors(text: str) -> list[str]:
    """Return errors for tables of RESULTS that differ from the logs, except that of sources."""
    errors = [] if results.with_tables(text) == text else ["run python -m experiments.tools.tables"]
    by_hand = re.sub(r"<!-- table: .*?<!-- end -->", "", text, flags=re.S)
    headers = (header for header, _ in tables(by_hand) if header[0] != SOURCES)
    errors += [f"table without a log: {', '.join(header)}" for header in headers]
    names = (path.name for path in sorted(RESULTS.glob("*.log")))
    errors += [f"no table shows {name}" for name in names if f"(results/{name})" not in text]
    return [f"RESULTS.md: {error}" for error in errors]


def check() -> list[str]:
    """Return all errors, one line each."""
    errors = results_errors(FIGURES.read_text(encoding="utf-8"))
    for document in DOCUMENTS:
        errors += broken_links(document)
    for document in (FRONT, FIGURES, *GUIDES):
        errors += unknown_commands(document)
    return [*errors, *unproven_figures(FRONT)]
