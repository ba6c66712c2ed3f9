"""A study: the runs of several variants in one folder, whose study.json says which is which."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tlite.config import from_dict, override
from tlite.errors import UserError, system_reason
from tlite.experiment import Experiment
from tlite.training.run_dir import STUDY, UNREADABLE, replace_file


@dataclass(frozen=True)
class Variant:
    """One of the experiments of a study."""

    name: str
    run: str  # the folder of its run, in the study's
    experiment: dict  # as `to_dict` makes it
    data: dict  # what its data was, to know it again
    parameters: int  # of one model
    failed: str | None = None  # why, in a sentence; None tries it (again)
    ended: bool = False  # whether its run has come to its end, all written
    tuned: dict | None = None  # values by dotted field that tuning has chosen
    tuning_warnings: tuple[str, ...] = ()

    def __post_init__(self):
        if os.path.basename(self.run) != self.run or self.run in ("", ".", ".."):
            raise ValueError(f"{self.run!r:.40} is no folder in it")

    def config(self) -> Experiment:
        """The experiment, with the values that tuning has chosen.

        Raises:
            UserError: this tlite has no such, or user code in it can't be executed.
        """
        try:
            return override(from_dict(Experiment, self.experiment), self.tuned or {})
        except ValueError as error:
            raise UserError(f"{self.name} is no experiment of this tlite: {error}") from error


@dataclass(frozen=True)
class Study:
    """The variants in a folder; the first is what the others are compared with."""

    folder: Path
    name: str
    variants: tuple[Variant, ...]
    tuning: dict | None = None
    """Arguments of `tlite.runs.tune.start_tuning` for each variant, as JSON; None: not tuned."""

    def changed(self, name: str, **fields) -> "Study":
        """The study with other fields of the variant of this name."""
        found = (dataclasses.replace(v, **fields) if v.name == name else v for v in self.variants)
        return dataclasses.replace(self, variants=tuple(found))

    def write(self, folder: Path | None = None) -> None:
        """Write study.json, or replace it in one step."""
        content = {"name": self.name, "variants": [vars(v) for v in self.variants]}
        content |= {"tuning": self.tuning} if self.tuning else {}
        replace_file((folder or self.folder) / STUDY, content)


def variants_from_json(content: list[dict]) -> tuple[Variant, ...]:
    """The variants in study.json or tuning.json; a ValueError or TypeError if they are none."""
    return tuple(from_dict(Variant, {**values, "kind": "Variant"}) for values in content)


def is_study(folder: Path) -> bool:
    """Whether a folder is a study's."""
    return os.path.isfile(folder / STUDY)


def read_study(folder: Path) -> Study:
    """The study in a folder.

    Raises:
        UserError: it is none, or can't be read.
    """
    path = folder / STUDY
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        variants = variants_from_json(content["variants"])
        study = Study(folder, str(content["name"]), variants, content.get("tuning"))
    except UNREADABLE as error:
        reason = system_reason(error) or f"it is not what a study writes: {error}"
        raise UserError(f"can't read {path}: {reason}") from error
    return study
