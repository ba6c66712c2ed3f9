"""Attack tlite: `python -m tests.attack --minutes 15 --seed 0`, or repeat a single case.

Cases kill runs, studies and processes of one run in turn. A case is determined by the seed, its
part and its number. If it detects a fault its folder is not deleted: the file `commands` lists the
commands that were run.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent import futures
from itertools import count
from multiprocessing import get_context
from pathlib import Path

from tests.attack import kills
from tests.attack.processes import Fault
from tests.attack.workspace import FILES, KINDS, Case, Workspace

PARTS = "kills", "several", "study"


def main() -> int:
    options = parse_options()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a background job and its children ignore some
    folder = Path(tempfile.mkdtemp(prefix="tlite-attack-"))
    for name, content in FILES.items():
        (folder / name).write_text(content)
    workspace = Workspace(folder, options.seed, tuple(options.kinds or KINDS))
    cases = run_cases(workspace, options)
    faults = [f"{case.row}: {case.fault}" for case in cases if case.fault]
    tried, failed = Counter(), Counter(case.row for case in cases if case.fault)
    for case in cases:
        tried[case.row] += case.tried
    print(f"\n{'part':40}  tried  faults")
    for row, number in sorted(tried.items()):
        print(f"{row:40}  {number:5}  {failed[row]:6}")
    print(*faults, sep="\n")
    if faults:
        print(f"{len(faults)} faults; the folders of these cases are in {folder}/cases")
    else:
        shutil.rmtree(folder)
    return bool(faults)


def run_cases(workspace: Workspace, options: argparse.Namespace) -> list[Case]:
    """Run cases of the parts in turn, several at a time, until the time is over."""
    end = time.monotonic() + 60 * options.minutes

    numbers = iter([options.case]) if options.case is not None else count()
    running, results = set(), []
    with futures.ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        for number in numbers:
            if options.case is None and number >= options.cases and time.monotonic() > end:
                break
            part = options.only[number % len(options.only)]
            running.add(pool.submit(run_case, workspace, part, number))
            if len(running) == options.jobs:
                done, running = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                results += [future.result() for future in done]
    return results + [future.result() for future in running]


def run_case(workspace: Workspace, part: str, number: int) -> Case:
    """Run a case; delete its folder unless it detects a fault."""
    rng = random.Random(f"{workspace.seed} {part} {number}")
    case = Case(workspace, workspace.new_folder(f"{part}-{number}"), rng)
    try:
        vars(kills)[part](case)
        shutil.rmtree(case.folder)
    except Fault as fault:
        kinds = " ".join(map(repr, workspace.kinds))
        again = f"--seed {workspace.seed} --only {part} --case {number} --kinds {kinds}"
        case.fault = f"{again}: {case.action}: {fault}"
        print(f"{case.row}: {case.fault}", flush=True)
    return case


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="time in which cases start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--kinds", nargs="*", help="kinds of run; default: all")
    parser.add_argument("--case", type=int, help="number of a single case of the only part")
    parser.add_argument("--cases", type=int, default=0, help="least number of cases")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
