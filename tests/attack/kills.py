"""Runs are killed at random moments, again and again: each ends as one that nobody disturbed."""

import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

from tests.attack import state
from tests.attack.kinds import KINDS, Reference, Work, grown
from tests.attack.processes import Fault, Process, Result

RUNS = tuple(kind for kind in KINDS if kind != "study")
SIGNALS = [signal.SIGKILL] * 5 + [signal.SIGINT] * 2 + [signal.SIGTERM, signal.SIGHUP]
TO_ONE_OF_SEVERAL = [signal.SIGKILL] * 5 + [signal.SIGINT, signal.SIGTERM]
LAUNCH = ["launch", "-n", "2", "--devices-each", "1"]
HEARTBEAT = ["--heartbeat", "10"]  # seconds after which one without a sign of life is lost
SECONDS = 60  # for all processes to end, once one is told to


def kills(work: Work, folder: Path, number: int, chance: random.Random, result: Result) -> None:
    """A chain of five to ten kills."""
    kinds = [kind for kind in work.kinds if kind in RUNS]
    chain(work, kinds[number % len(kinds)], folder, chance, (5, 10), result)


def study(work: Work, folder: Path, _: int, chance: random.Random, result: Result) -> None:
    """A chain of ten, of variants one after the other."""
    chain(work, "study", folder, chance, (10, 10), result)


def several(work: Work, folder: Path, _: int, chance: random.Random, result: Result) -> None:
    """Started by two processes, killed, gone on with by one, killed, by two, ...

    Two processes with a device each and one with two devices divide a batch alike.
    """
    chain(work, "generator", folder, chance, (2, 4), result, several=True)


def chain(work, kind: str, folder: Path, chance, number: tuple, result: Result, several=False):
    """A run is started, killed, resumed, killed, ..., at last left alone and compared.

    The first three kills of one process are at moments that matter, all others at random ones.
    """
    right, run, cold = work.reference(kind), folder / "run", work.folder / "cold" / folder.name
    result.row, result.tried = "several processes" if several else f"kills: {kind}", 0
    signals, together = (TO_ONE_OF_SEVERAL if several else SIGNALS), several
    chosen = [] if several else [before_a_checkpoint, at_a_checkpoint, by_ctrl_c]
    # Where nothing is compiled yet, more moments are within a compilation.
    environment = {"XDG_CACHE_HOME": str(cold)} if chance.random() < 0.25 else {}
    for to_come in reversed(range(chance.randint(*number) + 1)):
        before, sent = progress(run, right), chance.choice(signals)
        line = [*LAUNCH * together, *work.train(kind, run), *HEARTBEAT * several]
        process, moment = work.start(line, folder, environment=environment), None
        if chosen:
            sent, moment = chosen.pop(0)(process, run)
        elif to_come:
            moment = wait_for_moment(chance, process, run, right)
        if moment:
            result.tried += 1
            trained = progress(run, right).later_than(before)
            all_ = family(process) if several else [process.pid]
            place = chance.randrange(len(all_)) if several else 0
            result.where = f"{sent.name} to {place or 'it'} of {len(all_)} at {moment}"
            if not place:
                process.signal(sent)
            elif alive(all_[place]):
                os.kill(all_[place], sent)
            process.finish(SECONDS)
            wait_for_end(all_[1:])
            judge_end(process, sent, place, trained, run, right)
        else:
            result.where = f"after {result.tried} kills"
            process.end(0)
            right.compare(work, run)
        log = process.out.partition("\n\n")[0].splitlines()  # the sample comes after an empty line
        if several and len(log) != len(set(log)):
            raise Fault("more than one process prints the log")
        if not moment:
            break
        together = several and not together
    shutil.rmtree(cold, ignore_errors=True)


def before_a_checkpoint(process: Process, run: Path) -> tuple[signal.Signals, str]:
    process.wait(300, run.exists)
    return signal.SIGKILL, "the appearance of its folder"


def at_a_checkpoint(process: Process, run: Path) -> tuple[signal.Signals, str]:
    """A write takes about 10 ms: once it is seen, it may end before the process is stopped."""

    def writing() -> bool:
        return any(re.search(r"/checkpoints/[^/]*[^/\d][^/]*$", path) for path in names(run, 3))

    while not process.wait(300, writing):
        process.signal(signal.SIGSTOP)
        if writing():
            return signal.SIGKILL, "a checkpoint that is being written"
        process.signal(signal.SIGCONT)
    raise Fault("it was at its end before a checkpoint was seen to be written")


def by_ctrl_c(process: Process, run: Path) -> tuple[signal.Signals, str]:
    begun = grown(run)
    process.wait(300, lambda: grown(run) > begun)
    return signal.SIGINT, "its first steps"


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


def family(process: Process) -> list[int]:
    """Itself, and the processes that it has launched."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:  # ended just now
        children = []
    return [process.pid, *map(int, children)]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for_end(launched: list[int]) -> None:
    """Raises a `Fault` where some do not end in time; they are killed."""
    last = time.monotonic() + SECONDS
    while left := [pid for pid in launched if alive(pid)]:
        if time.monotonic() > last:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise Fault(f"{len(left)} still at work {SECONDS} s after their launch had ended")
        time.sleep(0.05)


def judge_end(process: Process, sent: int, place: int, trained: bool, run: Path, right: Reference):
    """How a signal has ended it, or one to another, which is told in a sentence.

    Args:
        place: of what it was sent to: 0 the process itself, others are what it has launched.
        trained: whether it had made steps.
    """
    now = progress(run, right)
    saves = trained and now.folder  # what is under way
    if place:
        if process.code == 0:
            return process.judge(0)
        lines = process.err.strip().splitlines()
        lines = [line for line in lines if not line.startswith("warning: ")]
        if len(lines) != 1 or not lines[0].startswith("tlite: "):
            raise Fault(f"exit code {process.code}, and not one sentence: {lines[:3]}")
        if sent == signal.SIGKILL or not saves:
            return process.judge(128 + sent, 2)
    if sent == signal.SIGKILL:
        return process.judge(-sent, 0)
    if saves:
        process.judge(128 + sent)
        if now.step != now.saved:
            raise Fault(f"step {now.step} was not saved")
        if not process.err.endswith(f" train --resume {run}\n"):
            raise Fault("it does not say how to go on")
    elif process.code not in (-sent, 1) or "/tlite/" in process.err:  # Python itself had started
        process.judge(128 + sent, -sent, 0)
    return None


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
