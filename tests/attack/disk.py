"""A disk that is full, at many fill levels: one sentence, and with space the run goes on."""

import ctypes
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.attack.kinds import Work
from tests.attack.processes import Result

NEEDS = ("generator", "classifier")
NEW_NAMESPACE = 0x20000  # CLONE_NEWNS: mounts of this process, which end with it
PAGE = 4096
GOLDEN = 0.6180339887


def case(work: Work, number: int) -> Result:
    """A run on a disk that is too small, from almost nothing to nearly enough, and then grows."""
    kinds = [kind for kind in NEEDS if kind in work.kinds]
    kind, folder = kinds[number % len(kinds)], work.case(f"disk-{number}")
    right, result = work.reference(kind), Result("disk: fill levels", 1)
    whole = sum(PAGE * (1 + path.stat().st_size // PAGE) for path in right.run.rglob("*"))
    # More evenly than chance would: multiples of the golden ratio.
    part = (random.Random(f"{work.seed} disk").random() + number * GOLDEN) % 1
    size = PAGE * max(1, int(1.3 * whole * part**2) // PAGE)
    disk = folder / "disk"
    disk.mkdir()
    if reason := mount(disk, size):
        shutil.rmtree(folder)
        return Result(result.row, note=f"not possible here: {reason}", possible=False)
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
    if not fault:
        shutil.rmtree(folder)
    return result


def mount(disk: Path, size: int) -> str | None:
    """A small disk in the memory, for this process and what it starts; or why not."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACE):
        return os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "attack", str(disk)]
    return subprocess.run(line, capture_output=True, text=True, check=False).stderr.strip() or None
