"""Runs are folders: which there are, and how far they have come, by their small files alone.

JAX is not imported, and no experiment is made: what is damaged is listed as that.
"""

import contextlib
import datetime
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tlite.errors import UserError

LATEST = "latest"
RUN, STUDY = "config.json", "study.json"
MARKS = {RUN, STUDY, "metrics.jsonl", "checkpoints"}
"""What a run or a study has at least one of."""


class Found(NamedTuple):
    """A run or a study, as a list tells it."""

    folder: Path
    experiment: str = ""
    kind: str = "damaged"
    """generator, classifier, translator, study; damaged."""
    done: int = 0
    """The step of the last checkpoint; of a study the variants at their last step."""
    of: int = 0
    """Steps, or variants, in all."""
    best: str = ""
    """What the best validation has found: "loss 1.0802"."""

    @property
    def began(self) -> datetime.datetime:
        """When it did, in local time."""
        return datetime.datetime.fromtimestamp(_seconds(self.folder))


def find_folders(root: Path, depth: int | None = None) -> list[Path]:
    """The runs and studies below a folder, newest first; a study's own runs are not among them.

    Args:
        depth: 1 for those in the folder itself only, and so on; however deep unless given.
    """
    found = []
    for place, folders, files in os.walk(root):
        marked = MARKS & {*folders, *files}
        if marked or (depth and len(Path(place).relative_to(root).parts) >= depth):
            folders.clear()
        if marked and kind_of(Path(place)) != "pretrained":
            found.append(Path(place))
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found, key=lambda folder: (_seconds(folder), folder), reverse=True)


def newest(root: Path = Path("runs"), kind: str = "") -> Path:
    """The run or study that was begun last, but for damaged ones; of one kind if told.

    Raises:
        UserError: there is none.
    """
    if found := next(_whole(find_folders(root), kind), None):
        return found
    which = f"{kind}'s run" if kind else "run"
    raise UserError(f"there is no latest {which}: {Path.cwd() / root} has none")


def find_run(folder: str | Path, kind: str = "") -> Path:
    """The folder that is meant: in a folder of runs the newest, of one kind if told.

    `latest` is the newest in ./runs, whatever ./latest is.
    """
    if str(folder) == LATEST:
        return newest(kind=kind)
    folder = Path(folder)
    inside = find_folders(folder, depth=2) if os.path.isdir(folder) else []
    return next(_whole(inside, kind), folder)


def _whole(folders: Iterable[Path], kind: str) -> Iterator[Path]:
    for folder in folders:
        found = describe(folder).kind
        if found == kind or (not kind and found != "damaged"):
            yield folder


def kind_of(folder: Path) -> str:
    """Of a run the kind of its experiment; of models of others "pretrained"; "": not known."""
    if not os.path.exists(folder):
        from tlite.pretrained import is_pretrained

        return "pretrained" if is_pretrained(folder) else ""  # a name on the hub
    try:
        content = json.loads((folder / RUN).read_text(encoding="utf-8"))
        return "pretrained" if "model_type" in content else str(content["experiment"]["kind"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def describe(folder: Path) -> Found:
    """What a folder's files say."""
    try:
        return _study(folder) if (folder / STUDY).is_file() else _run(folder)
    except (OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return Found(folder)
    except RecursionError:
        return Found(folder)


def _run(folder: Path) -> Found:
    experiment = _read(folder / RUN)["experiment"]
    name, kind, training = (experiment[key] for key in ("name", "kind", "training"))
    steps, checkpoints = int(training["steps"]), folder / "checkpoints"
    names = os.listdir(checkpoints) if checkpoints.is_dir() else []
    saved = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    best, select = _best(checkpoints, saved, training), training.get("select", "loss")
    told = "" if best is None else f"{select} {best if select == 'loss' else -best:.4f}"
    short = str(kind).removesuffix("Experiment").lower()
    return Found(folder, str(name), short, saved[-1] if saved else 0, steps, told)


def _best(checkpoints: Path, saved: list[int], training: dict[str, Any]) -> float | None:
    """The least score of the checkpoints that are kept, the best of all among them."""
    every, end = int(training["evaluate_every"]), int(training["steps"])
    counted = [step for step in saved if step % every == 0 or step == end] or saved
    files = (checkpoints / str(step) / "checkpoint.json" for step in counted)
    scores = (float(_read(file)["score"]) for file in files if file.is_file())
    return min(scores, default=None)


def _study(folder: Path) -> Found:
    content = _read(folder / STUDY)
    variants = content["variants"]
    runs = {run: describe(folder / run) for run in {str(v["run"]) for v in variants}}
    ended = sum(0 < runs[v["run"]].of <= runs[v["run"]].done for v in variants)
    return Found(folder, str(content["name"]), "study", ended, len(variants))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _seconds(folder: Path) -> float:
    """When a run began, or the first of a study, as config.json says; else when that was written.

    Version 0.2.0 has not said it.
    """
    runs = [folder, *folder.glob("[!.]*/")] if (folder / STUDY).is_file() else [folder]
    if began := [seconds for run in runs if (seconds := _began(run)) is not None]:
        return min(began)
    for name in (RUN, STUDY, ""):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0


def _began(folder: Path) -> float | None:
    try:
        return datetime.datetime.fromisoformat(_read(folder / RUN)["began"]).timestamp()
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
