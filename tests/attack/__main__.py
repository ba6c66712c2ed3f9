"""The attack: `python -m tests.attack --minutes 15 --seed 0`, or a single case of it again.

All that is tried follows from the seed and the number of a case. A case that fails keeps its
folder; its file `commands` has what was run there.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent import futures
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from tests.attack.processes import Result, surrounding

# The parts, each with its share of the time; and what half an hour tries at least, on a slow
# machine too.
SHARES = {"kills": 30, "study": 10, "several": 15, "grammar": 20, "damage": 12, "disk": 9}
SHARES |= {"handles": 4}
HALF_AN_HOUR = {"kills": 200, "study": 30, "several": 50, "grammar": 300, "damage": 60, "disk": 20}


def main() -> int:
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix="tlite-attack-"))
    # Before JAX is imported: what is forked from this process is to be what users run.
    wanted = surrounding(folder)
    for name in {*os.environ} - {*wanted}:
        del os.environ[name]
    os.environ.update(wanted)
    from tests.attack.kinds import FILES, KINDS, Work

    for name, content in FILES.items():
        (folder / name).write_text(content)
    work = Work(folder, options.seed, tuple(options.kinds or KINDS))
    left = {part: SHARES[part] for part in SHARES if part in options.only}
    ends, rows, made = time.monotonic() + 60 * options.minutes, [], set()
    with futures.ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        while left:
            part, all_shares = next(iter(left)), sum(left.values())
            now = time.monotonic()
            until = now + (ends - now) * left.pop(part) / all_shares
            rows += merge(attack(part, work, pool, options, until, made))
    faults = [f"{row.row}: {fault}" for row in rows for fault in row.faults]
    print("\n".join(["", *table(rows), *faults]))
    if options.json:
        content = {"seed": options.seed, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=2))
    for path in folder.iterdir():
        if path.name != "cases":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if faults:
        print(f"{len(faults)} faults; the folders of these cases are in {folder}/cases")
    else:
        shutil.rmtree(folder)
    return bool(faults)


def attack(part: str, work, pool, options, until: float, made: set[str]) -> list[Result]:
    """The cases of a part, several at a time: until then, and until so many were tried."""
    from tests.attack.kinds import make_reference

    module = importlib.import_module(f"tests.attack.{part}")
    needed = [kind for kind in module.NEEDS if kind in {*work.kinds} - made]
    last = len(getattr(module, "CASES", range(10**9)))
    following, results, running = 0, [], {}
    if options.case is not None:
        following, last = options.case, options.case + 1
        if part == "kills":
            needed = [module.kind_of(work, options.case)]
    list(pool.map(make_reference, [work] * len(needed), needed))
    made |= set(needed)
    again = f"--seed {work.seed} --only {part}"
    again += f" --kinds {' '.join(map(repr, options.kinds))}" if options.kinds else ""
    while True:
        tried = sum(result.tried for result in results) + len(running)
        more = time.monotonic() < until or tried < options.minimum.get(part, 0)
        more = (more or options.case is not None) and all(result.possible for result in results)
        if more and following < last and len(running) < options.jobs:
            running[pool.submit(module.case, work, following)] = following
            following += 1
        elif not running:
            return results
        else:
            for done in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
                number, result = running.pop(done), done.result()
                result.faults = [f"{again} --case {number}: {fault}" for fault in result.faults]
                for fault in result.faults:
                    print(f"{result.row}: {fault}", flush=True)
                results.append(result)


def merge(results: list[Result]) -> list[Result]:
    """One for each row, in the order of their names."""
    rows: dict[str, Result] = {}
    for result in sorted(results, key=lambda result: result.row):
        row = rows.setdefault(result.row, Result(result.row))
        row.tried += result.tried
        row.faults += result.faults
        row.note, row.possible = result.note or row.note, row.possible and result.possible
    return list(rows.values())


def table(results: list[Result]) -> list[str]:
    rows = [("part", "tried", "survived", "")]
    for result in results:
        survived = max(result.tried - len(result.faults), 0)
        rows.append((result.row, str(result.tried), str(survived), result.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="shared among the parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=SHARES, default=list(SHARES))
    parser.add_argument("--kinds", nargs="*", help="of runs; all unless given")
    parser.add_argument("--case", type=int, help="a single case of the only part")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="a file for the table")
    help_ = "tried however long it takes: kills=200 grammar=300; in proportion unless given"
    parser.add_argument("--minimum", nargs="*", default=[], metavar="PART=N", help=help_)
    options = parser.parse_args()
    pairs = (pair.split("=") for pair in options.minimum)
    least = {part: number * options.minutes / 30 for part, number in HALF_AN_HOUR.items()}
    options.minimum = {part: int(number) for part, number in pairs} or least
    return options


if __name__ == "__main__":
    sys.exit(main())
