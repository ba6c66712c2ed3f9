"""Run folders with only the files that `tlite runs` reads."""

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
    folder, age, *, scores=(), kind="GeneratorExperiment", best_metric="loss", steps=9, created=None
):
    """Write a run that validates every 3 steps, with checkpoints (step, score).

    Args:
        age: seconds since config.json was written.
        created: seconds since the time that config.json records; None: it records none.
    """
    training = to_dict(TrainingConfig(steps=steps, best_metric=best_metric, evaluate_every=3))
    content = {"experiment": {"kind": kind, "name": "tiny", "training": training}, "data": {}}
    if created is not None:
        content["created"] = str(datetime.datetime.fromtimestamp(1e9 - created))
    write(folder / "config.json", content)
    for step, score in scores:
        write(folder / "checkpoints" / str(step) / METRICS, {"step": step, "score": score})
    os.utime(folder / "config.json", (1e9 - age, 1e9 - age))
    return folder
