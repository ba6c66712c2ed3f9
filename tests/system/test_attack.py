"""A slice of the attack: `make attack` tries more, of every kind of run."""

import json
import subprocess
import sys

import pytest

from tests.helpers.python import ROOT

# How much of each part. Counts, not minutes: what is tried does not depend on the machine.
# Of this seed chains are short, one of several processes is killed, and a checkpoint is damaged.
SEED = 1294
COUNTS = {"kills": 1, "several": 1, "grammar": 12, "damage": 2, "disk": 1, "handles": 1}
ROWS = {"grammar": "lines"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict]:
    """The table of an attack on generators, by what users run: tests compile another program."""
    table = tmp_path_factory.mktemp("attack") / "table.json"
    words = f"--minutes 0 --kinds generator --seed {SEED} --json {table} --minimum".split()
    command = [sys.executable, "-m", "tests.attack", *words, json.dumps(COUNTS)]
    subprocess.run(command, cwd=ROOT, stdout=sys.stderr, timeout=1200)
    return json.loads(table.read_text())["rows"]


def check(part: str, rows: list[dict], least: int) -> None:
    of_part = [row for row in rows if row["row"].startswith(ROWS.get(part, part))]
    assert [fault for row in of_part for fault in row["faults"]] == []
    if not all(row["possible"] for row in of_part):
        pytest.skip(of_part[0]["note"])
    assert sum(row["tried"] for row in of_part) >= least


def test_a_run_killed_again_and_again_ends_as_one_that_never_was(rows):
    """Before its first checkpoint, while one is written, by Ctrl-C, and at random moments."""
    check("kills", rows, 3)


@pytest.mark.parametrize("part", [part for part in COUNTS if part != "kills"])
def test_nothing_is_lost_and_no_fault_hidden(part, rows):
    check(part, rows, COUNTS[part])
