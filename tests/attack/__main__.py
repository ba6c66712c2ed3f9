"""The attack: `python -m tests.attack --minutes 15 --seed 0`, or a single case of it again.

All that is tried follows from the seed and the number of a case. A case that fails keeps its
folder; its file `commands` has what was run there.
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
from dataclasses import asdict
from itertools import count
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path

from tests.attack.processes import Fault, Result, surrounding

# The parts, each with its share of the time, and with what half an hour tries at least, on a slow
# machine too.
PARTS = {"kills": (30, 200), "study": (10, 30), "several": (15, 50), "grammar": (20, 300)}
PARTS |= {"damage": (12, 60), "disk": (9, 20), "handles": (4, 0)}


def main() -> int:
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix="tlite-attack-"))
    # Before JAX is imported: what is forked from this process is to be what users run.
    wanted = surrounding(folder)
    os.environ.clear()
    os.environ.update(wanted)
    from tests.attack.kinds import FILES, KINDS, Work

    for name, content in FILES.items():
        (folder / name).write_text(content)
    work = Work(folder, options.seed, tuple(options.kinds or KINDS))
    ends, left, rows = time.monotonic() + 60 * options.minutes, list(options.only), {}
    with futures.ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        while left:
            now, all_shares = time.monotonic(), sum(PARTS[part][0] for part in left)
            part = left.pop(0)
            until = now + (ends - now) * PARTS[part][0] / all_shares
            for result in sorted(attack(part, work, pool, options, until), key=attrgetter("row")):
                rows.setdefault(result.row, Result(result.row, 0)).add(result)
    rows = list(rows.values())
    faults = [f"{row.row}: {fault}" for row in rows for fault in row.faults]
    print(f"\n{'part':40}  tried  survived")
    for row in rows:
        survived = max(row.tried - len(row.faults), 0)
        print(f"{row.row:40}  {row.tried:5}  {survived:8}  {row.note}".rstrip())
    print(*faults, sep="\n")
    if options.json:
        content = {"seed": options.seed, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=2))
    if faults:
        print(f"{len(faults)} faults; the folders of these cases are in {folder}/cases")
    else:
        shutil.rmtree(folder)
    return bool(faults)


def attack(part: str, work, pool, options, until: float) -> list[Result]:
    """The cases of a part, several at a time: until then, and until so many were tried."""
    single, running, results = options.case is not None, set(), []
    numbers = iter([options.case] if single else range(2) if part == "handles" else count())
    while True:
        tried = sum(result.tried for result in results) + len(running)
        more = single or time.monotonic() < until or tried < options.minimum.get(part, 0)
        more = more and len(running) < options.jobs and all(result.possible for result in results)
        if more and (number := next(numbers, None)) is not None:
            running.add(pool.submit(attempt, work, part, number))
        elif not running:
            return results
        else:
            done, running = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            results += [case.result() for case in done]


def attempt(work, part: str, number: int) -> Result:
    """A case; the folder of one that has found nothing is deleted."""
    from tests.attack import damage, grammar, kills, limits

    cases = vars(damage) | vars(grammar) | vars(limits) | vars(kills)
    folder, chance = work.case(f"{part}-{number}"), random.Random(f"{work.seed} {part} {number}")
    result = Result()
    try:
        cases[part](work, folder, number, chance, result)
        shutil.rmtree(folder)
    except Fault as fault:
        kinds = " ".join(map(repr, work.kinds))
        again = f"--seed {work.seed} --only {part} --case {number} --kinds {kinds}"
        result.faults.append(f"{again}: {result.where}: {fault}")
        print(f"{result.row}: {result.faults[0]}", flush=True)
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="shared among the parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kinds", nargs="*", help="of runs; all unless given")
    parser.add_argument("--case", type=int, help="a single case of the only part")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="a file for the table")
    parser.add_argument("--minimum", type=json.loads, help='tried at least: {"kills": 200, ...}')
    options = parser.parse_args()
    least = {part: number * options.minutes / 30 for part, (_, number) in PARTS.items()}
    options.minimum = least if options.minimum is None else options.minimum
    return options


if __name__ == "__main__":
    sys.exit(main())
