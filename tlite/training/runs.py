"""A run is a folder: config.json, tokenizer, metrics.jsonl, checkpoints/, samples/, plots/."""

import datetime
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlite.config import from_dict, to_dict
from tlite.errors import UserError, program


@dataclass(frozen=True)
class Run:
    """The paths and the config of a run."""

    folder: Path
    experiment: Any
    data: dict
    """What the data was, its SHA-256 above all."""

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.folder / "samples"

    @property
    def plots(self) -> Path:
        return self.folder / "plots"


def new_folder(name: str, folder: Path | None = None, root: Path = Path("runs")) -> Path:
    """A folder that did not exist: `folder`, or runs/<name>/<yyyymmdd-HHMMSS>.

    Raises:
        UserError: it exists already, or can't be made.
    """
    wanted = folder or root / name / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path, again = wanted, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if folder is not None:
                raise UserError(
                    f"the run folder {folder} exists already: name another, "
                    f"or continue it with {program()} train --resume {folder}"
                ) from None
            path, again = wanted.with_name(f"{wanted.name}-{again + 1}"), again + 1
        except OSError as error:
            raise UserError(f"can't make the run folder {path}: {error.strerror}") from error


def create_run(folder: Path, experiment, data: dict, tokenizer) -> Run:
    """Write the tokenizer and, last and at once, config.json: a folder with it is complete."""
    run = Run(folder, experiment, data)
    temporary = folder / "config.json.tmp"
    try:
        path = folder / tokenizer.file_name
        tokenizer.save(path)
        token_file = {"file": path.name, "sha256": _sha256(path)}
        content = {"experiment": to_dict(experiment), "data": data, "tokenizer": token_file}
        content = json.dumps(content, indent=2)
        temporary.write_text(content)
        temporary.replace(folder / "config.json")
    except OSError as error:
        raise UserError(f"can't write {folder}: {error.strerror}") from error
    return run


def open_run(folder: Path, kind: Any) -> Run:
    """The run in a folder that `create_run` made.

    Args:
        kind: the type of its experiment, or a union of types.

    Raises:
        UserError: there is no such folder, or it isn't a run's.
    """
    path = folder / "config.json"
    if not path.is_file():
        what = "has no config.json: it is not a run folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}{_nearby(folder)}")
    try:
        content = json.loads(path.read_text())
        saved = content["experiment"]["kind"]
        if isinstance(kind, type) and saved != kind.__name__:
            raise UserError(f"{path} is of the run of a {saved}, not of a {kind.__name__}")
        token_file = folder / Path(content["tokenizer"]["file"]).name
        if _sha256(token_file) != content["tokenizer"]["sha256"]:
            raise UserError(f"{token_file} is not the one that the run was trained with")
        return Run(folder, from_dict(kind, content["experiment"]), content["data"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{path} is not a config that this tlite can read: {reason}") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _nearby(folder: Path) -> str:
    runs = sorted(p.parent for p in Path("runs").glob("*/*/config.json"))
    return f"; the newest run is {max(runs, key=lambda p: p.name)}" if runs else ""
