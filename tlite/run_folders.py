"""Runs are folders: which there are, and how far they have come, by their small files alone.

JAX is not imported, and no experiment is made: what is damaged is listed as that.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from tlite.errors import UserError

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
        """When its config was written."""
        return datetime.datetime.fromtimestamp(_seconds(self.folder))


def find_folders(root: Path) -> list[Path]:
    """The runs and studies below a folder, newest first; a study's own runs are not among them."""
    found = []
    for place, folders, files in os.walk(root):
        if MARKS & {*folders, *files}:
            folders.clear()
            if kind_of(Path(place)) != "pretrained":
                found.append(Path(place))
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found, key=lambda folder: (_seconds(folder), folder), reverse=True)


def newest(root: Path = Path("runs")) -> Path:
    """The run or study that was begun last, but for damaged ones.

    Raises:
        UserError: there is none.
    """
    whole = (folder for folder in find_folders(root) if describe(folder).kind != "damaged")
    if found := next(whole, None):
        return found
    raise UserError(f"there is no latest run: {Path.cwd() / root} has none")


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
    for name in (RUN, STUDY, ""):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
