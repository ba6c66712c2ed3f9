"""How a study begins: its variants are checked on the data, grouped into runs, and written down."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from tlite import processes
from tlite.comparison.comparable import Measured, check_comparable
from tlite.errors import UserError, of_surroundings
from tlite.experiment import Experiment
from tlite.experiment_data import find_data_of_all
from tlite.models import make_model
from tlite.recipes.kinds import RECIPES
from tlite.recipes.prepared import Prepared, agreed_precision, same_everywhere
from tlite.recipes.study import TAKEN, Study, Variant, free_name
from tlite.terminal import printable
from tlite.training.config import TrainingConfig
from tlite.training.runs import create_folder, kept, new_folder
from tlite.training.side_by_side import is_faster, merged

SIDE_BY_SIDE = "side-by-side"  # the run of several variants


class Preparing:
    """Prepares experiments; what several have in common is read and fitted once."""

    def __init__(self):
        self._data: list[tuple[Any, Any]] = []  # the last that was read, and of which config
        self._known: list[tuple[Experiment, Prepared]] = []

    def data(self, experiment: Experiment) -> Any:
        """The data of an experiment.

        Raises:
            UserError: it can't be read.
        """
        if not self._data or self._data[0][0] != experiment.data:
            self._data = []
            self._data = [(experiment.data, RECIPES[type(experiment)].load_data(experiment))]
        return self._data[0][1]

    def fingerprint(self, experiment: Experiment) -> dict[str, Any]:
        """What there is to know its data again, as JSON holds it."""
        fingerprint = RECIPES[type(experiment)].fingerprint(self.data(experiment))
        return json.loads(json.dumps(fingerprint))

    def __call__(self, experiment: Experiment) -> Prepared:
        """The experiment with what its data decides.

        Raises:
            UserError: they don't go together.
        """
        kind, data = RECIPES[type(experiment)], self.data(experiment)
        kind.check_selected(experiment)
        for known, prepared in self._known:
            if differ_in_training(known, experiment):
                fitted = prepared.experiment
                fitted = dataclasses.replace(
                    fitted, name=experiment.name, training=experiment.training
                )
                return prepared._replace(experiment=fitted)
        self._known.append((experiment, kind.prepare(experiment, data)))
        return self._known[-1][1]


def differ_in_training(one: Experiment, other: Experiment) -> bool:
    """Whether two experiments are alike but for how they are trained, and their names."""
    plain = {"name": "-", "training": TrainingConfig()}
    return type(one) is type(other) and (
        dataclasses.replace(one, **plain) == dataclasses.replace(other, **plain)
    )


def start_study(
    experiments: dict[str, Experiment], folder: Path | None, preparing: Preparing
) -> Study:
    """A new folder for a study of these variants, with study.json.

    All that can be known before the first step is told here. A variant that its data refuses is
    noted as failed, and does not take the others with it.

    Raises:
        UserError: the data or a file can't be read, a package is missing, every variant is refused,
            or the folder can't be made.
    """
    experiments = in_one_precision(find_data_of_all(experiments))
    variants = [_checked(name, e, preparing) for name, e in experiments.items()]
    refused = [variant for variant in variants if variant.failed]
    if len(refused) == len(variants):
        reasons = list(dict.fromkeys(variant.failed for variant in refused))
        each = "" if len(reasons) == 1 else f"every variant is refused; {refused[0].name}: "
        raise UserError(f"{each}{reasons[0]}")
    check_comparable({v.name: _measured(v) for v in variants if not v.failed})
    study = grouped(list(experiments.values()), variants)
    first = processes.is_first()
    name = next(iter(experiments.values())).name
    path = Path(processes.told(str(new_folder(name, folder)) if first else None))
    same_everywhere({"study": [vars(v) for v in study]})
    if first:
        write = Study(path, name, study).write
        path = create_folder(path, write, exactly=folder is not None)
    path = Path(processes.told(str(path)))
    for variant in refused:
        tell_failed(variant.name, variant.failed)
    return Study(path, name, study)


def in_one_precision(experiments: dict[str, Experiment]) -> dict[str, Experiment]:
    """With "auto" decided once for all of them: a later process could find another one faster."""
    asked = dict.fromkeys(e.training.precision for e in experiments.values())
    chosen = {precision: agreed_precision(precision) for precision in asked}
    return {
        name: dataclasses.replace(
            e, training=dataclasses.replace(e.training, precision=chosen[e.training.precision])
        )
        for name, e in experiments.items()
    }


def _checked(name: str, experiment: Experiment, preparing: Preparing) -> Variant:
    content = kept(experiment)
    fingerprint = preparing.fingerprint(experiment)
    members = tuple(range(experiment.training.num_members))
    parameters, failed = 0, None
    try:
        model = preparing(experiment).experiment.model
        shapes = jax.eval_shape(lambda: make_model(model, rng=jax.random.key(0)))
        parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    except UserError as error:
        if of_surroundings(error):
            raise
        failed = str(error)
    return Variant(name, name, members, content, fingerprint, parameters, failed)


def _measured(variant: Variant) -> Measured:
    """Of a tokenizer only the settings are known; of a pre-trained model's nothing."""
    experiment = variant.experiment
    tokenizer = None if experiment.get("pretraining") else experiment.get("tokenizer")
    return Measured(experiment, variant.data, tokenizer)


def grouped(experiments: Sequence[Experiment], variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants with their runs: one for several, where these are faster side by side."""
    groups: list[list[int]] = []
    for index, variant in enumerate(variants):
        together = (
            group
            for group in groups
            if not variant.failed and _side_by_side([*group, index], experiments)
        )
        group = next(together, None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    taken, found = {*TAKEN}, list(variants)
    for group in groups:
        first, seeds = variants[group[0]], experiments[group[0]].training.seeds
        sizes = first.parameters, len(group), seeds, jax.device_count()
        if len(group) > 1 and is_faster(*sizes):
            run = free_name(SIDE_BY_SIDE, taken)
            for place, index in enumerate(group):
                members = tuple(range(place * seeds, (place + 1) * seeds))
                found[index] = dataclasses.replace(found[index], run=run, members=members)
        else:
            for index in group:
                run = free_name(variants[index].name, taken)
                found[index] = dataclasses.replace(found[index], run=run)
    return tuple(found)


def _side_by_side(group: Sequence[int], experiments: Sequence[Experiment]) -> bool:
    """Whether the last of these experiments differs from the others only in numbers that one
    program can take as data."""
    chosen = [experiments[index] for index in group]
    together = differ_in_training(chosen[0], chosen[-1])
    return together and merged([experiment.training for experiment in chosen]) is not None


def tell_failed(name: str, why: str) -> None:
    """Say on standard error that a variant has failed."""
    if processes.is_first():
        print(printable(f"warning: the variant {name} has failed: {why}"), file=sys.stderr)
