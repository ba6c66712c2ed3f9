"""Damaged files of a run: what is read from them is right, or an error of one line.

The run was killed at 60 % of its steps and has a few checkpoints; none that is intact may be lost.
"""

import hashlib
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.attack import state
from tests.attack.processes import Fault, Process
from tests.attack.workspace import Case, Workspace
from tlite.cli import main

Damage = tuple[str, tuple[int, ...]]
"""A description, and the steps of the checkpoints that are damaged."""
READERS = ("evaluate run --checkpoint {}", "generate run --tokens 40 --checkpoint {}")


def damage(case: Case) -> None:
    """Damage a run once; read it; resume it."""
    run, rng = case.folder / "run", case.rng
    shutil.copytree(case.workspace.reference("generator").half, run)
    ways = {checkpoint: 10, exchange: 2, file: 4}
    way = rng.choices(list(ways), ways.values())[0]
    steps, reader = state.steps_of(run), rng.choice(READERS)
    description, damaged_steps = way(rng, run)
    case.row, case.action = f"damage: {way.__name__}", f"{description}; {reader.split()[0]}"
    before = hash_files(run)
    process = case.start(reader.format("last").split(), call=main).end()
    if not process.code:
        # It has read the last checkpoint; or an earlier one with a warning.
        allowed = steps if "damaged" in process.err else steps[-1:]
        if process.out not in [outputs(case.workspace, reader)[step] for step in allowed]:
            raise Fault("it has read what was not saved")
    if hash_files(run) != before:
        raise Fault("a command that only reads has changed the run")
    case.action = f"{description}; resume"
    process = case.start(["train", "--resume", "run"], call=main)
    intact_steps = [step for step in steps if step not in damaged_steps]
    check_resumed(process, case, way, before, intact_steps)


def check_resumed(
    process: Process, case: Case, way: Callable, before: dict[str, str], intact_steps: list[int]
) -> None:
    """Raise a `Fault` for a resumed run that loses intact files or ends with other bits."""
    run = case.folder / "run"
    if process.end(*((0,) if way is checkpoint and intact_steps else (0, 2))).code:
        now = hash_files(run)
        intact = (*(f"checkpoints/{step}/" for step in intact_steps), "metrics.jsonl")
        changed = [p for p in before if p.startswith(intact) and now.get(p) != before[p]]
        if changed:
            raise Fault(f"{changed[0]} was lost")
    else:
        digests = case.workspace.checkpoints(run)["checkpoints"]
        expected = case.workspace.reference("generator").checkpoints["checkpoints"]
        last = max(expected, key=int)
        steps = {*digests, last} & {*expected}
        if wrong := [step for step in steps if digests.get(step) != expected[step]]:
            raise Fault(f"it ended with other bits in {wrong}")


@cache
def outputs(workspace: Workspace, reader: str) -> dict[int, str]:
    """Return what a command prints for each checkpoint of the undamaged run."""
    half, printed = workspace.reference("generator").half, {}
    for step in state.steps_of(half):
        folder = workspace.new_folder(f"output-{random.getrandbits(64)}")
        shutil.copytree(half, folder / "run")
        process = workspace.start(reader.format(step).split(), folder, call=main)
        printed[step] = process.end(0).out
        shutil.rmtree(folder)
    return printed


def hash_files(run: Path) -> dict[str, str]:
    """Return the hash of every file but samples and plots, which are drawn from the others."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in list_files(run)
        if not {"samples", "plots"} & {*path.parts}
    }


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# Ways to damage a run.


def checkpoint(rng: random.Random, run: Path) -> Damage:
    """Damage a file of a checkpoint, mostly of the last."""
    steps = state.steps_of(run)
    step, other = rng.sample(steps, 2) if rng.random() < 0.4 else (steps[-1], steps[0])
    files, others = (list_files(run / "checkpoints" / str(s)) for s in (step, other))
    index = rng.randrange(len(files))
    way = damage_file(rng, files[index], others[index] if index < len(others) else None)
    return f"{files[index].relative_to(run)} {way}", (step, other)[: 1 + (way == "exchanged")]


def file(rng: random.Random, run: Path) -> Damage:
    """Damage a file of the run folder itself."""
    path = rng.choice([path for path in sorted(run.iterdir()) if path.is_file()])
    return f"{path.name} {damage_file(rng, path)}", ()


def damage_file(rng: random.Random, path: Path, other: Path | None = None) -> str:
    """Cut, empty, change, delete or replace a file; return which of these."""
    content = path.read_bytes()
    way = rng.choice(["cut", "emptied", "changed", "changed", "deleted", "garbage", "exchanged"])
    if way == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif way == "emptied":
        path.write_bytes(b"")
    elif way == "changed" and content:
        i = rng.randrange(len(content))
        path.write_bytes(content[:i] + bytes([content[i] ^ 0xFF]) + content[i + 1 :])
    elif way == "deleted":
        path.unlink()
    elif way == "exchanged" and other:
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        way = "garbage"
        path.write_bytes(rng.randbytes(len(content) + 1))
    return way


def exchange(rng: random.Random, run: Path) -> Damage:
    """Exchange two checkpoints, or one folder of theirs."""
    steps = state.steps_of(run)
    one, other = (run / "checkpoints" / str(step) for step in rng.sample(steps, 2))
    name = rng.choice(["", "", *(p.name for p in sorted(one.iterdir()) if p.is_dir())])
    (one / name).rename(run / "away")
    (other / name).rename(one / name)
    (run / "away").rename(other / name)
    return f"{one.name}/{name} and {other.name}/{name} exchanged", tuple(steps)
