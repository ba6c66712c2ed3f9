"""Limits of a machine: disks that are too small, and few open files."""

import ctypes
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.attack import state
from tests.attack.processes import Fault
from tests.attack.workspace import Case

CLONE_NEWNS = 0x20000  # a mount namespace that ends with this process
PAGE_BYTES = 4096
DISK_KINDS = "generator", "classifier"
GOLDEN_RATIO = 0.6180339887
SAVES = (100, 500)  # of the cases of `handles`
MAX_OPEN_FILES = 128


def disk(case: Case) -> None:
    """Train on a disk that is too small, of any size up to enough; enlarge it, and resume."""
    workspace = case.workspace
    kinds = [kind for kind in DISK_KINDS if kind in workspace.kinds]
    kind, case.row = kinds[case.number % len(kinds)], "disk: fill levels"
    reference, disk = workspace.reference(kind), case.folder / "disk"
    pages = sum(1 + path.stat().st_size // PAGE_BYTES for path in reference.run.rglob("*"))
    # Multiples of the golden ratio are more even than random numbers.
    start = random.Random(f"{workspace.seed} disk").random()
    size = PAGE_BYTES * max(1, int(1.3 * pages * ((start + case.number * GOLDEN_RATIO) % 1) ** 2))
    case.action = f"{size >> 10} KB for a {kind} run"
    disk.mkdir()
    if reason := mount(disk, size):
        case.tried, case.note, case.possible = 0, f"not possible here: {reason}", False
        return
    try:
        process = case.start(workspace.train_arguments(kind, disk / "run")).end(0, 2)
        if process.code and "space" not in process.err.strip().splitlines()[-1]:
            raise Fault(f"the error does not say that the disk is full: {process.err.strip()}")
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(disk)], check=True)
        case.start(workspace.train_arguments(kind, disk / "run")).end(0)
        reference.compare(workspace, disk / "run")
    except Fault:
        shutil.copytree(disk, case.folder / "kept")
        raise
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def mount(disk: Path, size: int) -> str:
    """Mount a disk in memory for this process and its children; return an error message or ""."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        return os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "attack", str(disk)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def handles(case: Case) -> None:
    """Save many times with few open files."""
    saves, run = SAVES[case.number], case.folder / "run"
    case.row = f"handles: {saves} saves, {MAX_OPEN_FILES} open files"
    text = case.workspace.folder / "text.txt"
    sizes = "--width 8 --num-heads 2 --num-blocks 1 --context 8 --batch-size 4 --evaluate-every 1"
    command = f"train my_text --path {text} --run {run} {sizes} --steps {saves}"
    case.start(command.split(), max_open_files=MAX_OPEN_FILES).end(0, seconds=600)
    if state.steps_of(run)[-1] != saves:
        raise Fault(f"the last checkpoint is {state.steps_of(run)[-1]}")
