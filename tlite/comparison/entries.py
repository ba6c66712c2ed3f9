"""What is compared: runs, and the variants of studies, each with the seeds it has.

Nothing of a run is executed, and no data is read: config.json, metrics.jsonl and examples.npz say
it all.
"""

import dataclasses
import json
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from tlite.comparison.study import is_study, read_study
from tlite.config import from_dict, of_today, to_dict
from tlite.errors import UserError, system_reason
from tlite.experiment import Experiment
from tlite.pretrained import is_pretrained
from tlite.terminal import printable
from tlite.training.config import TrainingConfig
from tlite.training.runs import read_config


@dataclass(frozen=True)
class Entry:
    """The models of a run, which differ in their seed only."""

    label: str
    folder: Path
    """The run's."""
    experiment: dict[str, Any]
    """As `to_dict` writes it, every field that there is today among them."""
    training: TrainingConfig
    content: dict[str, Any]
    """All of config.json."""
    failed: str = ""
    """Why, where a study says that it has."""

    @property
    def seeds(self) -> range:
        return self.training.members


@dataclass(frozen=True)
class Found:
    """What folders hold."""

    entries: list[Entry]
    missing: list[str]
    """A sentence for each variant that has not begun, or has failed before."""


def find_entries(folders: Sequence[Path]) -> Found:
    """The entries of run folders and of studies', in their order.

    Raises:
        UserError: a folder is neither, or can't be read.
    """
    entries, owners, missing = [], [], []
    for folder, name in zip(folders, _short_names(folders), strict=True):
        if not is_study(folder):
            entries.append(_of_run(folder, name))
            owners.append("")
            continue
        for variant in read_study(folder).variants:
            if (folder / variant.run / "config.json").is_file():
                entries.append(_of_run(folder / variant.run, variant.name, variant.failed or ""))
                owners.append(name)
            else:
                failed = variant.failed is not None
                state = f"failed: {variant.failed}" if failed else "has not begun"
                missing.append(f"{variant.name} {state}")
    return Found(_told_apart(entries, owners), missing)


def _of_run(folder: Path, label: str, failed: str = "") -> Entry:
    """What config.json says."""
    path = folder / "config.json"
    if not path.is_file():
        lacks = "has neither config.json nor study.json" if folder.is_dir() else "is no folder"
        raise UserError(f"{folder} {lacks}: name folders of runs or of studies")
    if is_pretrained(folder):
        raise UserError(f"{folder} is a model of others: it has no training to compare")
    try:
        content = read_config(path)
        training = from_dict(TrainingConfig, content["experiment"].get("training"))
    except OSError as error:
        raise UserError(f"can't read {path}: {system_reason(error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is of no run of tlite's: {error}") from error
    try:
        experiment = with_defaults(Experiment, content["experiment"])
    except ValueError as error:
        raise UserError(f"{folder} can't be compared: {error}") from error
    experiment = json.loads(json.dumps(experiment))  # tuples as config.json has them
    return Entry(label, folder, experiment, training, content, failed)


def _told_apart(entries: Sequence[Entry], owners: Sequence[str]) -> list[Entry]:
    """Each with a label of its own: with the study's name, or a number, where two have the same."""
    short = [_on_a_line(entry.label) for entry in entries]
    counts, seen, found = Counter(short), Counter(), []
    for entry, label, owner in zip(entries, short, owners, strict=True):
        if counts[label] > 1 and owner:
            label = _on_a_line(f"{owner}/{label}")
        seen[label] += 1
        label += f" ({seen[label]})" if seen[label] > 1 else ""
        found.append(dataclasses.replace(entry, label=label))
    return found


def _on_a_line(name: str) -> str:
    return printable(" ".join(name.split()))


def _short_names(folders: Sequence[Path]) -> list[str]:
    """As many of the last parts of each path as tell different folders apart."""
    paths = [folder.resolve() for folder in folders]
    for number in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-number:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def with_defaults(kind: Any, values: Any) -> Any:
    """What `to_dict` wrote, with the defaults of fields that there were none of then.

    Raises:
        ValueError: it says what is gone.
    """
    if get_origin(kind) in (Union, types.UnionType):
        named = values.get("kind") if isinstance(values, dict) else None
        kind = next((k for k in get_args(kind) if getattr(k, "__name__", "") == named), None)
    if not dataclasses.is_dataclass(kind) or not isinstance(values, dict):
        return values
    values = {"kind": kind.__name__} | of_today(kind, values)
    hints, result = get_type_hints(kind), dict(values)
    for field in dataclasses.fields(kind):
        if field.name in values:
            result[field.name] = with_defaults(hints[field.name], values[field.name])
        elif field.default is not field.default_factory:  # there is one
            given = field.default is not dataclasses.MISSING
            default = field.default if given else field.default_factory()
            result[field.name] = to_dict(default) if dataclasses.is_dataclass(default) else default
    return result
