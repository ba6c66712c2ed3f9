"""The variants of a study are trained, run after run; where it was killed it goes on."""

import contextlib
import gc
import signal
import sys
import time
from pathlib import Path

from tlite import processes
from tlite.errors import (
    Interrupted,
    OutOfMemory,
    RunFailed,
    UserError,
    command,
    lack_of_memory,
    of_surroundings,
)
from tlite.experiment import Experiment
from tlite.experiment_data import locate_data
from tlite.recipes.kinds import RECIPES, open_recipe
from tlite.recipes.prepared import same_everywhere
from tlite.recipes.recipe import Recipe
from tlite.recipes.study import FILE, Study, read_study
from tlite.recipes.study_attempts import Attempts
from tlite.recipes.study_start import Preparing, start_study, tell_failed
from tlite.terminal import printable
from tlite.training.checkpoints import Checkpoints
from tlite.training.side_by_side import failures, in_words

MOST_DEATHS = 3  # of one run, at one step, for want of memory
SHOWN = 5  # names of variants on a line


def train_study(experiments: dict[str, Experiment], folder: Path | None = None) -> None:
    """Train the variants of a study in a new folder, and compare them.

    Raises:
        UserError: as `start_study` and `train`.
    """
    preparing = Preparing()
    study = start_study(experiments, folder, preparing)
    seeds = {len(variant.members) for variant in study.variants}
    models = f" x {max(seeds)}" if max(seeds) > 1 else ""
    runs = f"{len(study.runs)} run{'s' if len(study.runs) > 1 else ''}"
    print(f"a study of {len(study.variants)} variants{models} in {runs}, folder {study.folder}")
    train(study, preparing)


def resume_study(folder: Path) -> None:
    """Go on with a study where it stood; of one at its end print the comparison again."""
    study = read_study(folder)
    where = str(folder.resolve())
    same_everywhere({"study": [vars(v) for v in study.variants], "folder": where})
    train(study, Preparing())


def train(study: Study, preparing: Preparing) -> None:
    """Train what has not come to its end, then compare.

    A variant whose loss is not finite, or that there is not enough memory for, is noted in
    study.json as failed, and the others go on.

    Raises:
        UserError: the study can't go on, as the disk is full, say; or, at its end, some variants
            have failed.
        Interrupted: by a signal; all is saved.
    """
    try:
        with (
            Attempts(study.folder) if processes.is_first() else contextlib.nullcontext() as attempts
        ):
            study = _tried_again(study, attempts)
            while run := processes.told(
                next(iter(_waiting(study, attempts)), None) if attempts else None
            ):
                study = _train_run(study, run, attempts, preparing)
                gc.collect()  # of a run that has ended no array stays
    except Interrupted:
        raise
    except KeyboardInterrupt:
        if processes.count() > 1:
            raise
        going_on = command("train", "--resume", study.folder)
        raise Interrupted(f"stopped; go on: {going_on}", signal.SIGINT) from None
    _report(study)


def _tried_again(study: Study, attempts: Attempts | None) -> Study:
    """The study with what there was no memory for once: the machine may have more of it by now."""
    failed = [variant.name for variant in study.variants if variant.failed]
    again = [name for name in failed if attempts and attempts.without_memory(name) == 1]
    again = dict.fromkeys(processes.told(again))
    return _written(study.with_failed(again)) if again else study


def _waiting(study: Study, attempts: Attempts) -> list[str]:
    """The runs that have not come to their end; nor those whose folder somebody has removed."""
    there = {run for run in attempts.ended if (study.folder / run / "config.json").is_file()}
    return [run for run in study.runs if run not in there]


def _train_run(study: Study, run: str, attempts: Attempts | None, preparing: Preparing) -> Study:
    """Train a run to its end; the study as it is then: some variants may have failed."""
    step = processes.told(_last_step(study.folder / run) if attempts else None)
    if processes.told(attempts.deaths(run, step) if attempts else None) >= MOST_DEATHS:
        if attempts:
            attempts.pass_over(run)
        why = f"it was killed {MOST_DEATHS} times after step {step}, for want of memory"
        return _without_memory(study, run, why)
    if attempts:
        print(announced(study, run, step, _seconds_left(study, run, step, attempts)), flush=True)
        attempts.begin(run, step)
    began = time.monotonic()
    try:
        study = _noted(study, _trained(study, run, preparing))
    except (RunFailed, MemoryError, RuntimeError) as error:
        _stop(attempts, run)
        memory = str(error) if isinstance(error, OutOfMemory) else lack_of_memory(error)
        if memory and processes.count() == 1:  # others may have enough
            if attempts and len(study.running(run)) == 1:
                attempts.fail(run, study.running(run)[0].name)
            return _without_memory(study, run, memory)
        if memory or not isinstance(error, RunFailed):
            raise
        return _noted(study, {variant.name: str(error) for variant in study.running(run)})
    except BaseException:
        _stop(attempts, run)
        raise
    if attempts:
        attempts.end(run, time.monotonic() - began, _work(study, run, step))
    return study


def _trained(study: Study, run: str, preparing: Preparing) -> dict[str, str]:
    """Train a run to its end; which of its variants have failed, and why."""
    recipe = _open(study, run, preparing)
    recipe.train(report=False)  # compare's is at the end
    training = recipe.experiment.training
    if not training.varied:
        return {}
    found = failures(recipe.run.metrics) if processes.is_first() else {}
    found = dict(processes.told([*found.items()]))
    return {
        variant.name: f"the loss of {in_words(training, member)} is not finite at step {step}"
        for variant in study.running(run)
        for member, step in reversed(found.items())  # the first is told
        if member in variant.members
    }


def _open(study: Study, run: str, preparing: Preparing) -> Recipe:
    """A run of a study, begun or not.

    Raises:
        RunFailed: it does not go with its data, in a way that only the whole of it shows.
        UserError: it can't be opened, or written; or the data is not what it was.
    """
    folder = study.folder / run
    if processes.told((folder / "config.json").is_file()):
        return open_recipe(folder)
    variant, experiment = study.running(run)[0], locate_data(study.experiment_of(run), folder)
    if preparing.fingerprint(experiment) != variant.data:
        raise UserError(f"the data of {variant.name} has changed since {study.folder} was made")
    prepared = preparing(experiment)
    try:
        recipe = RECIPES[type(experiment)].build(prepared, folder)
    except UserError as error:
        if isinstance(error, RunFailed) or of_surroundings(error) or processes.count() > 1:
            raise
        raise RunFailed(str(error)) from error
    recipe.save(exactly=True)
    return recipe


def _last_step(run: Path) -> int:
    """That of its last checkpoint; 0 where there is none."""
    if not (run / "checkpoints").is_dir():
        return 0
    with Checkpoints(run / "checkpoints") as checkpoints:
        return max(checkpoints.steps(), default=0)


def _without_memory(study: Study, run: str, why: str) -> Study:
    """The study where a run that there is no memory for is divided, or its only variant failed."""
    variants = study.running(run)
    if len(variants) == 1:
        return _noted(study, {variants[0].name: why})
    if processes.is_first():
        print(printable(f"warning: not side by side, but one by one: {why}"), file=sys.stderr)
    return _written(study.split(run))


def _noted(study: Study, why: dict[str, str]) -> Study:
    """The study, in which these variants have failed."""
    for name, reason in why.items():
        tell_failed(name, reason)
    return _written(study.with_failed(why)) if why else study


def _written(study: Study) -> Study:
    if processes.is_first():
        study.write()
    return study


def _stop(attempts: Attempts | None, run: str) -> None:
    if attempts:
        with contextlib.suppress(UserError):  # what has ended it is told
            attempts.stop(run)


def announced(study: Study, run: str, step: int, seconds: float | None) -> str:
    """A line that says which of a study's variants are trained, and how long the rest takes."""
    places = [i for i, v in enumerate(study.variants, 1) if v.run == run and not v.failed]
    names = [study.variants[i - 1].name for i in places]
    which = f"variant {places[0]}" if len(places) == 1 else f"{len(places)} variants"
    side_by_side = ", side by side" if len(places) > 1 else ""
    more = ", ..." if len(names) > SHOWN else ""
    left = "" if seconds is None else f", about {duration(seconds)} left of the study"
    going_on = f", going on at step {step:,}" if step else ""
    head = f"{which} of {len(study.variants)}{side_by_side}"
    return printable(f"\n{head}: {', '.join(names[:SHOWN])}{more}{going_on}{left}")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as exact as a guess is."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _seconds_left(study: Study, run: str, step: int, attempts: Attempts) -> float | None:
    """What this run and those after it take, by the ones that have ended; None: not known yet."""
    others = [_work(study, other) for other in _waiting(study, attempts) if other != run]
    return attempts.seconds_for([_work(study, run, step), *others])


def _work(study: Study, run: str, step: int = 0) -> float:
    """What the steps from this one on take, as far as it can be told: parameters x tokens."""
    total = 0.0
    for variant in study.running(run):
        experiment = variant.config()
        training, context = experiment.training, getattr(experiment.model, "context", 1)
        tokens = training.batch_size * training.accumulate * context * len(variant.members)
        total += variant.parameters * tokens * max(training.steps - step, 0)
    return total


def _report(study: Study) -> None:
    """Compare the variants, and say which have failed.

    Raises:
        UserError: some have.
    """
    failed = [variant.name for variant in study.variants if variant.failed]
    if processes.is_first() and len(failed) < len(study.variants):
        from tlite.comparison import compare

        print()
        compare([study.folder])
    processes.told(None)  # what ends another process would end the first one while it compares
    if failed:
        names = f"{', '.join(failed[:SHOWN])}{', ...' if len(failed) > SHOWN else ''}"
        have = "has" if len(failed) == 1 else "have"
        number = f"{len(failed)} of {len(study.variants)} variants"
        raise UserError(
            f"{number} {have} failed: {names}; {study.folder / FILE} says why; to try one again, "
            'put that right, set its "failed" there to null, and '
            f"{command('train', '--resume', study.folder)}"
        )
