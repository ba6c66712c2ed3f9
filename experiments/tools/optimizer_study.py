"""Six optimizers on all of Shakespeare's plays, each with a tuned learning rate.

The learning rate of each is tuned at 400 steps, on seeds that are not used again. With it each is
trained for 400 steps with five seeds, and all but AdamW also for 200 steps, if the tuned loss is
below AdamW's, or for 600. The effective speedup is over AdamW at 400 steps.

    make optimizers    (python -m experiments.tools.optimizer_study runs/optimizers)

A second call resumes the study, and prints its results again if it is finished.
"""

import sys
from pathlib import Path

import numpy as np

import tlite
from tlite.data import Shakespeare
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig, LMHead
from tlite.training import TrainingConfig

RANGES = {
    "adamw": (3e-4, 3e-2),
    "muon": (1e-3, 1e-1),
    "lion": (1e-4, 1e-2),
    "sgd": (3e-2, 3.0),
    "adafactor": (1e-3, 1e-1),
    "schedule_free": (1e-3, 1e-1),
}
"""Range of learning rates by optimizer: two decades, 5 values."""
STEPS, FEWER, MORE = 400, 200, 600

BASE = GeneratorExperiment(
    name="optimizers",
    data=Shakespeare(validation_fraction=0.02),
    model=GeneratorConfig(
        context=64,
        width=128,
        num_heads=4,
        num_blocks=4,
        dropout=0.0,
        block="pre_norm",
        feed_forward=FeedForward(activation="gelu"),
        positions="rotary",
        head=LMHead(tied=True),
    ),
    training=TrainingConfig(
        steps=STEPS,
        batch_size=12,
        schedule="wsd",
        warmup_steps=40,
        clip_norm=1.0,
        seeds=5,
        evaluate_every=STEPS,
    ),
    prompt="ROMEO.\n",
)


def experiment_with(optimizer: str) -> GeneratorExperiment:
    """Return the experiment with an optimizer; schedule_free has no decay."""
    schedule = "constant" if optimizer == "schedule_free" else "wsd"
    fields = {"training.optimizer": optimizer, "training.schedule": schedule}
    return tlite.override(BASE, fields)


def budgets(name: str, losses: dict[str, float]) -> tuple[int, ...]:
    """Return the numbers of steps of an optimizer, which decide what speedups can be measured."""
    if name == "adamw":
        return (STEPS,)
    return (STEPS, FEWER if losses[name] < losses["adamw"] else MORE)


def main(folder: Path) -> None:
    """Tune, train and compare; all of it resumes."""
    tuned, losses, variants = {}, {}, {}
    for name, limits in RANGES.items():
        experiment = experiment_with(name)
        tuning = tlite.tune(
            experiment,
            {"training.learning_rate": limits},
            trials=5,
            seeds=3,
            dir=folder / "tuning" / name,
            resume="auto",
        )
        tuned[name] = tlite.override(experiment, tuning.values)
        losses[name] = float(np.mean(tuning.best()["loss"]))
    for name, experiment in tuned.items():
        for steps in budgets(name, losses):
            fields = {"training.steps": steps, "training.evaluate_every": steps}
            variants[f"{name}-{steps}"] = tlite.override(experiment, fields)
    study = tlite.train(variants, dir=folder / "study", resume="auto")
    tlite.compare(study, match="steps")
    tlite.compare(study, match="flops")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
