"""Train, evaluate and compare from Python, as the commands of the same names do."""

import copy
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tlite.comparison.study import Study
from tlite.config import override
from tlite.errors import UserError
from tlite.experiment import (
    BaseExperiment,
    Experiment,
    GeneratorExperiment,
)
from tlite.functional import unsupported_kwargs
from tlite.pretrained import is_pretrained
from tlite.runs.models import evaluate_text
from tlite.runs.run import ExamplesRun, Run, run_class
from tlite.training.run_dir import find_run, newest_or_path, open_run
from tlite.user_code import allow_code


def train(
    experiment: BaseExperiment | Mapping[str, BaseExperiment],
    *,
    seeds: int | None = None,
    dir: str | Path | None = None,
    resume: Literal["never", "auto", "must"] = "never",
    tune: Mapping[str, Any] | None = None,
    trials: int = 8,
    tuning_seeds: int = 3,
) -> Run | Study:
    """Train an experiment, or the variants of a study and compare them; return run or study.

    Example:
        wide = tlite.override(experiment, {"model.width": 128})
        study = tlite.train({"narrow": experiment, "wide": wide}, seeds=5)

    Args:
        experiment: an experiment, or two or more by the name of the variant; the others are
            compared with the first.
        seeds: number of seeds, instead of the experiment's.
        dir: folder of the run or study; default: runs/NAME/TIME.
        resume: as in `Run.create`.
        tune: ranges or choices by dotted field, tuned for each variant of a study before it is
            trained, with this number of trials and of seeds, as by `tlite.tune`.

    Raises:
        UserError: it can't be trained, or some variants have failed.
    """
    changes = {} if seeds is None else {"training.seeds": seeds}
    if isinstance(experiment, Mapping):
        from tlite.runs.study import train_study

        variants = {name: override(variant, changes) for name, variant in experiment.items()}
        tuning = {"tune": tune, "trials": trials, "tuning_seeds": tuning_seeds}
        return train_study(variants, dir, resume=resume, **tuning)
    if tune:
        raise UserError(
            "tune is for the variants of a study: tune a single experiment by tlite.tune"
        )
    return Run.create(override(experiment, changes), dir, resume=resume).train()


def evaluate(
    run: Run | str | Path,
    *,
    path: str | Path | None = None,
    split: Literal["validation", "training", "test"] = "validation",
    checkpoint: str | int = "best",
    replica: int | Literal["all"] = 0,
    trust: bool = False,
    **search: Any,
) -> None:
    """Print the scores of a run's models on a split of its data, or on a text or table.

    Args:
        run: a run, its folder, or for a text a Hugging Face folder.
        path: text for a generator, or table with the columns of the run's data.
        split: split of the run's data, if there is no `path`.
        checkpoint: best, last, average (of the last checkpoints), ema, or a step.
        replica: index of the model that scores a text, or whose scores by class a classifier
            prints; all other scores are those of all seeds. "all": also score their ensemble.
        trust: execute the run's copy of user code, even if this user has not trained with it.
        search: `beam`, `length_penalty` and `truncate` of a translator.

    Raises:
        UserError: the run or the path can't be read.
    """
    folder = run.dir.path if isinstance(run, Run) else find_run(run)
    if is_pretrained(folder) and path is None:
        raise UserError(f"{folder} has no data of its own: name a text, --path FILE")
    with allow_code(trust=trust):
        if search or path is not None:
            experiment = run.experiment if isinstance(run, Run) else saved_experiment(folder)
            check_search(experiment, search, folder)
            if path is not None and isinstance(experiment, GeneratorExperiment | None):
                evaluate_text(folder, path, str(checkpoint), replica)
                return
        run = run if isinstance(run, Run) else Run.open(folder)
    if path is not None:
        run, split = with_table(run, Path(path)), "test"
    run.check_replica(replica)  # the `evaluate` of a user's kind of run may not check it
    run.evaluate(split, str(checkpoint), replica, **search)


def check_search(experiment: Any, search: dict[str, Any], folder: Path) -> None:
    """Raise a `UserError` for options of a search that the kind of run does not have."""
    kind = None if experiment is None else run_class(experiment)
    if unknown := unsupported_kwargs(kind.evaluate, search) if kind else list(search):
        option = unknown[0].replace("_", "-")
        raise UserError(f"--{option} is for a translator, not {folder}")


def saved_experiment(folder: Path) -> Any:
    """Return the experiment of a run, None for a Hugging Face folder."""
    return None if is_pretrained(folder) else open_run(folder, Experiment).experiment


def with_table(run: Run, path: Path) -> Run:
    """Return the run with a table as its test split."""
    data = run.experiment.data
    if not isinstance(run, ExamplesRun) or not hasattr(data, "test"):
        raise UserError(f"{run.dir.path} has no table: there is no --path for it")
    local = {"hub": "", "path": ""} if getattr(data, "hub", "") else {}
    data = dataclasses.replace(data, test=(os.path.abspath(path),), **local)
    run = copy.copy(run)
    run.table = path.name
    run.dir = dataclasses.replace(
        run.dir, experiment=dataclasses.replace(run.experiment, data=data)
    )
    return run


def compare(*runs: Run | Study | str | Path, **options: Any) -> Any:
    """Compare runs or studies with the first (`tlite.comparison.compare`).

    Only saved configs and scores are read: no user code of the runs is executed.
    """
    from tlite.comparison import compare as compare_folders

    folders = [
        run.dir.path
        if isinstance(run, Run)
        else newest_or_path(getattr(run, "folder", run), studies=True)
        for run in runs
    ]
    if options.get("to") is not None:
        options["to"] = Path(options["to"])
    return compare_folders(folders, **options)
