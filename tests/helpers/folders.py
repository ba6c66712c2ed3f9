"""Run folders with nothing in them but what `tlite runs` reads."""

import datetime
import json
import os

from tlite.config import to_dict
from tlite.training import TrainingConfig
from tlite.training.run_dir import METRICS


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def make_run(
    folder, age, *, scores=(), kind="GeneratorExperiment", best_metric="loss", steps=9, began=None
):
    """A run whose config was written `age` seconds ago, validated every 3 steps, with checkpoints
    (step, score).

    It began so many seconds ago as `began` says, where config.json says it.
    """
    training = to_dict(TrainingConfig(steps=steps, best_metric=best_metric, evaluate_every=3))
    experiment = {"kind": kind, "name": "tiny", "training": training}
    said = {} if began is None else {"began": f"{datetime.datetime.fromtimestamp(1e9 - began)}"}
    write(folder / "config.json", {"experiment": experiment, "data": {}} | said)
    for step, score in scores:
        content = {"step": step, "score": score}
        write(folder / "checkpoints" / str(step) / METRICS, content)
    os.utime(folder / "config.json", (1e9 - age, 1e9 - age))
    return folder
