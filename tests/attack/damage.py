"""Files of a run are damaged: what is then read is right, or refused in one sentence.

The run was killed on its way, and has a few checkpoints. What is whole in it may not be lost.
"""

import hashlib
import json
import random
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.attack import state
from tests.attack.kinds import Work
from tests.attack.processes import Fault, Process, Result
from tlite.cli import main

LOOKS = ("evaluate run --checkpoint {}", "generate run --tokens 40 --checkpoint {}")
VALUES = [None, 5, -1, 0, "x", "", [], {}, True, 1e300, 10**9, "a\0b", "/dev/zero", "../..", [[1]]]
CONFIGS = ["[" * 5000 + "]" * 5000, "[]", "null", "5", "{}", '{"experiment": 1}', '{"data": {}}']
FOREIGN = [
    *[b"null", b"{}", b"12", b"\xff", b"[1]", b"", b'"x"', b"[" * 5000, b'{"step": 4'],
    b'{"step": "x", "split": "training"}',
    b'{"step": null, "split": "validation"}',
    b'{"step": 4, "split": "validation"}',
    b'{"step": 1e999, "split": "training", "loss": 1}',
    b'{"step": 1000000000000000000000, "split": "training", "loss": "x"}',
]


def damage(work: Work, folder: Path, _: int, chance: random.Random, result: Result) -> None:
    """One damage; then the run is looked at, and gone on with."""
    run, right = folder / "run", work.reference("generator")
    shutil.copytree(right.half, run)
    ways = {checkpoint: 10, file: 4, exchange: 2, config: 5, metrics: 3, forbid: 2, lose: 1}
    way = chance.choices(list(ways), ways.values())[0]
    steps, look = state.steps_of(run), chance.choice(LOOKS)
    done, hit = way(chance, run)
    result.row, result.where = f"damage: {way.__name__}", f"{done}; {look.split()[0]}"
    before = contents(run)
    call = None if way is forbid else main  # root's rights end with a new program
    process = work.start(look.format("last").split(), folder, call=call).end()
    if not process.code and way is not config:
        # The last checkpoint is shown; or an earlier one, and that is said.
        allowed = steps if "damaged" in process.err else steps[-1:]
        if process.out not in [outputs(work, look)[step] for step in allowed]:
            raise Fault("it has read what was not written")
    if contents(run) != before:
        raise Fault("something of the run was changed")
    result.where = f"{done}; resume"
    process = work.start(["train", "--resume", "run"], folder, call=call)
    judge_resumed(process, work, run, way, before, [s for s in steps if s not in hit])
    # What can't be read is not damaged, nor is a checkpoint where the config was changed.
    called = {forbid: "damaged", config: "every checkpoint"}.get(way)
    if called and called in process.err:
        raise Fault(f"what is whole is called damaged: {process.err.strip().splitlines()[-1:]}")


def judge_resumed(process: Process, work: Work, run: Path, way, before: dict, whole: list[int]):
    """Raises a `Fault` for what is wrong with a run that was told to go on."""
    if way is config:  # it may be another run now, and a long one
        if process.wait(20):
            return process.judge()
        process.signal(signal.SIGINT)
        return process.end(0, 2, 130, -2, seconds=60)
    if process.end().code:
        kept, now = (*(f"checkpoints/{step}/" for step in whole), "metrics.jsonl"), contents(run)
        lost = [path for path in before if path.startswith(kept) and now.get(path) != before[path]]
        if lost:
            raise Fault(f"{lost[0]} was lost")
        return None
    if way is lose and "checkpoint" not in process.err:
        raise Fault("started again from the first step without a word")
    ours = work.checkpoints(run)["checkpoints"]
    right = work.reference("generator").checkpoints["checkpoints"]
    last = max(right, key=int)
    if other := [step for step in {*ours, last} & {*right} if ours.get(step) != right[step]]:
        raise Fault(f"it ended with other bits in {other}")
    return None


@cache
def outputs(work: Work, look: str) -> dict[int, str]:
    """What a command prints of each checkpoint of the run before it was damaged."""
    half, printed = work.reference("generator").half, {}
    for step in state.steps_of(half):
        folder = work.case(f"look-{random.getrandbits(64)}")
        shutil.copytree(half, folder / "run")
        printed[step] = work.start(look.format(step).split(), folder, call=main).end(0).out
        shutil.rmtree(folder)
    return printed


def contents(run: Path) -> dict[str, str]:
    """A hash of every file that is not drawn from others."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(run)
        if not {"samples", "plots"} & {*path.parts}
    }


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# Ways to damage a run. Each returns what it did, and the steps whose checkpoints it touched.


def spoil(chance: random.Random, path: Path, other: Path | None = None) -> str:
    """A file is cut, emptied, changed in a byte, deleted, or replaced."""
    content = path.read_bytes()
    way = chance.choice(["cut", "emptied", "changed", "changed", "deleted", "garbage", "exchanged"])
    if way == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif way == "emptied":
        path.write_bytes(b"")
    elif way == "changed" and content:
        place = chance.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
    elif way == "deleted":
        path.unlink()
    elif way == "exchanged" and other:
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        way = "garbage"
        path.write_bytes(chance.randbytes(len(content) + 1))
    return way


def checkpoint(chance: random.Random, run: Path):
    """A file of a checkpoint, mostly of the last."""
    steps = state.steps_of(run)
    step, other = chance.sample(steps, 2) if chance.random() < 0.4 else (steps[-1], steps[0])
    ours, others = (files(run / "checkpoints" / str(s)) for s in (step, other))
    index = chance.randrange(len(ours))
    way = spoil(chance, ours[index], others[index] if index < len(others) else None)
    return f"{ours[index].relative_to(run)} {way}", (step, other)[: 1 + (way == "exchanged")]


def file(chance: random.Random, run: Path):
    """A file of the run itself."""
    path = chance.choice([path for path in sorted(run.iterdir()) if path.is_file()])
    return f"{path.name} {spoil(chance, path)}", ()


def exchange(chance: random.Random, run: Path):
    """Whole folders change places."""
    steps = state.steps_of(run)
    one, other = (run / "checkpoints" / str(step) for step in chance.sample(steps, 2))
    inside = chance.choice(["", "", *(p.name for p in sorted(one.iterdir()) if p.is_dir())])
    (one / inside).rename(run / "away")
    (other / inside).rename(one / inside)
    (run / "away").rename(other / inside)
    return f"{one.name}/{inside} and {other.name}/{inside} exchanged", tuple(steps)


def config(chance: random.Random, run: Path):
    """The config is edited, or becomes another JSON."""
    path = run / "config.json"
    if chance.random() < 0.2:
        path.write_text(chance.choice(CONFIGS))
        return f"config.json became {path.read_text()[:20]}", ()
    content = json.loads(path.read_text())
    keys, value = chance.choice(list(leaves(content))), chance.choice(VALUES)
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))
    return f"{'.'.join(keys)} became {value!r} in config.json", ()


def leaves(tree: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names that lead to every value, and to every table of values."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def metrics(chance: random.Random, run: Path):
    """Lines of others come into metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines, more = path.read_bytes().splitlines(keepends=True), chance.sample(FOREIGN, 2)
    for line in more:
        lines.insert(chance.choice([0, len(lines), chance.randrange(len(lines))]), line + b"\n")
    path.write_bytes(b"".join(lines))
    return f"{more[0][:60]} and {more[1][:60]} in metrics.jsonl", ()


def forbid(chance: random.Random, run: Path):
    """What may not be read is whole all the same."""
    last = run / "checkpoints" / str(state.steps_of(run)[-1])
    path = chance.choice([last, run / "checkpoints", *files(last)])
    path.chmod(0o000)
    return f"{path.relative_to(run)} forbidden", ()


def lose(chance: random.Random, run: Path):
    """All checkpoints are deleted."""
    steps = state.steps_of(run)
    shutil.rmtree(run / "checkpoints")
    return "checkpoints/ deleted", tuple(steps)
