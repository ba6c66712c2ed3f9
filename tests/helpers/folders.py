"""Run folders that hold only the files that `tlite runs` reads."""

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
    """Write a run with checkpoints (step, score), validated every 3 steps.

    Args:
        age: Seconds since its config was written.
        began: Seconds since its start, written into config.json unless None.
    """
    training = to_dict(TrainingConfig(steps=steps, best_metric=best_metric, evaluate_every=3))
    experiment = {"kind": kind, "name": "tiny", "training": training}
    start = {} if began is None else {"began": f"{datetime.datetime.fromtimestamp(1e9 - began)}"}
    write(folder / "config.json", {"experiment": experiment, "data": {}} | start)
    for step, score in scores:
        content = {"step": step, "score": score}
        write(folder / "checkpoints" / str(step) / METRICS, content)
    os.utime(folder / "config.json", (1e9 - age, 1e9 - age))
    return folder
