"""Runs are killed at random moments, again and again: each ends as one that nobody disturbed."""

import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

from tests.attack import state
from tests.attack.kinds import KINDS, Reference, Work, grown
from tests.attack.processes import Process, Result

NEEDS = tuple(kind for kind in KINDS if kind != "study")
SIGNALS = [signal.SIGKILL] * 5 + [signal.SIGINT] * 2 + [signal.SIGTERM, signal.SIGHUP]


def case(work: Work, number: int) -> Result:
    """A chain of five to ten kills."""
    chance = random.Random(f"{work.seed} kills {number}")
    return chain(work, kind_of(work, number), f"kills-{number}", chance, 5)


def kind_of(work: Work, number: int) -> str:
    """What a case kills."""
    kinds = [kind for kind in work.kinds if kind in NEEDS]
    return kinds[number % len(kinds)]


def chain(work: Work, kind: str, name: str, chance: random.Random, least: int) -> Result:
    """A run is started, killed, resumed, killed, ..., at last left alone and compared."""
    right, result = work.reference(kind), Result(f"kills: {kind}")
    folder, cold = work.case(name), work.folder / "cold" / name
    run = folder / "run"
    # Where nothing is compiled yet, more moments are within a compilation.
    environment = {"XDG_CACHE_HOME": str(cold)} if chance.random() < 0.25 else {}
    for to_come in reversed(range(chance.randint(least, 10) + 1)):
        before, sent = progress(run, right), chance.choice(SIGNALS)
        process = work.start(work.train(kind, run), folder, environment=environment)
        if to_come and (moment := wait_for_moment(chance, process, run, right)):
            result.tried += 1
            trained = progress(run, right).later_than(before)
            process.signal(sent)
            if fault := process.finish(60) or fault_of(process, sent, trained, run, right):
                result.faults.append(f"{sent.name} at {moment}: {fault}")
        else:
            fault = process.finish() or process.fault(0) or right.difference(work, run)
            if fault:
                result.faults.append(f"after {result.tried} kills: {fault}")
            break
    shutil.rmtree(cold, ignore_errors=True)
    if not result.faults:
        shutil.rmtree(folder)
    return result


def wait_for_moment(chance: random.Random, process: Process, run: Path, right: Reference):
    """Until a random moment of what is left to do; its name, or None: the process ended before."""
    begun = grown(run)
    left = 1 - begun / right.size
    fraction, kind, changes = chance.random(), chance.random(), chance.randint(1, 12)
    if kind < 0.5:  # anywhere
        ended = process.wait(fraction * (right.startup + left * right.training))
        return None if ended else f"{fraction:.0%} of the time that is left"
    # While something is written, renamed, deleted: when so many names have come or gone.
    wanted = begun + fraction * left * right.size if kind < 0.9 else -1
    if process.wait(300, lambda: grown(run) > wanted):
        return None
    gone = kind > 0.7  # renamed or deleted
    for _ in range(changes):
        seen = names(run.parent)

        def changed(seen: set[str] = seen) -> bool:
            now = names(run.parent)
            return bool(seen - now) if gone else seen != now

        if process.wait(2, changed):
            return None
    what = "name that was gone" if gone else "change of names"
    return f"{what} {changes} after {wanted:.0f} bytes of metrics"


def names(folder: Path, depth: int = 4) -> set[str]:
    """The paths below a folder, down to what is directly in a checkpoint."""
    found = set()
    try:
        for entry in os.scandir(folder):
            found.add(entry.path)
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                found |= names(entry.path, depth - 1)
    except OSError:  # gone meanwhile
        pass
    return found


def fault_of(process: Process, sent: int, trained: bool, run: Path, right: Reference):
    """What is wrong with how a signal has ended it."""
    if sent == signal.SIGKILL:
        return process.fault(-sent, 0)
    now = progress(run, right)
    if trained and now.folder:  # what was under way is saved
        fault = process.fault(128 + sent)
        return fault or (None if now.step == now.saved else f"step {now.step} was not saved")
    if process.code in (-sent, 1) and "/tlite/" not in process.err:
        return None  # Python itself had not started yet
    return process.fault(128 + sent, -sent, 0)


class Progress(NamedTuple):
    """What a run is at: itself, or what is trained before it; no folder: nothing, or at its end."""

    folder: Path | None = None
    step: int = 0
    saved: int = 0
    changed: int = 0

    def later_than(self, before: "Progress") -> bool:
        """Whether steps were made; metrics after the last checkpoint are cut off first."""
        known = before.saved if before.folder == self.folder else 0
        return bool(self.folder) and self.step > known and self.changed != before.changed


def progress(run: Path, right: Reference) -> Progress:
    for path in state.metrics_files(run):
        steps = re.findall(r'"step": (\d+)', path.read_text())
        step = int(steps[-1]) if steps else 0
        if step < right.metrics[str(path.relative_to(run))][-1]["step"]:
            saved = max(state.steps_of(path.parent), default=0)
            return Progress(path.parent, step, saved, path.stat().st_mtime_ns)
    return Progress()
