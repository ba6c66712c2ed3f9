"""A slice of the attack: `make attack` tries more, of every kind of run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# How much of each part. Counts, not minutes: what is tried does not depend on the machine.
COUNTS = {"kills": 1, "several": 1, "grammar": 12, "damage": 2, "disk": 1, "handles": 1}
ROWS = {"grammar": "lines"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict]:
    """The table of an attack on generators, by what users run: tests compile another program."""
    table = tmp_path_factory.mktemp("attack") / "table.json"
    words = ["--minutes", "0", "--kinds", "generator", "--json", str(table), "--minimum"]
    words += [f"{part}={number}" for part, number in COUNTS.items()]
    command = [sys.executable, "-m", "tests.attack", *words]
    subprocess.run(command, cwd=Path(__file__).parents[2], stdout=sys.stderr, timeout=1200)
    return json.loads(table.read_text())["rows"]


@pytest.mark.parametrize("part", COUNTS)
def test_nothing_is_lost_and_no_fault_hidden(part, rows):
    of_part = [row for row in rows if row["row"].startswith(ROWS.get(part, part))]
    assert [fault for row in of_part for fault in row["faults"]] == []
    if not all(row["possible"] for row in of_part):
        pytest.skip(of_part[0]["note"])
    assert sum(row["tried"] for row in of_part) >= COUNTS[part]
