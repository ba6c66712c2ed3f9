"""State of a run, to compare two runs: checkpoints bit by bit, and metrics without the speed.

As a program (argument: a run) print `checkpoints`.
"""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

from tlite.comparison.study import is_study
from tlite.runs import Run
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import restore


def checkpoints(run: Path) -> dict:
    """Return hashes of a run's checkpoints and examples.npz, the best step, and other file names.

    A study has a dictionary for each of its runs, and study.json.
    """
    if is_study(run):
        runs = sorted(path.parent for path in run.glob("[!.]*/config.json"))
        study = json.loads((run / "study.json").read_text())
        return {"study": study} | {path.name: checkpoints(path) for path in runs}
    opened, digests = Run.open(run), {}
    for step in steps_of(run):
        with Checkpoints(run / "checkpoints") as reader:
            train_state, restored = restore(opened.trainer, reader, step)
        if restored == step:
            digest = hashlib.sha256()
            leaves = jax.tree.leaves(
                (train_state.parameters, train_state.optimizer, train_state.ema)
            )
            for leaf in map(np.asarray, jax.device_get(leaves)):
                digest.update(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
            digests[str(step)] = digest.hexdigest()
    examples = run / "examples.npz"
    content = examples.read_bytes() if examples.exists() else b""
    return {
        "best": opened.parameters("best")[1],
        "checkpoints": digests,
        "others": sorted(p.name for p in (run / "checkpoints").iterdir() if not p.name.isdigit()),
        "examples": hashlib.sha256(content).hexdigest(),
    }


def steps_of(run: Path) -> list[int]:
    """Return the steps with a checkpoint folder, in order."""
    names = [path.name for path in (run / "checkpoints").glob("*")]
    return sorted(int(name) for name in names if name.isdigit())


def metrics(run: Path) -> dict[str, list]:
    """Return the lines of each metrics.jsonl by path, without the speed."""
    return {
        str(path.relative_to(run)): [
            {name: value for name, value in json.loads(line).items() if name != "tokens_per_second"}
            for line in path.read_text().splitlines()
        ]
        for path in metrics_files(run)
    }


def metrics_files(run: Path) -> list[Path]:
    """Return the metrics files of a pretraining and of the run, or of all runs of a study."""
    paths = [run / "pretraining" / "metrics.jsonl", run / "metrics.jsonl"]
    existing = [path for path in paths if path.exists()]
    return existing or (sorted(run.glob("[!.]*/metrics.jsonl")) if is_study(run) else [])


if __name__ == "__main__":
    print(json.dumps(checkpoints(Path(sys.argv[1]))))
