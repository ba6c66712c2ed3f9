"""Runs that are killed at random moments, again and again, and end as an undisturbed run."""

import contextlib
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

from tests.attack import state
from tests.attack.processes import Fault, Process
from tests.attack.workspace import Case, Reference, metrics_bytes

SIGNALS = [signal.SIGKILL] * 5 + [signal.SIGINT] * 2 + [signal.SIGTERM, signal.SIGHUP]
SIGNALS_OF_SEVERAL = [signal.SIGKILL] * 5 + [signal.SIGINT, signal.SIGTERM]
LAUNCH = ["launch", "-n", "2", "--devices-each", "1"]
HEARTBEAT = ["--heartbeat", "10"]  # seconds without a sign of life
SECONDS = 60  # for all processes to end after a signal


def kills(case: Case) -> None:
    """Kill a run five to ten times."""
    kinds = [kind for kind in case.workspace.kinds if kind != "study"]
    kill_repeatedly(case, case.rng.choice(kinds), 5, 10)


def study(case: Case) -> None:
    """Kill a study, which trains its variants one after the other, ten times."""
    kill_repeatedly(case, "study", 10, 10)


def several(case: Case) -> None:
    """Kill a run that is trained by two processes, then by one, by two, ...

    Two processes with one device each divide a batch as one process with two devices.
    """
    kill_repeatedly(case, "generator", 2, 4, several=True)


def kill_repeatedly(case: Case, kind: str, least: int, most: int, *, several=False) -> None:
    """Start a run, kill it, resume it, kill it, ..., leave it alone, and compare it.

    The first three kills of a single process are at chosen moments, all others at random ones.

    Args:
        least, most: bounds of the number of kills.
        several: True for two processes and one in turn.
    """
    rng, run = case.rng, case.folder / "run"
    reference = case.workspace.reference(kind)
    cold_cache = case.workspace.folder / "cold" / case.folder.name
    case.row, case.tried = "several processes" if several else f"kills: {kind}", 0
    signals, is_launched = (SIGNALS_OF_SEVERAL if several else SIGNALS), several
    moments = [] if several else [*MOMENTS]
    # Without compiled programs more kills come during a compilation.
    environment = {"XDG_CACHE_HOME": str(cold_cache)} if rng.random() < 0.25 else {}
    for num_left in reversed(range(rng.randint(least, most) + 1)):
        before, number = progress(run, reference), rng.choice(signals)
        arguments = case.workspace.train_arguments(kind, run)
        arguments = ["tlite", *LAUNCH * is_launched, *arguments, *HEARTBEAT * several]
        process, moment = case.start(arguments, **environment), None
        if moments:
            wait, number, moment = moments.pop(0)
            wait(process, run)
        elif num_left:
            moment = wait_for_random_moment(rng, process, run, reference)
        if moment:
            case.tried += 1
            has_trained = progress(run, reference).is_later_than(before)
            pids = process_ids(process) if several else [process.pid]
            target = rng.randrange(len(pids)) if several else 0
            case.action = f"{number.name} to process {target} of {len(pids)} at {moment}"
            if not target:
                process.signal(number)
            elif is_alive(pids[target]):
                os.kill(pids[target], number)
            process.finish(SECONDS)
            wait_for_end(pids[1:])
            now = progress(run, reference)  # a step ends after a signal during its compilation
            has_trained |= now.is_later_than(before)
            must_save = has_trained and now.folder is not None
            check_end(process, number, target, now if must_save else None, run)
        else:
            case.action = f"after {case.tried} kills"
            process.end(0)
            reference.compare(case.workspace, run)
        log = process.out.partition("\n\n")[0].splitlines()  # the sample comes after an empty line
        if several and len(log) != len(set(log)):
            raise Fault("more than one process prints the log")
        if not moment:
            break
        is_launched = several and not is_launched
    shutil.rmtree(cold_cache, ignore_errors=True)


def wait_for_folder(process: Process, run: Path) -> None:
    process.wait(300, run.exists)


def wait_for_write(process: Process, run: Path) -> None:
    """Stop the process while it writes a checkpoint, which takes about 10 ms."""

    def is_writing() -> bool:
        return any(".orbax-checkpoint-tmp" in path for path in list_paths(run, 3))

    while not process.wait(300, is_writing):
        process.signal(signal.SIGSTOP)
        if is_writing():
            return
        process.signal(signal.SIGCONT)
    raise Fault("it ended before it was seen to write a checkpoint")


def wait_for_steps(process: Process, run: Path) -> None:
    size = metrics_bytes(run)
    process.wait(300, lambda: metrics_bytes(run) > size)


MOMENTS = [
    (wait_for_folder, signal.SIGKILL, "the creation of its folder"),
    (wait_for_write, signal.SIGKILL, "the write of a checkpoint"),
    (wait_for_steps, signal.SIGINT, "its first steps"),
]


def wait_for_random_moment(
    rng: random.Random, process: Process, run: Path, reference: Reference
) -> str | None:
    """Wait for a random moment of the rest of a run; return its name, None if the run has ended."""
    size = metrics_bytes(run)
    left = 1 - size / reference.metrics_bytes
    fraction, kind, num_changes = rng.random(), rng.random(), rng.randint(1, 12)
    if kind < 0.5:
        seconds = reference.startup_seconds + left * reference.training_seconds
        has_ended = process.wait(fraction * seconds)
        return None if has_ended else f"{fraction:.0%} of the remaining time"
    # During a write, a renaming or a removal: after a number of changes of the files' names.
    min_size = size + fraction * left * reference.metrics_bytes if kind < 0.9 else -1
    if process.wait(300, lambda: metrics_bytes(run) > min_size):
        return None
    for _ in range(num_changes):
        paths = list_paths(run.parent)
        if process.wait(2, lambda paths=paths: list_paths(run.parent) != paths):
            return None
    return f"change {num_changes} of a name after {min_size:.0f} bytes of metrics"


def list_paths(folder: Path | str, depth: int = 4) -> set[str]:
    """Return the paths below a folder; depth 4 includes the content of a checkpoint."""
    paths = set()
    with contextlib.suppress(OSError):  # removed meanwhile
        for entry in os.scandir(folder):
            paths.add(entry.path)
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                paths |= list_paths(entry.path, depth - 1)
    return paths


def process_ids(process: Process) -> list[int]:
    """Return the ids of a process and its children."""
    children = ""
    with contextlib.suppress(OSError):  # it has just ended
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [process.pid, *map(int, children.split())]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for_end(pids: list[int]) -> None:
    """Raise a `Fault` for processes that do not end in time, and kill them."""
    deadline = time.monotonic() + SECONDS
    while alive := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > deadline:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            raise Fault(f"{len(alive)} still running {SECONDS} s after their launch had ended")
        time.sleep(0.05)


def check_end(
    process: Process, number: int, target: int, due: "Progress | None", run: Path
) -> None:
    """Check exit code, stderr and the saved step after a signal.

    Args:
        number: the signal.
        target: 0 if the process got it, else the number of its child that did.
        due: progress that must have been saved; None if no steps were made.
    """
    if target:
        if process.code == 0:
            return process.check(0)
        lines = process.err.splitlines()
        if not any(line.startswith("tlite: ") for line in lines):
            raise Fault(f"exit code {process.code}, and no line of tlite: {lines[:3]}")
        if number == signal.SIGKILL or not due:
            return None if process.code == 2 else process.check(128 + number)
    if number == signal.SIGKILL:
        return process.check(-number, 0)
    if due:
        process.check(128 + number)
        if due.step != due.saved:
            raise Fault(f"step {due.step} was not saved")
        if not process.err.endswith(f" train --resume {run}\n"):
            raise Fault("it does not print how to resume")
    elif process.code not in (-number, 1) or "/tlite/" in process.err:  # else Python was starting
        process.check(128 + number, -number, 0)
    return None


class Progress(NamedTuple):
    """Progress of a run, or of the pretraining or variant under way; no folder: none is."""

    folder: Path | None = None
    step: int = 0
    saved: int = 0
    changed: int = 0

    def is_later_than(self, before: "Progress") -> bool:
        """Return True if steps were made; metrics after the last checkpoint are removed first."""
        first = before.saved if before.folder == self.folder else 0
        return bool(self.folder) and self.step > first and self.changed != before.changed


def progress(run: Path, reference: Reference) -> Progress:
    for path in state.metrics_files(run):
        steps = re.findall(r'"step": (\d+)', path.read_text())
        step = int(steps[-1]) if steps else 0
        if step < reference.metrics[str(path.relative_to(run))][-1]["step"]:
            saved = max(state.steps_of(path.parent), default=0)
            return Progress(path.parent, step, saved, path.stat().st_mtime_ns)
    return Progress()
