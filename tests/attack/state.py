"""What a run has come to: its checkpoints bit by bit, and its metrics but for the speed."""

import hashlib
import json
from pathlib import Path

import jax
import numpy as np

from tlite.comparison.study import is_study
from tlite.runs import Run
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import restore


def checkpoints(run: Path) -> dict:
    """The best one's step, a hash of parameters and optimizer by step, and what lies beside; a hash
    of the examples' losses.

    Of a study these of each of its runs, and study.json.
    """
    if is_study(run):
        runs = sorted(path.parent for path in run.glob("[!.]*/config.json"))
        study = json.loads((run / "study.json").read_text())
        return {"study": study} | {path.name: checkpoints(path) for path in runs}
    opened, found = Run.open(run), {}
    for step in steps_of(run):
        with Checkpoints(run / "checkpoints") as of_run:
            replicas, restored = restore(opened.trainer, of_run, int(step))
        if restored == step:
            digest = hashlib.sha256()
            leaves = jax.tree.leaves((replicas.parameters, replicas.optimizer))
            for leaf in map(np.asarray, jax.device_get(leaves)):
                digest.update(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
            found[str(step)] = digest.hexdigest()
    beside = sorted(p.name for p in (run / "checkpoints").iterdir() if not p.name.isdigit())
    found = {"best": opened.parameters("best")[1], "checkpoints": found, "beside": beside}
    examples = run / "examples.npz"
    content = examples.read_bytes() if examples.exists() else b""
    return found | {"examples": hashlib.sha256(content).hexdigest()}


def steps_of(run: Path) -> list[int]:
    """The steps there are checkpoints of, by their names."""
    names = [path.name for path in (run / "checkpoints").glob("*")]
    return sorted(int(name) for name in names if name.isdigit())


def metrics(run: Path) -> dict[str, list]:
    """Return every line of each metrics.jsonl, without the speed."""
    found = {}
    for path in metrics_files(run):
        name = str(path.relative_to(run))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[name] = [
            {k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines
        ]
    return found


def metrics_files(run: Path) -> list[Path]:
    """Of what was trained before the run, and of the run itself; or of a study's runs, in order."""
    own = [p for p in (run / "pretraining" / "metrics.jsonl", run / "metrics.jsonl") if p.exists()]
    return own if own or not is_study(run) else sorted(run.glob("[!.]*/metrics.jsonl"))
