"""A study: the runs of several variants in one folder, whose study.json says which is which."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tlite.config import from_dict, override
from tlite.errors import UserError, system_reason
from tlite.experiment import Experiment
from tlite.training.run_dir import STUDY, UNREADABLE, replace_file


@dataclass(frozen=True)
class Variant:
    """An experiment of a study."""

    name: str
    run: str
    """Name of its run's folder in the study."""
    experiment: dict
    """The experiment as `to_dict` writes it."""
    data: dict
    """Fingerprint of its data."""
    parameters: int
    """Number of parameters of one model."""
    failed: str | None = None
    """Reason of a failure; None: it is trained, or tried again."""
    ended: bool = False
    """True if it is trained to its end, and reported."""
    tuned: dict | None = None
    """Values that tuning chose, by dotted field."""
    tuning_warnings: tuple[str, ...] = ()
    sha256: dict = field(default_factory=dict)
    """SHA-256 of the tokenizer's file and of the pretrained model, by the experiment's field."""

    def __post_init__(self):
        if os.path.basename(self.run) != self.run or self.run in ("", ".", ".."):
            raise ValueError(f"{self.run!r:.40} is not a folder in the study")

    def config(self) -> Experiment:
        """Return the experiment with its tuned values.

        Raises:
            UserError: this version of tlite can't build it, or user code fails.
        """
        try:
            return override(from_dict(Experiment, self.experiment), self.tuned or {})
        except ValueError as error:
            raise UserError(f"{self.name} is no experiment of this tlite: {error}") from error


@dataclass(frozen=True)
class Study:
    """The variants in a folder; the others are compared with the first."""

    folder: Path
    name: str
    variants: tuple[Variant, ...]
    tuning: dict | None = None
    """Arguments of `tlite.runs.tune.start_tuning` for each variant, as JSON; None: not tuned."""

    def changed(self, name: str, **fields) -> "Study":
        """Return the study with other fields of the variant of this name."""
        variants = (
            dataclasses.replace(v, **fields) if v.name == name else v for v in self.variants
        )
        return dataclasses.replace(self, variants=tuple(variants))

    def write(self, folder: Path | None = None) -> None:
        """Write study.json, or replace it in one step."""
        content = {"name": self.name, "variants": [vars(v) for v in self.variants]}
        content |= {"tuning": self.tuning} if self.tuning else {}
        replace_file((folder or self.folder) / STUDY, content)


def variants_from_json(content: list[dict]) -> tuple[Variant, ...]:
    """Return the variants in study.json or tuning.json; ValueError or TypeError for other JSON."""
    return tuple(from_dict(Variant, {**values, "kind": "Variant"}) for values in content)


def is_study(folder: Path) -> bool:
    """Return True if a folder holds a study."""
    return os.path.isfile(folder / STUDY)


def read_study(folder: Path) -> Study:
    """Return the study in a folder.

    Raises:
        UserError: there is none, or it can't be read.
    """
    with reading(path := folder / STUDY):
        content = json.loads(path.read_text(encoding="utf-8"))
        variants = variants_from_json(content["variants"])
        return Study(folder, str(content["name"]), variants, content.get("tuning"))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of a file that can't be read, or has other content, into a `UserError`."""
    try:
        yield
    except UNREADABLE as error:
        reason = system_reason(error) or f"it is not what tlite writes: {error}"
        raise UserError(f"can't read {path}: {reason}") from error
