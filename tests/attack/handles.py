"""A run with many saves is watched from outside: handles, threads and memory must not grow."""

import contextlib
import os
import shutil
from pathlib import Path

from tests.attack import state
from tests.attack.kinds import Work
from tests.attack.processes import Result

NEEDS = ()
CASES = (150, 600)  # saves
HANDLES = 128  # as many may be open at a time
SLACK = 8  # of handles and threads, which come and go with what is under way


def case(work: Work, number: int) -> Result:
    """The least of some moments after the second save, and of the last ones."""
    folder, saves = work.case(f"handles-{number}"), CASES[number]
    run, result = folder / "run", Result(f"handles: {saves} saves, {HANDLES} handles", 1)
    line = f"train text --path {work.folder}/text.txt --run {run} --context 8 --batch-size 4 "
    line += f"--width 8 --num-heads 2 --num-blocks 1 --steps {saves} --evaluate-every 1"
    process = work.start(line.split(), folder, handles=HANDLES)
    seen: dict[int, list[tuple[int, int, int]]] = {}

    def watch() -> bool:
        with contextlib.suppress(OSError, KeyError, IndexError):
            seen.setdefault(state.steps_of(run)[-1], []).append(usage(process.pid))
        return False

    process.wait(600, watch)
    fault = process.finish() or process.fault(0)
    if not fault:
        first, last = least(seen, range(2, 12)), least(seen, range(saves - 10, saves))
        result.note = "{} -> {} handles, {} -> {} threads, {} -> {} MB".format(
            *(number for pair in zip(first, last, strict=True) for number in pair)
        )
        grown = last[0] > first[0] + SLACK or last[1] > first[1] + SLACK
        fault = f"they grew: {result.note}" if grown or last[2] > 1.3 * first[2] else None
    if fault:
        result.faults.append(fault)
    else:
        shutil.rmtree(folder)
    return result


def least(seen: dict[int, list[tuple[int, int, int]]], steps: range) -> list[int]:
    moments = [usage for step in steps for usage in seen.get(step, [])]
    return [min(values) for values in zip(*moments, strict=True)]


def usage(pid: int) -> tuple[int, int, int]:
    """Open files, threads and megabytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    memory = int(values["VmRSS"].split()[0]) // 1024
    return len(os.listdir(f"/proc/{pid}/fd")), int(values["Threads"]), memory
