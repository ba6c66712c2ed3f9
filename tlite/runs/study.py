"""Training a study: each variant that has not come to its end, one after the other."""

import dataclasses
import gc
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax

from tlite import distributed
from tlite.comparison.comparable import check_comparable
from tlite.comparison.study import Study, Variant, read_study
from tlite.errors import OutOfMemory, RunFailed, UserError, command, of_surroundings
from tlite.experiment import Experiment
from tlite.models import count_parameters, make_model
from tlite.runs.kinds import (
    begin,
    find_data,
    find_same,
    in_one_precision,
    locate_data,
    open_run_with_data,
    run_type,
    with_one_attention,
)
from tlite.runs.run import Run, same_everywhere
from tlite.terminal import printable
from tlite.training.config import TrainingConfig
from tlite.training.run_dir import RUN, STUDY, create_folder, kept, new_folder, next_free
from tlite.training.sharding import out_of_memory


class Preparing:
    """Prepares experiments; what several have in common is read and fitted once."""

    def __init__(self):
        self._data: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._prepared: dict[str, tuple[Any, Any, Any]] = {}

    def data(self, experiment: Experiment) -> tuple[Any, dict[str, Any]]:
        """The data of an experiment, and what there is to know it again, as JSON holds it."""
        kind, config = run_type(experiment), repr(experiment.data)
        if config not in self._data:
            data = kind.load_data(experiment)
            self._data[config] = data, json.loads(json.dumps(kind.fingerprint(data)))
        return self._data[config]

    def __call__(self, experiment: Experiment) -> tuple[Any, Any, Any]:
        """`Run.prepare` of an experiment, however it is trained and called.

        Raises:
            UserError: they don't go together, or the data can't be read.
        """
        kind, (data, _) = run_type(experiment), self.data(experiment)
        training = TrainingConfig(best_metric=experiment.training.best_metric)
        config = repr(dataclasses.replace(experiment, name="-", training=training))
        if config not in self._prepared:
            self._prepared[config] = kind.prepare(experiment, data)
        found, *of_data = self._prepared[config]
        own = {"name": experiment.name, "training": experiment.training}
        return dataclasses.replace(found, **own), *of_data


def train_study(
    experiments: dict[str, Experiment], folder: Path | None = None, *, resume: bool = False
) -> None:
    """Train the variants of a study in a new folder, and compare them.

    Args:
        resume: resume the study of the same variants instead, if there is one.

    Raises:
        UserError: as `start_study` and `train`.
    """
    preparing = Preparing()
    study = start_study(experiments, folder, preparing, resume=resume)
    print(f"a study of {len(study.variants)} variants, folder {study.folder}")
    train(study, preparing)


def resume_study(folder: Path) -> None:
    """Go on with a study where it stood; of one at its end print the comparison again."""
    study = read_study(folder)
    where = str(folder.resolve())
    same_everywhere({"study": [vars(v) for v in study.variants], "folder": where})
    train(study, Preparing())


def start_study(
    experiments: dict[str, Experiment],
    folder: Path | None,
    preparing: Preparing,
    *,
    resume: bool = False,
) -> Study:
    """Create the folder of a study of these variants, with study.json.

    A variant that does not fit its data is recorded as failed, and the others go on.

    Raises:
        UserError: something can't be read or made, or no variant fits its data.
    """
    taken, name = {"comparison", STUDY}, next(iter(experiments.values())).name
    experiments = dict(zip(experiments, find_data(experiments.values()), strict=True))
    same = partial(find_same, name, folder, STUDY, partial(_saved_and_new, experiments))
    if resume and (found := distributed.broadcast_from_process0(same)):
        return read_study(Path(found))
    settled = with_one_attention(in_one_precision(experiments.values()))
    variants = tuple(
        _variant(label, free_name(label, taken), experiment, preparing)
        for label, experiment in zip(experiments, settled, strict=True)
    )
    good = [variant for variant in variants if not variant.failed]
    if not good:
        raise UserError("; ".join(dict.fromkeys(variant.failed for variant in variants)))
    # Tokenizers are not learned yet: their settings are compared, and none of pre-trained models.
    check_comparable([
        (v.name, e := v.experiment, v.data, None if e.get("pretraining") else e.get("tokenizer"))
        for v in good
    ])  # fmt: skip
    path = Path(distributed.broadcast_from_process0(lambda: str(new_folder(name, folder))))
    same_everywhere({"study": [vars(v) for v in variants]})
    write, exactly = Study(path, name, variants).write, folder is not None
    path = Path(
        distributed.broadcast_from_process0(
            lambda: str(create_folder(path, write, exactly=exactly))
        )
    )
    for variant in variants:
        if variant.failed:
            _tell_failed(variant.name, variant.failed)
    return Study(path, name, variants)


def _saved_and_new(experiments: dict[str, Experiment], study: Path) -> tuple[dict, dict]:
    """Return the variants of a study and the new ones, with its choice for "auto" precision."""
    saved, new = {v.name: v.experiment for v in read_study(study).variants}, []
    for name, experiment in experiments.items():
        training = experiment.training
        if training.precision == "auto" and name in saved:
            precision = saved[name]["training"]["precision"]
            training = dataclasses.replace(training, precision=precision)
        new.append(dataclasses.replace(experiment, training=training))
    return saved, dict(zip(experiments, map(kept, with_one_attention(new)), strict=True))


def _variant(name: str, run: str, experiment: Experiment, preparing: Preparing) -> Variant:
    about = name, run, kept(experiment), preparing.data(experiment)[1]
    try:
        model = preparing(experiment)[0].model
    except UserError as error:
        if of_surroundings(error):
            raise
        return Variant(*about, parameters=0, failed=str(error))
    shapes = jax.eval_shape(lambda: make_model(model, rng=jax.random.key(0)))
    return Variant(*about, parameters=count_parameters(shapes))


def free_name(name: str, taken: set[str]) -> str:
    """A folder's name for a variant's that none has yet, in whatever case; it is added to them."""
    free = next_free(Path("-".join(name.split())), lambda path: path.name.casefold() in taken)
    taken.add(free.name.casefold())
    return free.name


def train(study: Study, preparing: Preparing) -> None:
    """Train what has not come to its end, then compare.

    A variant that has failed is noted in study.json, and the others go on.

    Raises:
        UserError: the study can't go on, as the disk is full, say; or, at its end, some variants
            have failed.
        Interrupted: by a signal; all is saved.
    """
    for number, variant in enumerate(study.variants, 1):
        if variant.failed or (variant.ended and _has_begun(study.folder / variant.run)):
            continue
        which = f"\nvariant {number} of {len(study.variants)}: {variant.name}"
        print(printable(which), flush=True)
        failed = _train_variant(study.folder, variant, preparing)
        study = study.changed(variant.name, failed=failed, ended=not failed)
        if distributed.is_process0():
            study.write()
        gc.collect()  # of a run that has ended no array stays
    _report(study)


def _has_begun(run: Path) -> bool:
    return distributed.broadcast_from_process0((run / RUN).is_file)


def _train_variant(folder: Path, variant: Variant, preparing: Preparing) -> str | None:
    """Train a variant to its end; why it has failed, in a sentence, or None."""
    try:
        with out_of_memory(f"the variant {variant.name}"):
            _open(folder, variant, preparing).train(report=False)  # compare's is at the end
    except RunFailed as error:
        if isinstance(error, OutOfMemory) and distributed.process_count() > 1:
            raise  # others may have enough
        _tell_failed(variant.name, str(error))
        return str(error)
    return None


def _open(folder: Path, variant: Variant, preparing: Preparing) -> Run:
    """The run of a variant, begun or not.

    Raises:
        RunFailed: it does not go with its data, in a way that only the whole of it shows.
        UserError: it can't be opened, or written; or the data is not what it was.
    """
    run = folder / variant.run
    if _has_begun(run):
        return open_run_with_data(run)
    experiment = locate_data(variant.config(), moved=True)
    if preparing.data(experiment)[1] != variant.data:
        raise UserError(f"the data of {variant.name} has changed since {folder} was made")
    prepared = preparing(experiment)
    try:
        return begin(*prepared, run, exactly=True)
    except UserError as error:
        if (
            isinstance(error, RunFailed)
            or of_surroundings(error)
            or distributed.process_count() > 1
        ):
            raise
        raise RunFailed(str(error)) from error


def _tell_failed(name: str, why: str) -> None:
    if distributed.is_process0():
        print(printable(f"warning: the variant {name} has failed: {why}"), file=sys.stderr)


def _report(study: Study) -> None:
    """Compare the variants, and say which have failed.

    Raises:
        UserError: some have.
    """
    failed = [variant.name for variant in study.variants if variant.failed]
    if distributed.is_process0() and len(failed) < len(study.variants):
        from tlite.comparison import compare

        print()
        compare([study.folder])
    distributed.broadcast_from_process0(
        lambda: None
    )  # what ends another would end the first while it compares
    if failed:
        raise UserError(
            f"{len(failed)} of {len(study.variants)} variants failed: {', '.join(failed)}; "
            f"{study.folder / STUDY} says why; to try one again, put that right, "
            f'set its "failed" there to null, and {command("train", "--resume", study.folder)}'
        )
