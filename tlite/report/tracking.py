"""Write the metrics of a run for TensorBoard or Weights & Biases, also while it trains."""

import contextlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from tlite.errors import UserError, check_packages
from tlite.training.config import TrainingConfig, read_training
from tlite.training.metrics import is_finished, parse_line
from tlite.training.run_dir import RUN, experiment_fields, read_config

POLL_SECONDS = 1.0

Write = Callable[[int, str, str, float], None]
"""Writes a value: (step, folder of its replica or "", tag, value)."""
WriterContext = contextlib.AbstractContextManager[Write]


def follow(folder: Path, to: Literal["tensorboard", "wandb"]) -> None:
    """Print the command that shows the metrics of a run, and write them until it has ended.

    Writing starts again if metrics.jsonl was truncated.

    Raises:
        UserError: the folder is not a run's, or a package is missing.
    """
    training_of(folder)
    check_packages(to, [WRITERS[to].package])
    print(f"{WRITERS[to].command} {shlex.quote(str(folder / to))}", flush=True)
    while not (folder / "metrics.jsonl").exists():
        time.sleep(POLL_SECONDS)
    while not write_metrics(folder, WRITERS[to].open):
        pass


def training_of(folder: Path) -> TrainingConfig:
    """Return the training config of a run, which `train --resume --steps` may have changed."""
    try:
        fields = experiment_fields(read_config(folder / RUN)["experiment"])
        return read_training(fields["training"])
    except ValueError as error:
        raise UserError(f"this version of tlite can't read {folder / RUN}: {error}") from error


def write_metrics(folder: Path, open_writer: Callable[[Path], WriterContext]) -> bool:
    """Write from the first line on; return True at the end of the run, False if truncated."""
    validations = []
    with (folder / "metrics.jsonl").open("rb") as file, open_writer(folder) as write:
        while os.fstat(file.fileno()).st_size >= file.tell():
            while (text := file.readline()).endswith(b"\n"):
                if line := parse_line(text):
                    for value in read_values(line):
                        write(line["step"], *value)
                    validations += [line] if line["split"] == "validation" else []
            file.seek(-len(text), os.SEEK_CUR)  # a line that is not complete yet
            if is_finished(training_of(folder), validations):
                return True
            time.sleep(POLL_SECONDS)
    return False


def read_values(line: dict) -> Iterator[tuple[str, str, float | int]]:
    """Yield (replica's folder or "", tag, value): ("", "training/loss", 1.5), ("replica-0", ...).

    Values that are not finite, null in the line, are skipped.
    """
    for name in line.keys() - {"step", "split"}:
        tag, value = f"{line['split']}/{name.removesuffix('_replicas')}", line[name]
        values = enumerate(value) if isinstance(value, list) else [(None, value)]
        for replica, number in values:
            if number is not None:
                yield "" if replica is None else f"replica-{replica}", tag, number


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[Write]:
    """Write event files into the run's folder `tensorboard`, and those of replicas below it.

    TensorBoard draws the replicas as lines of one picture. Each file starts a session, so that
    TensorBoard drops the points of earlier files.
    """
    # tensorboardX's `SummaryWriter` waits forever for a thread that a full disk has ended.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    files = {}

    def add(replica: str, **event) -> None:
        files[replica].write_event(Event(wall_time=time.time(), **event))
        files[replica].flush()

    def write(step: int, replica: str, tag: str, value: float) -> None:
        if replica not in files:
            path = folder / "tensorboard" / replica
            path.mkdir(parents=True, exist_ok=True)
            # Files are read in the order of their names, whose time has seconds only.
            files[replica] = EventsWriter(str(path / "events"), f".{time.time_ns():020d}")
            add(replica, step=1, session_log=SessionLog(status=SessionLog.START))
        add(replica, step=step, summary=Summary(value=[{"tag": tag, "simple_value": value}]))

    yield write
    for file in files.values():
        file.close()


@contextlib.contextmanager
def weights_and_biases(folder: Path) -> Iterator[Write]:
    """Write an offline run into the run's folder `wandb`; `wandb sync` uploads it.

    W&B can't resume an offline run: an earlier one is replaced by a new one with the same id.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it uploads its own errors
    import wandb

    earlier = sorted((folder / "wandb").glob("offline-run-*"))
    flags = ("silent", "disable_git", "disable_code", "x_disable_meta", "x_disable_stats")
    settings = dict.fromkeys((*flags, "x_disable_machine_info"), True)
    with wandb.init(
        mode="offline",
        dir=str(folder),
        project=os.environ.get("WANDB_PROJECT", "tlite"),
        name="/".join(folder.resolve().parts[-2:]),
        id=earlier[-1].name.rpartition("-")[2] if earlier else None,
        config=json.loads((folder / RUN).read_text("utf-8")),
        reinit="create_new",
        settings=wandb.Settings(console="off", x_save_requirements=False, **settings),
    ) as run:
        for path in earlier:
            shutil.rmtree(path, ignore_errors=True)
        yield lambda step, replica, tag, value: run.log(
            {f"{replica}/{tag}".removeprefix("/"): value}, step=step
        )


class Tracker(NamedTuple):
    package: str
    open: Callable[[Path], WriterContext]
    command: str
    """Command that shows or uploads the folder appended to it."""


WRITERS = {
    "tensorboard": Tracker("tensorboardX", tensorboard, "tensorboard --logdir"),
    "wandb": Tracker("wandb", weights_and_biases, "wandb sync --include-offline"),
}
