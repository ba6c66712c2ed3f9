"""What a machine has little of: a disk that is full, at many fill levels; and open files."""

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.attack import state
from tests.attack.kinds import Work
from tests.attack.processes import Result

NEW_NAMESPACE = 0x20000  # CLONE_NEWNS: mounts of this process, which end with it
PAGE = 4096
FILLED = "generator", "classifier"  # runs on a disk that is too small
GOLDEN = 0.6180339887
SAVES = (150, 600)  # of the cases of `handles`
HANDLES = 128  # as many may be open at a time
SLACK = 8  # of handles and threads, which come and go with what is under way


def disk(work: Work, folder: Path, number: int, _: random.Random) -> Result:
    """A run on a disk that is too small, from almost nothing to nearly enough, and then grows.

    One sentence, and with space the run goes on.
    """
    kinds = [kind for kind in FILLED if kind in work.kinds]
    kind, result = kinds[number % len(kinds)], Result("disk: fill levels")
    right = work.reference(kind)
    whole = sum(PAGE * (1 + path.stat().st_size // PAGE) for path in right.run.rglob("*"))
    # More evenly than chance would: multiples of the golden ratio.
    part = (random.Random(f"{work.seed} disk").random() + number * GOLDEN) % 1
    size = PAGE * max(1, int(1.3 * whole * part**2) // PAGE)
    disk = folder / "disk"
    disk.mkdir()
    if reason := mount(disk, size):
        return Result(result.row, 0, note=f"not possible here: {reason}", possible=False)
    process = work.start(work.train(kind, disk / "run"), folder)
    fault = process.finish() or process.fault(0, 2)
    if not fault and process.code and "space" not in process.err.strip().splitlines()[-1]:
        fault = f"it does not say that the disk is full: {process.err.strip()}"
    if not fault:
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(disk)], check=True)
        process = work.start(work.train(kind, disk / "run"), folder)
        fault = process.finish() or process.fault(0) or right.difference(work, disk / "run")
    if fault:
        shutil.copytree(disk, folder / "kept")
        result.faults.append(f"{size >> 10} KB for a {kind} run: {fault}")
    subprocess.run(["umount", "-l", disk], check=False)
    return result


def mount(disk: Path, size: int) -> str | None:
    """A small disk in the memory, for this process and what it starts; or why not."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACE):
        return os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "attack", str(disk)]
    return subprocess.run(line, capture_output=True, text=True, check=False).stderr.strip() or None


def handles(work: Work, folder: Path, number: int, _: random.Random) -> Result:
    """A run with many saves is watched from outside: handles, threads, memory must not grow.

    The least of some moments after the second save is held to that of the last ones.
    """
    saves = SAVES[number]
    result = Result(f"handles: {saves} saves, {HANDLES} handles")
    run, seen = folder / "run", {}
    line = f"train text --path {work.folder}/text.txt --run {run} --context 8 --batch-size 4 "
    line += f"--width 8 --num-heads 2 --num-blocks 1 --steps {saves} --evaluate-every 1"
    process = work.start(line.split(), folder, handles=HANDLES)

    def watch() -> bool:
        with contextlib.suppress(OSError, KeyError, IndexError):
            seen.setdefault(state.steps_of(run)[-1], []).append(usage(process.pid))
        return False

    def least(steps: range) -> list[int]:
        moments = [usage for step in steps for usage in seen.get(step, [])]
        return [min(values) for values in zip(*moments, strict=True)]

    process.wait(600, watch)
    fault = process.finish() or process.fault(0)
    if not fault:
        first, last = least(range(2, 12)), least(range(saves - 10, saves))
        result.note = "{} -> {} handles, {} -> {} threads, {} -> {} MB".format(
            *(number for pair in zip(first, last, strict=True) for number in pair)
        )
        grown = last[0] > first[0] + SLACK or last[1] > first[1] + SLACK
        fault = f"they grew: {result.note}" if grown or last[2] > 1.3 * first[2] else None
    if fault:
        result.faults.append(fault)
    return result


def usage(pid: int) -> tuple[int, int, int]:
    """Open files, threads and megabytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    memory = int(values["VmRSS"].split()[0]) // 1024
    return len(os.listdir(f"/proc/{pid}/fd")), int(values["Threads"]), memory
