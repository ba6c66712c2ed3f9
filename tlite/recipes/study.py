"""A study: the runs of several variants in one folder, whose study.json says which is which."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlite.config import from_dict
from tlite.errors import UserError, system_reason
from tlite.experiment import Experiment
from tlite.training.loop import ended
from tlite.training.metrics import iterate_metrics
from tlite.training.runs import numbered, replace_json
from tlite.training.side_by_side import merged

FILE = "study.json"
TAKEN = "comparison", FILE, "attempts.jsonl"  # what else lies in a study's folder


@dataclass(frozen=True)
class Variant:
    """One of the experiments of a study."""

    name: str
    run: str
    """The folder of its run, in the study's."""
    members: tuple[int, ...]
    """Which of the run's models are its seeds."""
    experiment: dict[str, Any]
    """As `to_dict` makes it of the experiment alone, whatever is trained beside."""
    data: dict[str, Any]
    """What its data was, to know it again."""
    parameters: int
    """Of one model."""
    failed: str | None = None
    """Why, in a sentence; None tries it (again)."""

    def config(self) -> Experiment:
        """The experiment.

        Raises:
            UserError: this tlite has no such, or the file of a function in it must be named.
        """
        try:
            return from_dict(Experiment, self.experiment)
        except ValueError as error:
            raise UserError(f"{self.name} is no experiment of this tlite: {error}") from error


@dataclass(frozen=True)
class Study:
    """The variants in a folder; the first is what the others are compared with."""

    folder: Path
    name: str
    variants: tuple[Variant, ...]

    def running(self, run: str) -> list[Variant]:
        """Those that a run trains, in the order of its members, but for what has failed."""
        return [v for v in self.variants if v.run == run and v.failed is None]

    @property
    def runs(self) -> list[str]:
        """The runs of what has not failed, in order."""
        return list(dict.fromkeys(v.run for v in self.variants if v.failed is None))

    def experiment_of(self, run: str) -> Experiment:
        """What a run trains: a variant, or several side by side; those that have failed too."""
        configs = [variant.config() for variant in self.variants if variant.run == run]
        training = merged([config.training for config in configs])
        several = len(configs) > 1
        return dataclasses.replace(configs[0], training=training) if several else configs[0]

    def with_failed(self, why: dict[str, str | None]) -> "Study":
        """The study where the variants of these names have failed, of what is told; or not, yet."""
        found = (dataclasses.replace(v, failed=why.get(v.name, v.failed)) for v in self.variants)
        return dataclasses.replace(self, variants=tuple(found))

    def split(self, run: str) -> "Study":
        """The study where the variants that were to share a run have each their own."""
        taken, found = {*TAKEN, *(v.run for v in self.variants)}, []
        for variant in self.variants:
            if variant.run == run:
                seeds = range(variant.config().training.num_members)
                alone = free_name(variant.name, taken)
                variant = dataclasses.replace(variant, run=alone, members=tuple(seeds))
            found.append(variant)
        return dataclasses.replace(self, variants=tuple(found))

    def write(self, folder: Path | None = None) -> None:
        """Write study.json, or replace it in one step."""
        content = {"name": self.name, "variants": [vars(v) for v in self.variants]}
        replace_json((folder or self.folder) / FILE, content)


def is_study(folder: Path) -> bool:
    """Whether a folder is a study's."""
    try:
        return (folder / FILE).is_file()
    except (OSError, ValueError):  # there can be no such name
        return False


def read_study(folder: Path) -> Study:
    """The study in a folder.

    Raises:
        UserError: it is none, or can't be read.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        variants = tuple(_variant(values) for values in content["variants"])
        names = [variant.name for variant in variants]
        if len(names) < 2 or len({*names}) < len(names) or not isinstance(content["name"], str):
            raise ValueError("it has no two variants of different names")
        return Study(folder, content["name"], variants)
    except OSError as error:
        raise UserError(f"can't read {path}: {system_reason(error)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{path} is not what a study writes: {reason}") from error


def _variant(values: Any) -> Variant:
    """A variant as it was written.

    Raises:
        ValueError: it was not.
    """
    kinds = {"name": str, "run": str, "members": list, "experiment": dict, "data": dict}
    kinds |= {"parameters": int, "failed": str | None}
    if not isinstance(values, dict):
        raise ValueError("a variant is no table")
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise ValueError(f"{name} of a variant is {values[name]!r:.40}")
    if os.path.basename(values["run"]) != values["run"] or values["run"] in ("", ".", ".."):
        raise ValueError(f"{values['run']!r:.40} is no folder in it")
    if not values["members"] or not all(type(m) is int and m >= 0 for m in values["members"]):
        raise ValueError(f"{values['name']} has no members")
    return Variant(**{name: values[name] for name in kinds} | {"members": tuple(values["members"])})


def finished(study: Study, variant: Variant) -> bool:
    """Whether a variant was validated at its last step, or after what its patience allows."""
    metrics = study.folder / variant.run / "metrics.jsonl"
    return ended(variant.config().training, list(iterate_metrics(metrics, "validation")))


def free_name(name: str, taken: set[str]) -> str:
    """A folder's name for a variant's that none has yet, in whatever case; it is added to them."""
    for path in numbered(Path("-".join(name.split()))):
        if path.name.casefold() not in {other.casefold() for other in taken}:
            taken.add(path.name)
            return path.name
