"""Train the variants of a study one after the other, then compare them."""

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax

import tlite.distributed as distributed
from tlite.comparison.comparable import check_comparable
from tlite.comparison.study import Study, Variant, read_study
from tlite.errors import OutOfMemory, RunFailed, UserError, command, is_environment_error, printable
from tlite.experiment import BaseExperiment
from tlite.models import count_parameters, make_model
from tlite.runs.run import Built, Run, build, check_same_data, find_same, run_class, with_training
from tlite.training.config import TrainingConfig
from tlite.training.precision import Precision, fastest_shared_attention
from tlite.training.probe import probe_training
from tlite.training.run_dir import (
    CODE,
    RUN,
    STUDY,
    create_folder,
    experiment_fields,
    new_folder,
    next_free,
    to_checked_json,
)
from tlite.training.sharding import out_of_memory
from tlite.user_code import allow_code, remember_code, write_code


class DatasetCache:
    """Builds experiments; data and tokenizers that variants share are read and fitted once."""

    def __init__(self):
        self._data: dict[str, Any] = {}
        self._built: dict[str, Built] = {}

    def build(self, experiment: Any) -> Built:
        """Return `build` of a resolved experiment; its name and training do not matter."""
        config = experiment.training
        metric = config.best_metric.removeprefix(f"{config.best_weights}_")
        training = TrainingConfig(best_metric=metric)
        key = value_key(dataclasses.replace(experiment, name="-", training=training))
        if key not in self._built:
            self._built[key] = build(experiment, self.load(experiment))
        else:
            probe_training(experiment.training)
        built = with_training(self._built[key], experiment.training)
        named = dataclasses.replace(built.experiment, name=experiment.name)
        return built._replace(experiment=named)

    def load(self, experiment: Any) -> Any:
        """Return the raw data of an experiment."""
        key = value_key(experiment.data)
        if key not in self._data:
            self._data[key] = run_class(experiment).load_data(experiment)
        return self._data[key]


def value_key(config: Any) -> str:
    """Return all fields of a config as text; a `repr` may leave some out."""
    return json.dumps(to_checked_json(config))


def train_study(
    experiments: Mapping[str, BaseExperiment],
    dir: str | Path | None = None,
    *,
    resume: Literal["never", "auto", "must"] = "never",
    tune: Mapping[str, Any] | None = None,
    trials: int = 8,
    tuning_seeds: int = 3,
) -> Study:
    """Train the variants of a study in a new folder and compare the others with the first.

    Args:
        experiments: two or more by the name of the variant.
        resume: as in `Run.create`. The data, tokenizer files and pretrained models of all variants
            of a study that is found are compared with their fingerprints, also if all have ended.
        tune: ranges or choices by dotted field, which are tuned for each variant before it is
            trained, with this number of trials and of seeds (`tlite.tune`).

    Raises:
        UserError: the study can't be created, or some variants have failed.
    """
    if not experiments:
        raise UserError("a study needs variants: two or more experiments by name")
    for name in experiments:
        is_name = isinstance(name, str) and name.isprintable() and len(os.fsencode(name)) <= 200
        if not is_name or Path("-".join(name.split())).name in ("", ".."):
            raise UserError(f"a variant's name must be a short text, not {name!r:.80}")
    datasets = DatasetCache()
    tuning = None
    if tune:
        from tlite.runs.tune import describe_tuning

        tuning = describe_tuning(experiments, tune, trials, tuning_seeds)
    study = start_study(experiments, None if dir is None else Path(dir), datasets, resume, tuning)
    print(f"study variants={len(study.variants)} dir={study.folder}")
    return train_variants(study, datasets)


def resume_study(folder: Path, retry: Sequence[str] = ()) -> Study:
    """Resume a study; of a finished one print the comparison again.

    The data of the variants that are still trained is compared with its fingerprint, and if their
    runs are new also tokenizer files and pretrained models. No data is read for the others, so a
    finished study needs none.

    Args:
        retry: names of failed variants to try again. If the tuning of one has failed, the trials of
            its last rung are trained again.

    Raises:
        UserError: it can't be read, there is no such variant, or some variants have failed.
    """
    study = read_study(folder)
    failed = [variant.name for variant in study.variants if variant.failed]
    for name in retry:
        if name not in failed:
            names = ", ".join(failed) or "none failed"
            raise UserError(f"{name!r} is not a failed variant: {names}")
        study = study.changed(name, failed=None)
    variants = [vars(variant) for variant in study.variants]
    distributed.assert_equal_across_processes(
        "study", {"study": variants, "folder": str(folder.resolve())}
    )
    if study.tuning and distributed.is_process0():
        from tlite.runs.tune import drop_failed_rung

        for variant in study.variants:
            if variant.name in retry:
                drop_failed_rung(study.folder / "tuning" / variant.run)
    return train_variants(study, DatasetCache())


# Create


def start_study(
    experiments: Mapping[str, BaseExperiment],
    dir: Path | None,
    datasets: DatasetCache,
    resume: Literal["never", "auto", "must"] = "never",
    tuning: dict | None = None,
) -> Study:
    """Find or create the study of these variants, as `train_study` does."""
    resolved = resolve_all(experiments)
    name = next(iter(experiments.values())).name
    if resume != "never":
        read, required = partial(saved_and_new_variants, resolved, read_study), resume == "must"
        if folder := find_same("study", name, dir, STUDY, read, required=required):
            study = read_study(folder)
            if study.tuning != tuning:
                raise UserError(f"{folder} was tuned otherwise: {study.tuning}, not {tuning}")
            check_variants(folder, study.variants, datasets)
            return study
    variants = make_variants(resolve_precision(resolved), datasets)
    study = Study(Path(), name, variants, tuning)
    folder = write_variants(name, dir, variants, study.write, tuning)
    return dataclasses.replace(study, folder=folder)


def resolve_all(experiments: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve the variants; the columns of tables that several share are chosen once."""
    resolved, data = {}, {}
    for name, experiment in experiments.items():
        key = value_key(experiment.data)
        if key in data:
            experiment = dataclasses.replace(experiment, data=data[key])
        resolved[name] = experiment.resolve()
        data[key] = resolved[name].data
    return resolved


def resolve_precision(
    experiments: Mapping[str, Any], saved: Mapping[str, Precision] | None = None
) -> dict[str, Any]:
    """Resolve "auto" precision and attention, each once for all variants that share a precision.

    Args:
        saved: precisions by variant, of an earlier study; None: of the hardware.
    """
    precisions: dict[str, Precision] = dict(saved or {})
    chosen: dict[str, Precision] = {}  # by the experiment's setting
    for name, experiment in experiments.items():
        setting = experiment.training.precision
        if name not in precisions:
            chosen[setting] = (
                chosen.get(setting) or experiment.resolve_precision().training.precision
            )
            precisions[name] = chosen[setting]
    fastest = {}
    for precision in precisions.values():
        models = [e.model for name, e in experiments.items() if precisions[name] == precision]
        fastest[precision] = fastest_shared_attention(models, precision)
    return {
        name: experiment.resolve_precision(precisions[name], fastest[precisions[name]])
        for name, experiment in experiments.items()
    }


def saved_and_new_variants(
    experiments: Mapping[str, Any], read: Callable[[Path], Any], folder: Path
) -> tuple[dict, dict]:
    """Return the variants of a study or a tuning in a folder, and new ones, as JSON.

    A new variant with precision "auto" gets the saved variant's precision. Attention "auto" is
    resolved for this machine.

    Args:
        read: `read_study` or `read_tuning`.
    """
    saved = {variant.name: variant.experiment for variant in read(folder).variants}
    precisions = {}
    for name, experiment in experiments.items():
        precisions[name] = experiment.training.precision
        if name in saved and precisions[name] == "auto":
            precisions[name] = experiment_fields(saved[name])["training"]["precision"]
    new = resolve_precision(experiments, precisions)
    experiments = {name: to_checked_json(experiment) for name, experiment in new.items()}
    order = "the order of the variants"  # all others are compared with the first
    return saved | {order: [*saved]}, experiments | {order: [*new]}


def write_variants(
    name: str,
    dir: Path | None,
    variants: Sequence[Variant],
    write: Callable[[Path], None],
    tuning: dict | None = None,
) -> Path:
    """Create the folder of a study or a tuning, with the user code of its variants; return it.

    Args:
        write: writes study.json or tuning.json into a folder.
        tuning: of a study, whose choices may also refer to user code.
    """
    configs = [*(variant.experiment for variant in variants), tuning]
    path = Path(distributed.broadcast_from_process0(lambda: str(new_folder(name, dir))))
    distributed.assert_equal_across_processes("variants", {"variants": [vars(v) for v in variants]})

    def write_files(folder: Path) -> None:
        write(folder)
        write_code(folder / CODE, configs)

    def create() -> str:
        return str(create_folder(path, write_files, exist_ok=dir is None))

    path = Path(distributed.broadcast_from_process0(create))
    remember_code(configs)
    return path


def make_variants(experiments: Mapping[str, Any], datasets: DatasetCache) -> tuple[Variant, ...]:
    """Return the entries of study.json; raise a `UserError` if one can't be trained or compared."""
    used, variants, comparable = {"comparison", "tuning", STUDY, CODE}, [], []
    for name, experiment in experiments.items():
        try:
            built = datasets.build(experiment)
        except UserError as error:
            raise UserError(f"variant {name}: {error}") from error
        model, config = built.experiment.model, to_checked_json(experiment)
        shapes = jax.eval_shape(partial(make_model, model, rng=jax.random.key(0)))
        size, folder = count_parameters(shapes), free_name(name, used)
        digests = file_digests(built.experiment)
        variants.append(Variant(name, folder, config, built.fingerprint, size, sha256=digests))
        fields = experiment_fields(config)
        # Settings of tokenizers are compared; a pretrained model has its own.
        tokenizer = None if fields.get("init_from") else fields.get("tokenizer")
        comparable.append((name, fields, built.fingerprint, tokenizer))
    check_comparable(comparable)
    return tuple(variants)


def free_name(name: str, used: set[str]) -> str:
    """Return a folder name for a variant that differs from those used, ignoring case; add it."""
    path = next_free(Path("-".join(name.split())), lambda path: path.name.casefold() in used)
    used.add(path.name.casefold())
    return path.name


# Train


def train_variants(study: Study, datasets: DatasetCache) -> Study:
    """Train the variants that have not ended, then compare.

    A variant that fails is recorded in study.json; the others are trained.
    """
    for number, variant in enumerate(study.variants, 1):
        if variant.failed or (variant.ended and has_run(study.folder / variant.run)):
            continue
        label = f"\nvariant {number} of {len(study.variants)}: {variant.name}"
        print(printable(label), flush=True)
        if study.tuning and variant.tuned is None:
            study = tune_variant(study, variant, datasets)
            variant = study.variants[number - 1]
        failed = variant.failed or train_variant(study.folder, variant, datasets)
        study = study.changed(variant.name, failed=failed, ended=not failed)
        if distributed.is_process0():
            study.write()
        gc.collect()  # frees the arrays of the run that has ended
    report(study)
    return study


def tune_variant(study: Study, variant: Variant, datasets: DatasetCache) -> Study:
    """Tune a variant, or resume its tuning; return the study with its chosen values, or failed."""
    from tlite.runs.tune import tune_experiment

    folder = study.folder / "tuning" / variant.run
    with allow_code(study.folder / CODE):
        experiment = variant.config().with_paths(moved=True)
        try:
            tuned, warnings = tune_experiment(experiment, study.tuning or {}, folder, datasets)
        except RunFailed as error:
            return study.changed(variant.name, failed=str(error))
    study = study.changed(variant.name, tuned=tuned, tuning_warnings=tuple(warnings))
    if distributed.is_process0():
        study.write()
    return study


def has_run(folder: Path) -> bool:
    """Return True if a variant's run has been created."""
    return distributed.broadcast_from_process0((folder / RUN).is_file)


def train_variant(folder: Path, variant: Variant, datasets: DatasetCache) -> str | None:
    """Train a variant to its end; return why it has failed, or None."""

    def train() -> None:
        open_variant(folder, variant, datasets).train(report=False)

    return failure_reason(f"variant {variant.name}", train)


def failure_reason(label: str, train: Callable[[], Any]) -> str | None:
    """Call a function that trains; return why it has failed, which is also a warning, or None.

    Raises:
        OutOfMemory: of one of several processes.
    """
    try:
        with out_of_memory(f"the {label}"):
            train()
    except RunFailed as error:
        if isinstance(error, OutOfMemory) and distributed.process_count() > 1:
            raise  # other processes may have enough
        if distributed.is_process0():
            print(printable(f"warning: {label} failed: {error}"), file=sys.stderr)
        return str(error)
    return None


def open_variant(folder: Path, variant: Variant, datasets: DatasetCache) -> Run:
    """Open or create the run of a variant; raise `RunFailed` if it can't be trained."""
    path = folder / variant.run
    if has_run(path):
        return Run.open(path)
    built = build_variant(folder, variant, datasets)
    try:
        return Run.start(built, path)
    except UserError as error:
        if is_environment_error(error) or distributed.process_count() > 1:
            raise
        raise RunFailed(str(error)) from error


def build_variant(folder: Path, variant: Variant, datasets: DatasetCache) -> Built:
    """Build the experiment of a variant.

    Raises:
        UserError: its data, its tokenizer's file or its pretrained model has changed.
    """
    with allow_code(folder / CODE):
        experiment = variant.config().with_paths(moved=True)
    built = datasets.build(experiment)
    tuned = {name.partition(".")[0] for name in variant.tuned or {}}  # may be another model
    digests = {n: d for n, d in variant.sha256.items() if n.partition(".")[0] not in tuned}
    fingerprint = built.fingerprint | file_digests(built.experiment)
    check_same_data(folder / variant.run, variant.data | digests, fingerprint)
    return built


def file_digests(experiment: Any) -> dict[str, str]:
    """Return the SHA-256 values that `build` fills into an experiment, by dotted field."""
    settings = {name: getattr(experiment, name, None) for name in ("tokenizer", "init_from")}
    return {f"{n}.sha256": s.sha256 for n, s in settings.items() if hasattr(s, "sha256")}


def check_variants(folder: Path, variants: Sequence[Variant], datasets: DatasetCache) -> None:
    """Raise a `UserError` if what a variant reads has changed, also if it has ended."""
    for variant in variants:
        build_variant(folder, variant, datasets)


def report(study: Study) -> None:
    """Compare the variants; raise a `UserError` if some have failed."""
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
