"""`tlite follow`: the metrics of a run for TensorBoard or Weights & Biases.

A process of its own reads metrics.jsonl, also while the run is trained: the run knows nothing of
it, and can't be harmed by it.
"""

import contextlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tlite.config import from_dict
from tlite.errors import UserError, check_packages
from tlite.training.config import TrainingConfig
from tlite.training.metrics import is_finished, parse_line
from tlite.training.run_dir import RUN, experiment_fields, read_config

SECONDS = 1.0  # between two looks

Write = Callable[[int, str, str, float], None]
"""Takes step, part, tag and value, to be seen soon."""
Writer = Callable[[Path], contextlib.AbstractContextManager[Write]]


def follow(options: Any) -> None:
    """Write what metrics.jsonl has, and what is added to it, until the run has ended.

    Where a resumed run has cut it back, all is written anew.

    Raises:
        UserError: the folder is not a run's, or the package that writes is not installed.
    """
    folder, (package, writer, advice) = options.run, WRITERS[options.to]
    read_training(folder)
    check_packages(options.to, [package])
    print(f"{advice} {shlex.quote(str(folder / options.to))}", flush=True)
    while not (folder / "metrics.jsonl").exists():
        time.sleep(SECONDS)
    while not write_all(folder, writer):
        pass


def read_training(folder: Path) -> TrainingConfig:
    """How a run is trained; `train --resume --steps` may have changed it."""
    try:
        return from_dict(
            TrainingConfig, experiment_fields(read_config(folder / RUN)["experiment"])["training"]
        )
    except ValueError as error:
        raise UserError(f"{folder / RUN} is not one that this tlite can read: {error}") from error


def write_all(folder: Path, writer: Writer) -> bool:
    """Write from the first line on; whether the run has ended, else lines were cut off."""
    validations = []
    with (folder / "metrics.jsonl").open("rb") as file, writer(folder) as write:
        while os.fstat(file.fileno()).st_size >= file.tell():
            while (text := file.readline()).endswith(b"\n"):
                if line := parse_line(text):
                    for value in values(line):
                        write(line["step"], *value)
                    validations += [line] if line["split"] == "validation" else []
            file.seek(-len(text), os.SEEK_CUR)  # of a line that is being written
            if is_finished(read_training(folder), validations):
                return True
            time.sleep(SECONDS)
    return False


def values(line: dict) -> Iterator[tuple[str, str, float | int]]:
    """("", "training/loss", ...) of all replicas together, ("replica-0", ...) of each.

    What is not finite, null in the line, is left out.
    """
    for name in line.keys() - {"step", "split"}:
        tag, value = f"{line['split']}/{name.removesuffix('_replicas')}", line[name]
        each = enumerate(value) if isinstance(value, list) else [(None, value)]
        for replica, number in each:
            if number is not None:
                yield "" if replica is None else f"replica-{replica}", tag, number


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[Write]:
    """Event files in the run's folder `tensorboard`; of several replicas also in replica-0, ...

    So TensorBoard draws the replicas as lines of one picture. A file begins by telling it to forget
    what those before it say.
    """
    # Its `SummaryWriter` waits for ever for a thread that a full disk has ended: not this.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    files = {}

    def add(part: str, **event) -> None:
        files[part].write_event(Event(wall_time=time.time(), **event))
        files[part].flush()

    def write(step: int, part: str, tag: str, value: float) -> None:
        if part not in files:
            (place := folder / "tensorboard" / part).mkdir(parents=True, exist_ok=True)
            # Files are read in the order of their names, which have seconds only.
            files[part] = EventsWriter(str(place / "events"), f".{time.time_ns():020d}")
            add(part, step=1, session_log=SessionLog(status=SessionLog.START))
        add(part, step=step, summary=Summary(value=[{"tag": tag, "simple_value": value}]))

    yield write
    for file in files.values():
        file.close()


@contextlib.contextmanager
def weights_and_biases(folder: Path) -> Iterator[Write]:
    """An offline run in the run's folder `wandb`, which `wandb sync` takes to a server.

    Nothing is sent or asked for. W&B can't go on with an offline run: where there is one, a new one
    takes its place, and its name on the server.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it sends its own errors away
    import wandb

    before = sorted((folder / "wandb").glob("offline-run-*"))
    told_less = ("silent", "disable_git", "disable_code", "x_disable_meta", "x_disable_stats")
    settings = dict.fromkeys((*told_less, "x_disable_machine_info"), True)
    with wandb.init(
        mode="offline",
        dir=str(folder),
        project=os.environ.get("WANDB_PROJECT", "tlite"),
        name="/".join(folder.resolve().parts[-2:]),
        id=before[-1].name.rpartition("-")[2] if before else None,
        config=json.loads((folder / RUN).read_text("utf-8")),
        reinit="create_new",
        settings=wandb.Settings(console="off", x_save_requirements=False, **settings),
    ) as run:
        for other in before:
            shutil.rmtree(other, ignore_errors=True)
        yield lambda step, part, tag, value: run.log(
            {f"{part}/{tag}".removeprefix("/"): value}, step=step
        )


WRITERS = {
    "tensorboard": ("tensorboardX", tensorboard, "tensorboard --logdir"),
    "wandb": ("wandb", weights_and_biases, "wandb sync --include-offline"),
}
"""The package that each needs, and what shows its folder."""
