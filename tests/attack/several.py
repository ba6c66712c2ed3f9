"""A run goes from two processes to one and back, killed at random moments: its bits stay the same.

Two processes with a device each and one with two devices divide a batch alike.
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path

from tests.attack.kills import fault_of, progress, wait_for_moment
from tests.attack.kinds import Work
from tests.attack.processes import Process, Result

NEEDS = ("generator",)
SIGNALS = [signal.SIGKILL] * 5 + [signal.SIGINT, signal.SIGTERM]
LAUNCH = ["launch", "-n", "2", "--devices-each", "1"]
HEARTBEAT = 10  # seconds after which a process without a sign of life is lost
SECONDS = 60  # for all processes to end, once one is told to


def case(work: Work, number: int) -> Result:
    """A chain: started by two processes, killed, gone on with by one, killed, by two, ..."""
    chance = random.Random(f"{work.seed} several {number}")
    right, result = work.reference("generator"), Result("several processes")
    folder, cold = work.case(f"several-{number}"), work.folder / "cold" / f"several-{number}"
    run, together = folder / "run", True
    environment = {"XDG_CACHE_HOME": str(cold)} if chance.random() < 0.25 else {}
    for to_come in reversed(range(chance.randint(2, 4) + 1)):
        before, sent = progress(run, right), chance.choice(SIGNALS)
        line = [*LAUNCH * together, *work.train("generator", run)]
        line += ["--heartbeat", str(HEARTBEAT)]
        process = work.start(line, folder, environment=environment)
        if to_come and (moment := wait_for_moment(chance, process, run, right)):
            result.tried += 1
            trained = progress(run, right).later_than(before)
            all_ = family(process)
            hit = chance.choice(all_)
            place = all_.index(hit)
            end(process, hit, sent)
            fault = ended(process, all_) or fault_of_end(process, sent, place, trained, run, right)
            if fault := fault or twice(process):
                who = f"{['it', 'process 0', 'process 1'][place]} of {1 + together}"
                result.faults.append(f"{sent.name} to {who} at {moment}: {fault}")
        else:
            fault = process.finish() or process.fault(0) or twice(process)
            if fault := fault or right.difference(work, run):
                result.faults.append(f"after {result.tried} kills: {fault}")
            break
        together = not together
    shutil.rmtree(cold, ignore_errors=True)
    if not result.faults:
        shutil.rmtree(folder)
    return result


def family(process: Process) -> list[int]:
    """Itself, and the processes that it has launched."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:  # ended just now
        children = []
    return [process.pid, *map(int, children)]


def end(process: Process, hit: int, sent: int) -> None:
    if hit == process.pid:
        process.signal(sent)
    elif alive(hit):
        os.kill(hit, sent)


def ended(process: Process, all_: list[int]) -> str | None:
    """What is wrong where one of them has not ended in time."""
    if fault := process.finish(SECONDS):
        return fault
    last = time.monotonic() + SECONDS
    while left := [pid for pid in all_[1:] if alive(pid)]:
        if time.monotonic() > last:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return f"{len(left)} processes still at work {SECONDS} s after their launch had ended"
        time.sleep(0.05)
    return None


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def fault_of_end(process: Process, sent: int, place: int, trained: bool, run: Path, right):
    """What is wrong with how it ended; where another one is lost that is told in a sentence."""
    if not place:
        return fault_of(process, sent, trained, run, right)
    if process.code == 0:
        return process.fault(0)
    lines = process.err.strip().splitlines()
    if len(lines) != 1 or not lines[0].startswith("tlite: "):
        return f"exit code {process.code}, and not one sentence: {lines[:3]}"
    if sent == signal.SIGKILL:
        return process.fault(128 + sent, 2)
    if trained and progress(run, right).folder:
        return fault_of(process, sent, trained, run, right)
    return process.fault(128 + sent, 2)


def twice(process: Process) -> str | None:
    """What several processes have said, though one was to say it."""
    said = process.out.partition("steps in")[0].splitlines()
    return "it says all twice" if len(said) != len(set(said)) else None
