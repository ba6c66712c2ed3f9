"""What follows a run as it trains, beside metrics.jsonl: TensorBoard, Weights & Biases."""

import contextlib
import importlib
import json
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from tlite.errors import UserError, needs_extra, system_reason
from tlite.terminal import printable
from tlite.training.metrics import MetricsFile, mean_line, read_metrics

SECONDS = 0.4  # between two points of training: each is the mean of all steps since the last
SECONDS_KEPT = 5.0  # in memory, at most, before an event file is written
REPLAYED = 2000  # points of training, at most, that a follower gets of what was before it

Values = dict[str, float | int]


class Follower(ABC):
    """Gets the values of a line of metrics.jsonl, of all members together and of each.

    Anything it raises ends it, and not the training.

    Args:
        folder: of the run.
        step: the one that training starts from, or goes on from.
    """

    package: str
    """Its Python package, in the extra of the follower's name."""
    replays: bool
    """Whether it has to be given what was before `step`."""

    @abstractmethod
    def __init__(self, folder: Path, step: int): ...

    @abstractmethod
    def write(self, step: int, values: Values, of_members: list[Values]) -> None: ...

    @abstractmethod
    def keep(self) -> None:
        """What was written stays, whatever becomes of the process."""

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Follower):
    """Event files in the run's folder `tensorboard`; of several members also member-0, ...

    So TensorBoard draws the members as lines of one picture. A resumed run tells it to forget what
    it had of later steps.
    """

    package = "tensorboardX"

    def __init__(self, folder: Path, step: int):
        # Its `SummaryWriter` waits for ever for a thread that a full disk has ended: not this.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._open, self._events, self._summaries = EventsWriter, event_pb2, summary_pb2
        self._folder, self._step, self._files, self._kept = folder / "tensorboard", step, {}, 0.0
        self.replays = step > 0 and not any(self._folder.glob("events.*"))

    def write(self, step: int, values: Values, of_members: list[Values]) -> None:
        self._add("", step, values)
        for member, own in enumerate(of_members):
            self._add(f"member-{member}", step, own)
        if time.monotonic() - self._kept > SECONDS_KEPT:
            self.keep()

    def _add(self, part: str, step: int, values: Values) -> None:
        value = self._summaries.Summary.Value
        summary = [value(tag=tag, simple_value=number) for tag, number in values.items()]
        event = {"step": step, "summary": self._summaries.Summary(value=summary)}
        self._file(part).write_event(self._events.Event(wall_time=time.time(), **event))

    def _file(self, part: str):
        if part not in self._files:
            folder = self._folder / part
            folder.mkdir(parents=True, exist_ok=True)
            # Files are read in the order of their names, which have seconds only.
            file = self._open(str(folder / "events"), f".{time.time_ns():020d}")
            self._files[part] = file
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            after = 0 if self.replays else self._step
            file.write_event(
                self._events.Event(wall_time=time.time(), step=after + 1, session_log=start)
            )
        return self._files[part]

    def keep(self) -> None:
        self._kept = time.monotonic()
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class WeightsAndBiases(Follower):
    """An offline run in the run's folder `wandb`, which `wandb sync` takes to a server.

    Nothing is sent or asked for. W&B can't go on with an offline run: a resumed run writes a new
    one with the same name on the server, from metrics.jsonl, in place of the one that there was.
    """

    package = "wandb"

    def __init__(self, folder: Path, step: int):
        import wandb

        self._before = sorted((folder / "wandb").glob("offline-run-*"))
        self.replays = step > 0
        config = folder / "config.json"
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            mode="offline",
            dir=str(folder),
            project=os.environ.get("WANDB_PROJECT", "tlite"),
            name=f"{folder.resolve().parent.name}/{folder.resolve().name}",
            id=self._before[-1].name.rpartition("-")[2] if self._before else None,
            config=json.loads(config.read_text("utf-8")) if config.is_file() else None,
            reinit="create_new",
            settings=settings,
        )

    def write(self, step: int, values: Values, of_members: list[Values]) -> None:
        own = [
            (f"member-{member}/{name}", value)
            for member, values in enumerate(of_members)
            for name, value in values.items()
        ]
        self._run.log(values | dict(own), step=step)

    def keep(self) -> None:
        """metrics.jsonl keeps it; what was there before is no longer needed."""
        for folder in self._before:
            shutil.rmtree(folder, ignore_errors=True)
        self._before = []

    def close(self) -> None:
        self._run.finish()


FOLLOWERS: dict[str, type[Follower]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def check_followers(names: Iterable[str]) -> None:
    """Raises a `UserError` where a follower's package is missing, or of no use."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B sends its own errors away
    for name in names:
        package = FOLLOWERS[name].package
        with needs_extra(name):
            try:
                importlib.import_module(package)
            except ModuleNotFoundError:
                raise
            except Exception as error:
                reason = " ".join(str(error).split())
                raise UserError(f"the package {package} can't be imported: {reason}") from error


class FollowedMetrics(MetricsFile):
    """metrics.jsonl, and those who follow it.

    A line of a validation goes to them as it is. Lines of training, up to thousands a second, are
    thinned: at most once in `SECONDS` their mean goes, under the number of the last. What a
    follower fails of is told once, and the run goes on without it.
    """

    def __init__(self, path: Path, names: Iterable[str]):
        check_followers(names)
        super().__init__(path)
        self._names, self._followers = tuple(dict.fromkeys(names)), {}
        self._waiting: list[dict] = []
        self._last = 0.0

    def cut_after(self, step: int) -> None:
        super().cut_after(step)
        for name in self._names:
            self._do(name, lambda name=name: self._begin(name, step))

    def _begin(self, name: str, step: int) -> None:
        self._followers[name] = follower = FOLLOWERS[name](self.path.parent, step)
        if follower.replays:
            for line in read_metrics(self.path, most=REPLAYED):
                follower.write(*_values(line))
        follower.keep()

    def write(self, lines: list[dict]) -> None:
        super().write(lines)
        if not self._followers:
            return
        for line in lines:
            if line["split"] == "training":
                self._waiting.append(line)
                continue
            self._tell()
            for name, follower in list(self._followers.items()):
                self._do(name, lambda f=follower, line=line: (f.write(*_values(line)), f.keep()))
        if time.monotonic() - self._last > SECONDS:
            self._tell()

    def _tell(self) -> None:
        """Hand on what waits."""
        lines, self._waiting, self._last = self._waiting, [], time.monotonic()
        if not lines:
            return
        values = _values(mean_line(lines))
        for name, follower in list(self._followers.items()):
            self._do(name, lambda f=follower: f.write(*values))

    def _do(self, name: str, action) -> None:
        """Something with a follower, which is left out from now on if it fails."""
        try:
            action()
        except Exception as error:
            reason = system_reason(error) or " ".join(str(error).split()) or type(error).__name__
            message = f"warning: --follow {name} has ended ({reason}): the training goes on"
            print(printable(message), file=sys.stderr)
            follower = self._followers.pop(name, None)
            with contextlib.suppress(Exception):  # which has been told
                if follower:
                    follower.close()

    def __exit__(self, *exception):
        self._tell()
        for name, follower in list(self._followers.items()):
            self._do(name, follower.close)
        return super().__exit__(*exception)


def _values(line: dict) -> tuple[int, Values, list[Values]]:
    """Step, values of all members together, and of each member where there are several.

    What is not finite, null in the line, is left out.
    """
    split, together, of_members = line["split"], {}, {}
    for name, value in line.items():
        if name in ("step", "split") or value is None:
            continue
        if isinstance(value, list):
            for member, number in enumerate(value):
                own = of_members.setdefault(member, {})
                if number is not None:
                    own[f"{split}/{name.removesuffix('_members')}"] = number
        else:
            together[f"{split}/{name}"] = value
    return line["step"], together, list(of_members.values())
