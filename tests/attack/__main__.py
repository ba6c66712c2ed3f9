"""Attack tlite: `python -m tests.attack --minutes 15 --seed 0`, or repeat a single case.

The seed and the number of a case decide what it does. A case that finds a fault keeps its folder,
where the file `commands` lists what was run.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent import futures
from itertools import count, groupby
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path

from tests.attack.processes import Fault, make_environment

SHARES = {"kills": 30, "study": 10, "several": 15, "grammar": 20, "damage": 12, "disk": 9}
SHARES["handles"] = 4
"""Part -> its share of the time."""
LEAST = {"kills": 200, "study": 30, "several": 50, "grammar": 300, "damage": 60, "disk": 20}
LEAST["handles"] = 60
"""Part -> the least number tried in 30 minutes, however slow the machine."""


def main() -> int:
    options = parse_options()
    folder = Path(tempfile.mkdtemp(prefix="tlite-attack-"))
    # Before JAX is imported: forks of this process must be the program that users run.
    environment = make_environment(folder)
    os.environ.clear()
    os.environ.update(environment)
    from tests.attack.workspace import FILES, KINDS, Workspace

    for name, content in FILES.items():
        (folder / name).write_text(content)
    workspace = Workspace(folder, options.seed, tuple(options.kinds or KINDS))
    end, left, cases = time.monotonic() + 60 * options.minutes, list(options.only), []
    with futures.ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        while left:
            now, sum_of_shares = time.monotonic(), sum(SHARES[part] for part in left)
            part = left.pop(0)
            part_end = now + (end - now) * SHARES[part] / sum_of_shares
            results = run_part(part, workspace, pool, options, part_end)
            cases += sorted(results, key=attrgetter("row"))
    rows = [summarize(list(group)) for _, group in groupby(cases, attrgetter("row"))]
    faults = [f"{row['row']}: {fault}" for row in rows for fault in row["faults"]]
    print(f"\n{'part':40}  tried  survived")
    for row in rows:
        survived = max(row["tried"] - len(row["faults"]), 0)
        print(f"{row['row']:40}  {row['tried']:5}  {survived:8}  {row['note']}".rstrip())
    print(*faults, sep="\n")
    if options.json:
        content = {"seed": options.seed, "rows": rows}
        options.json.write_text(json.dumps(content, indent=2))
    if faults:
        print(f"{len(faults)} faults; the folders of these cases are in {folder}/cases")
    else:
        shutil.rmtree(folder)
    return bool(faults)


def run_part(part: str, workspace, pool, options, end: float) -> list:
    """Run cases, several at a time, until `end` and until the least number was tried."""
    is_single, running, results = options.case is not None, set(), []
    numbers = iter([options.case] if is_single else range(2) if part == "handles" else count())
    while True:
        tried = sum(case.tried for case in results) + len(running)
        more = is_single or time.monotonic() < end or tried < options.minimum.get(part, 0)
        more = more and len(running) < options.jobs and all(case.possible for case in results)
        if more and (number := next(numbers, None)) is not None:
            running.add(pool.submit(run_case, workspace, part, number))
        elif not running:
            return results
        else:
            done, running = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            results += [future.result() for future in done]


def run_case(workspace, part: str, number: int):
    """Run a case; delete its folder if it finds no fault."""
    from tests.attack import damage, grammar, kills, limits
    from tests.attack.workspace import Case

    functions = vars(damage) | vars(grammar) | vars(limits) | vars(kills)
    rng = random.Random(f"{workspace.seed} {part} {number}")
    case = Case(workspace, workspace.new_folder(f"{part}-{number}"), number, rng)
    try:
        functions[part](case)
        shutil.rmtree(case.folder)
    except Fault as fault:
        kinds = " ".join(map(repr, workspace.kinds))
        again = f"--seed {workspace.seed} --only {part} --case {number} --kinds {kinds}"
        case.fault = f"{again}: {case.action}: {fault}"
        print(f"{case.row}: {case.fault}", flush=True)
    return case


def summarize(cases: list) -> dict:
    """Return the row of the table for cases of one kind."""
    return {
        "row": cases[0].row,
        "tried": sum(case.tried for case in cases),
        "faults": [case.fault for case in cases if case.fault],
        "note": next((case.note for case in cases if case.note), ""),
        "possible": all(case.possible for case in cases),
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="time for all parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=SHARES, default=list(SHARES))
    parser.add_argument("--kinds", nargs="*", help="kinds of run; default: all")
    parser.add_argument("--case", type=int, help="number of a single case of the only part")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--json", type=Path, help="file for the table")
    parser.add_argument("--minimum", type=json.loads, help='least tried: {"kills": 200, ...}')
    options = parser.parse_args()
    minimum = {part: number * options.minutes / 30 for part, number in LEAST.items()}
    options.minimum = minimum if options.minimum is None else options.minimum
    return options


if __name__ == "__main__":
    sys.exit(main())
