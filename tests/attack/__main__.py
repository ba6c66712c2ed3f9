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
from multiprocessing import get_context
from pathlib import Path

from tests.attack.processes import Fault, Result, surrounding

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
    os.environ.clear()
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
    if faults:
        print(f"{len(faults)} faults; the folders of these cases are in {folder}/cases")
    else:
        shutil.rmtree(folder)
    return bool(faults)


def parts() -> dict[str, tuple]:
    """By name what tries a case, and the kinds of run that it needs."""
    from tests.attack import damage, grammar, kills, limits

    return {
        "kills": (kills.kills, kills.RUNS),
        "study": (kills.study, ("study",)),
        "several": (kills.several, ("generator",)),
        "grammar": (grammar.grammar, grammar.NEEDS),
        "damage": (damage.damage, ("generator",)),
        "disk": (limits.disk, limits.FILLED),
        "handles": (limits.handles, ()),
    }


def attempt(work, part: str, number: int) -> Result:
    """A case; the folder of one that has found nothing is deleted."""
    folder, chance = work.case(f"{part}-{number}"), random.Random(f"{work.seed} {part} {number}")
    result = Result()
    try:
        parts()[part][0](work, folder, number, chance, result)
        shutil.rmtree(folder)
    except Fault as fault:
        result.faults.append(f"{result.where}: {fault}")
    return result


def attack(part: str, work, pool, options, until: float, made: set[str]) -> list[Result]:
    """The cases of a part, several at a time: until then, and until so many were tried."""
    from tests.attack.kinds import make_reference

    case, last = options.case, 2 if part == "handles" else 10**9
    needed = [kind for kind in work.kinds if kind in parts()[part][1]]
    if part == "kills" and case is not None:
        needed = [needed[case % len(needed)]]
    needed = [kind for kind in needed if kind not in made]
    list(pool.map(make_reference, [work] * len(needed), needed))
    made |= {*needed}
    following, last = (0, last) if case is None else (case, case + 1)
    results, running = [], {}
    again = f"--seed {work.seed} --only {part}"
    again += f" --kinds {' '.join(map(repr, options.kinds))}" if options.kinds else ""
    while True:
        tried = sum(result.tried for result in results) + len(running)
        more = case is not None or time.monotonic() < until or tried < options.minimum.get(part, 0)
        more = more and all(result.possible for result in results)
        if more and following < last and len(running) < options.jobs:
            running[pool.submit(attempt, work, part, following)] = following
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
        row = rows.setdefault(result.row, Result(result.row, 0))
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
    least = {part: number * options.minutes / 30 for part, number in HALF_AN_HOUR.items()}
    given = {part: int(n) for part, n in (pair.split("=") for pair in options.minimum)}
    options.minimum = given or least
    return options


if __name__ == "__main__":
    sys.exit(main())
