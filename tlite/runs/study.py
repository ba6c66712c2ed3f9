"""Train a study: its variants one after the other, each to its end, and then their comparison."""

import dataclasses
import gc
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax

import tlite.distributed as distributed
from tlite.comparison.comparable import check_comparable
from tlite.comparison.study import Study, Variant, read_study
from tlite.errors import (
    OutOfMemory,
    RunFailed,
    UserError,
    command,
    is_environment_error,
    printable,
)
from tlite.experiment import BaseExperiment
from tlite.models import count_parameters, make_model
from tlite.runs.run import Built, Run, build, check_same_data, find_equal, run_class
from tlite.training.config import TrainingConfig
from tlite.training.precision import Precision, attention_of_all
from tlite.training.run_dir import (
    CODE,
    ROOT,
    RUN,
    STUDY,
    create_folder,
    experiment_fields,
    kept,
    new_folder,
    next_free,
)
from tlite.training.sharding import out_of_memory
from tlite.user_code import allow_code, remember_code, write_code


class DatasetCache:
    """Builds experiments; data and tokenizers that variants share are read and fitted once."""

    def __init__(self):
        self._data: dict[str, Any] = {}
        self._built: dict[str, Built] = {}

    def build(self, experiment: Any) -> Built:
        """Return `build` of a resolved experiment, whatever its name and training."""
        training = TrainingConfig(best_metric=experiment.training.best_metric)
        key = repr(dataclasses.replace(experiment, name="-", training=training))
        if key not in self._built:
            self._built[key] = build(experiment, self.load(experiment))
        built = self._built[key]
        training = {"name": experiment.name, "training": experiment.training}
        return built._replace(experiment=dataclasses.replace(built.experiment, **training))

    def load(self, experiment: Any) -> Any:
        """Return the raw data of an experiment."""
        key = repr(experiment.data)
        if key not in self._data:
            self._data[key] = run_class(experiment).load_data(experiment)
        return self._data[key]

    def fingerprint(self, experiment: Any) -> dict[str, Any]:
        """Return the fingerprint of an experiment's data."""
        return run_class(experiment).fingerprint(self.load(experiment))


def train_study(
    experiments: Mapping[str, BaseExperiment],
    dir: str | Path | None = None,
    *,
    resume: Literal["never", "auto", "must"] = "never",
) -> Study:
    """Train the variants of a study in a new folder and compare the others with the first.

    Args:
        experiments: two or more by the name of the variant.
        resume: as in `Run.create`.

    Raises:
        UserError: the study can't be made, or some variants have failed.
    """
    datasets = DatasetCache()
    study = start_study(experiments, None if dir is None else Path(dir), datasets, resume)
    print(f"study variants={len(study.variants)} dir={study.folder}")
    return train_variants(study, datasets)


def resume_study(folder: Path, retry: Sequence[str] = ()) -> Study:
    """Resume a study; of a finished one print the comparison again.

    Args:
        retry: names of failed variants to try again.

    Raises:
        UserError: it can't be read, there is no such variant, or some variants have failed.
    """
    study = read_study(folder)
    failed = [variant.name for variant in study.variants if variant.failed]
    for name in retry:
        if name not in failed:
            raise UserError(
                f"{name!r} is not a failed variant: {', '.join(failed) or 'none failed'}"
            )
        study = study.changed(name, failed=None)
    distributed.assert_equal_across_processes(
        "study", {"study": [vars(v) for v in study.variants], "folder": str(folder.resolve())}
    )
    return train_variants(study, DatasetCache())


# Create


def start_study(
    experiments: Mapping[str, BaseExperiment],
    dir: Path | None,
    datasets: DatasetCache,
    resume: Literal["never", "auto", "must"] = "never",
) -> Study:
    """Find or create the study of these variants, as `train_study` says."""
    resolved = resolve_all(experiments)
    if resume != "never":
        if study := find_same_study(resolved, dir):
            return study
        if resume == "must":
            name = next(iter(experiments.values())).name
            raise UserError(f"there is no study of {name} in {dir or ROOT} to resume")
    return create_study(resolved, dir, datasets)


def resolve_all(experiments: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve the variants; the columns of tables that several share are chosen once."""
    resolved, data = {}, {}
    for name, experiment in experiments.items():
        key = repr(experiment.data)
        if key in data:
            experiment = dataclasses.replace(experiment, data=data[key])
        resolved[name] = experiment.resolve()
        data[key] = resolved[name].data
    return resolved


def resolve_precision(experiments: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve "auto" precision, once for all variants, and then "auto" attention."""
    chosen: dict[str, Precision] = {}
    for experiment in experiments.values():
        if (precision := experiment.training.precision) not in chosen:
            chosen[precision] = experiment.resolve_precision().training.precision
    return resolve_attention(
        experiments, {name: chosen[e.training.precision] for name, e in experiments.items()}
    )


def resolve_attention(
    experiments: Mapping[str, Any], precisions: Mapping[str, Precision]
) -> dict[str, Any]:
    """Set each variant's precision, and one "auto" attention for all variants of a precision."""
    fastest = {
        precision: attention_of_all(
            [e.model for name, e in experiments.items() if precisions[name] == precision],
            precision,
        )
        for precision in set(precisions.values())
    }
    return {
        name: experiment.resolve_precision(precisions[name], fastest[precisions[name]])
        for name, experiment in experiments.items()
    }


def find_same_study(experiments: Mapping[str, Any], dir: Path | None) -> Study | None:
    """Return the newest study of these variants, among `dir` or runs/NAME.

    A study keeps the precision that "auto" was resolved to, also on another machine.

    Raises:
        UserError: `dir` has another study.
    """

    def read(folder: Path) -> tuple[dict, dict]:
        saved = {v.name: v.experiment for v in read_study(folder).variants}
        precisions = {name: e.training.precision for name, e in experiments.items()}
        for name in saved.keys() & precisions:
            if precisions[name] == "auto":
                precisions[name] = saved[name]["training"]["precision"]
        new = resolve_attention(experiments, precisions)
        return saved, {name: kept(experiment) for name, experiment in new.items()}

    name = next(iter(experiments.values())).name
    same = partial(find_equal, name, dir, STUDY, read)
    folder = distributed.broadcast_from_process0(same)
    return read_study(Path(folder)) if folder else None


def create_study(experiments: Mapping[str, Any], dir: Path | None, datasets: DatasetCache) -> Study:
    """Write the folder of a study, with study.json.

    A variant that does not fit its data is recorded as failed.

    Raises:
        UserError: something can't be read or written, or no variant fits its data.
    """
    name, used = next(iter(experiments.values())).name, {"comparison", STUDY, CODE}
    variants = tuple(
        make_variant(label, free_name(label, used), experiment, datasets)
        for label, experiment in resolve_precision(experiments).items()
    )
    trainable = [variant for variant in variants if not variant.failed]
    if not trainable:
        raise UserError("; ".join(dict.fromkeys(variant.failed for variant in variants)))
    # Tokenizers are not fitted yet: their settings are compared, except of pretrained models.
    check_comparable([comparable(variant) for variant in trainable])
    path = Path(distributed.broadcast_from_process0(lambda: str(new_folder(name, dir))))
    distributed.assert_equal_across_processes("study", {"study": [vars(v) for v in variants]})

    def write() -> str:
        study = Study(path, name, variants)

        def write_files(folder: Path) -> None:
            study.write(folder)
            write_code(folder / CODE, [variant.experiment for variant in variants])

        return str(create_folder(path, write_files, exactly=dir is not None))

    path = Path(distributed.broadcast_from_process0(write))
    remember_code([variant.experiment for variant in variants])
    for variant in variants:
        if variant.failed:
            warn_failed(variant.name, variant.failed)
    return Study(path, name, variants)


def make_variant(name: str, run: str, experiment: Any, datasets: DatasetCache) -> Variant:
    """Return the entry of study.json of an experiment: failed if it does not fit its data."""
    fingerprint, config = datasets.fingerprint(experiment), kept(experiment)
    try:
        model = datasets.build(experiment).experiment.model
    except UserError as error:
        if is_environment_error(error):
            raise
        return Variant(name, run, config, fingerprint, parameters=0, failed=str(error))
    shapes = jax.eval_shape(lambda: make_model(model, rng=jax.random.key(0)))
    return Variant(name, run, config, fingerprint, parameters=count_parameters(shapes))


def comparable(variant: Variant) -> tuple[str, dict, dict, Any]:
    """Return a variant as `check_comparable` takes it."""
    experiment = experiment_fields(variant.experiment)
    tokenizer = None if experiment.get("init_from") else experiment.get("tokenizer")
    return variant.name, experiment, variant.data, tokenizer


def free_name(name: str, used: set[str]) -> str:
    """Return a folder name for a variant that differs from those used, ignoring case; add it."""
    path = next_free(Path("-".join(name.split())), lambda path: path.name.casefold() in used)
    used.add(path.name.casefold())
    return path.name


# Train


def train_variants(study: Study, datasets: DatasetCache) -> Study:
    """Train the variants that have not ended, then compare.

    A variant that fails is recorded in study.json; the others are trained.

    Raises:
        UserError: the study can't continue (a full disk), or at its end, some variants have failed.
        Interrupted: by a signal; everything is saved.
    """
    for number, variant in enumerate(study.variants, 1):
        if variant.failed or (variant.ended and has_run(study.folder / variant.run)):
            continue
        label = f"\nvariant {number} of {len(study.variants)}: {variant.name}"
        print(printable(label), flush=True)
        failed = train_variant(study.folder, variant, datasets)
        study = study.changed(variant.name, failed=failed, ended=not failed)
        if distributed.is_process0():
            study.write()
        gc.collect()  # frees the arrays of the run that has ended
    report(study)
    return study


def has_run(folder: Path) -> bool:
    """Return True if a variant's run has been created."""
    return distributed.broadcast_from_process0((folder / RUN).is_file)


def train_variant(folder: Path, variant: Variant, datasets: DatasetCache) -> str | None:
    """Train a variant to its end; return why it has failed, or None."""
    try:
        with out_of_memory(f"the variant {variant.name}"):
            open_variant(folder, variant, datasets).train(report=False)
    except RunFailed as error:
        if isinstance(error, OutOfMemory) and distributed.process_count() > 1:
            raise  # other processes may have enough
        warn_failed(variant.name, str(error))
        return str(error)
    return None


def open_variant(folder: Path, variant: Variant, datasets: DatasetCache) -> Run:
    """Open or create the run of a variant.

    Raises:
        RunFailed: it does not fit its data.
        UserError: it can't be opened or written, or the data has changed.
    """
    path = folder / variant.run
    if has_run(path):
        return Run.open(path)
    with allow_code(folder / CODE):
        experiment = variant.config().with_paths(moved=True)
    check_same_data(path, variant.data, datasets.fingerprint(experiment))
    built = datasets.build(experiment)
    try:
        return Run.start(built, path)
    except UserError as error:
        alone = distributed.process_count() == 1
        if isinstance(error, RunFailed) or is_environment_error(error) or not alone:
            raise
        raise RunFailed(str(error)) from error


def warn_failed(name: str, reason: str) -> None:
    """Warn of a variant that has failed."""
    if distributed.is_process0():
        print(printable(f"warning: variant {name} failed: {reason}"), file=sys.stderr)


def report(study: Study) -> None:
    """Compare the variants.

    Raises:
        UserError: some have failed.
    """
    failed = [variant.name for variant in study.variants if variant.failed]
    if distributed.is_process0() and len(failed) < len(study.variants):
        from tlite.comparison import compare

        print()
        compare([study.folder])
    distributed.broadcast_from_process0(lambda: None)  # the others wait while process 0 compares
    if failed:
        raise UserError(
            f"{len(failed)} of {len(study.variants)} variants failed: {', '.join(failed)} (the "
            f"reasons are in {study.folder / STUDY}); to retry: "
            f"{command('train', '--resume', study.folder, '--retry')} {failed[0]!r}"
        )
