"""What a machine has little of: a disk that is full, at many fill levels; and open files."""

import contextlib
import ctypes
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from tests.attack import state
from tests.attack.kinds import Work
from tests.attack.processes import Fault, Result

NEW_NAMESPACE = 0x20000  # CLONE_NEWNS: mounts of this process, which end with it
PAGE = 4096
FILLED = "generator", "classifier"  # runs on a disk that is too small
GOLDEN = 0.6180339887
SAVES = (100, 600)  # of the cases of `handles`
HANDLES = 128  # as many may be open at a time
SLACK = 8  # of handles and threads, which come and go with what is under way


def disk(work: Work, folder: Path, number: int, _: random.Random, result: Result) -> None:
    """A run on a disk that is too small, from almost nothing to nearly enough, and then grows.

    One sentence, and with space the run goes on.
    """
    kinds = [kind for kind in FILLED if kind in work.kinds]
    kind, result.row = kinds[number % len(kinds)], "disk: fill levels"
    right = work.reference(kind)
    whole = sum(PAGE * (1 + path.stat().st_size // PAGE) for path in right.run.rglob("*"))
    # More evenly than chance would: multiples of the golden ratio.
    part = (random.Random(f"{work.seed} disk").random() + number * GOLDEN) % 1
    size = PAGE * max(1, int(1.3 * whole * part**2) // PAGE)
    result.where = f"{size >> 10} KB for a {kind} run"
    disk = folder / "disk"
    disk.mkdir()
    if reason := mount(disk, size):
        result.tried, result.note, result.possible = 0, f"not possible here: {reason}", False
        return
    try:
        process = work.start(work.train(kind, disk / "run"), folder).end(0, 2)
        if process.code and "space" not in process.err.strip().splitlines()[-1]:
            raise Fault(f"it does not say that the disk is full: {process.err.strip()}")
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(disk)], check=True)
        work.start(work.train(kind, disk / "run"), folder).end(0)
        right.compare(work, disk / "run")
    except Fault:
        shutil.copytree(disk, folder / "kept")
        raise
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def mount(disk: Path, size: int) -> str | None:
    """A small disk in the memory, for this process and what it starts; or why not."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACE):
        return os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "attack", str(disk)]
    return subprocess.run(line, capture_output=True, text=True, check=False).stderr.strip() or None


def handles(work: Work, folder: Path, number: int, _: random.Random, result: Result) -> None:
    """Open files, threads and memory of a run with many saves don't grow: least early and late."""
    saves, run, seen = SAVES[number], folder / "run", {}
    result.row = f"handles: {saves} saves, {HANDLES} handles"
    line = f"train my_text --path {work.folder}/text.txt --run {run} --context 8 --batch-size 4 "
    line += f"--width 8 --num-heads 2 --num-blocks 1 --steps {saves} --evaluate-every 1"
    process = work.start(line.split(), folder, handles=HANDLES)

    def watch() -> None:
        with contextlib.suppress(OSError, TypeError, IndexError):
            seen.setdefault(state.steps_of(run)[-1], []).append(usage(process.pid))

    process.wait(600, watch)
    process.end(0)
    early, late = (
        np.min([each for step in steps for each in seen.get(step, [])], axis=0)
        for steps in (range(2, 12), range(saves - 10, saves))
    )
    result.note = f"open files, threads, MB: {early} -> {late}"
    if (late - early > [SLACK, SLACK, 0.3 * early[2]]).any():
        raise Fault(f"they grew: {result.note}")


def usage(pid: int) -> tuple[int, int, int]:
    """Open files, threads and megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    threads, kilobytes = (
        int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("Threads", "VmRSS")
    )
    return len(os.listdir(f"/proc/{pid}/fd")), threads, kilobytes // 1024
