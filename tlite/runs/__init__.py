"""Runs: an experiment's data, tokenizer, trainer and checkpoints, held together by a folder."""

from pathlib import Path

from tlite.experiment import Experiment
from tlite.runs.classifier import ClassifierRun
from tlite.runs.extending import save_steps, with_steps
from tlite.runs.generator import GeneratorRun
from tlite.runs.opened import OpenedRun, check_member, restore_checkpoint
from tlite.runs.translator import TranslatorRun
from tlite.training.runs import open_run

RUN_TYPES = {kind.experiment_type: kind for kind in (GeneratorRun, ClassifierRun, TranslatorRun)}


def start(experiment: Experiment, folder: Path | None = None) -> OpenedRun:
    """A new run of an experiment."""
    return RUN_TYPES[type(experiment)].start(experiment, folder)


def open_any(folder: Path, steps: int | None = None) -> OpenedRun:
    """The run in a folder, whatever it is a run of; with other `steps` than it had, if given."""
    run = open_run(folder, Experiment)
    run = run if steps is None else with_steps(run, steps)
    opened = RUN_TYPES[type(run.experiment)].with_data(run)
    if steps is not None:
        save_steps(run)
    return opened
