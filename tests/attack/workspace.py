"""The folder of an attack, the kinds of run that are attacked, and an undisturbed run of each."""

import fcntl
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack import state
from tests.attack.processes import Fault, Process, make_environment

SAVES = 24
TINY = (
    "--width 8 --num-heads 2 --num-blocks 1 --precision float32 --seed 3 "
    f"--steps {2 * SAVES} --evaluate-every 2"
)
GENERATOR = f"my_text --path {{folder}}/text.txt {TINY} --context 8 --batch-size 4"
KINDS = {
    "generator": GENERATOR,
    "classifier": f"reviews_demo --reviews 60 {TINY} --context 8 --batch-size 4",
    "translator": f"copy_task --sequences 200 --bleu-sentences 4 --beam 1 --buckets 1 "
    f"--num-subwords 40 --context 40 --best-metric loss {TINY} --batch-size 64",
    "two seeds": f"{GENERATOR} --seeds 2",
    "pre-training": f"{{folder}}/pretrained.py {TINY} --batch-size 4",
    "study": f"{{folder}}/variants.py --path {{folder}}/text.txt {TINY} --context 8 --batch-size 4",
}
"""Kind of run -> its experiment and options."""
PRETRAINED = """
from tlite.data import SyntheticReviews
from tlite.experiment import ClassifierExperiment, Pretraining, Words
from tlite.models import ClassifierConfig, Embedding

experiment = ClassifierExperiment(
    "pretrained",
    SyntheticReviews(reviews=60),
    Words(min_document_frequency=1),
    ClassifierConfig(context=8, embedding=Embedding(word_dropout=0.1)),
    pretraining=Pretraining(pretraining_steps=24, pretraining_batch_size=4),
)
"""
VARIANTS = """
import dataclasses
from experiments.my_text import experiment

rms = dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, norm="rms"))
slow = dataclasses.replace(rms, training=dataclasses.replace(rms.training, learning_rate=1e-4))
variants = {"layer norm": experiment, "rms norm": rms, "rms norm, slowly": slow}
"""
BEER = "".join(f"{n} bottles of beer on the wall.\n" for n in range(99, 0, -1))
FILES = {"pretrained.py": PRETRAINED, "text.txt": BEER, "variants.py": VARIANTS}
"""Files of the workspace that the commands use."""


@dataclass(frozen=True)
class Workspace:
    """The folder of an attack, with a subfolder for each case."""

    folder: Path
    seed: int
    kinds: tuple[str, ...] = tuple(KINDS)

    def start(self, words: list[str], folder: Path, **environment: str) -> Process:
        """Start `python -m WORDS` in a folder."""
        return Process(words, folder, make_environment(self.folder) | environment)

    def train_arguments(self, kind: str, run: Path) -> list[str]:
        """Return the arguments of `tlite` that resume this run, or create it."""
        if run.exists():
            return ["train", "--resume", str(run)]
        return ["train", *KINDS[kind].format(folder=self.folder).split(), "--run", str(run)]

    def new_folder(self, name: str) -> Path:
        folder = self.folder / "cases" / name
        folder.mkdir(parents=True)
        return folder

    def checkpoints(self, run: Path) -> dict:
        """Return `state.checkpoints(run)`, computed in a process with the program of users."""
        process = self.start(["tests.attack.state", str(run)], run.parent)
        return json.loads(process.end(0).out.splitlines()[-1])

    def reference(self, kind: str) -> "Reference":
        """Return the undisturbed run of this kind; the first process that needs it trains it."""

        folder = self.folder / "references" / kind
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "reference.json").exists():
                make_reference(self, kind, folder)
        content = json.loads((folder / "reference.json").read_text())
        return Reference(**content)


@dataclass
class Case:
    """A case of a part of the attack, and its result."""

    workspace: Workspace
    folder: Path
    rng: random.Random
    row: str = ""
    """Row of the table that counts it."""
    tried: int = 1
    fault: str = ""
    action: str = ""
    """Current action, printed with a fault."""

    def start(self, words: list[str], **environment: str) -> Process:
        return self.workspace.start(words, self.folder, **environment)


@dataclass(frozen=True)
class Reference:
    """An undisturbed run."""

    startup_seconds: float
    training_seconds: float
    metrics_bytes: int
    checkpoints: dict = field(repr=False)
    metrics: dict = field(repr=False)

    def compare(self, workspace: Workspace, run: Path) -> None:
        """Raise a `Fault` if a run that has ended differs."""
        checkpoints, metrics = workspace.checkpoints(run), state.metrics(run)
        for name, value in self.checkpoints.items():
            if checkpoints[name] != value:
                both = (sorted(v) if isinstance(v, dict) else v for v in (checkpoints[name], value))
                raise Fault("{}: {}, not {}; or other bits".format(name, *both))
        if names := [name for name, lines in self.metrics.items() if metrics.get(name) != lines]:
            raise Fault(f"other lines in {names}")


def make_reference(workspace: Workspace, kind: str, folder: Path) -> None:
    """Train a run undisturbed; then start it again, with compiled programs."""

    def start(run: Path) -> tuple[Process, float]:
        """Return a process at its first step, and the seconds until then."""
        words = ["tlite", *workspace.train_arguments(kind, run)]
        process = workspace.start(words, folder)
        process.wait(300, lambda: bool(metrics_bytes(run)))
        return process, time.monotonic() - process.start

    run = folder / "run"
    process, cold_startup = start(run)
    training_seconds = process.end(0).seconds - cold_startup
    process, startup_seconds = start(folder / "again")
    process.kill()
    content = {
        "startup_seconds": startup_seconds,
        "training_seconds": training_seconds,
        "metrics_bytes": metrics_bytes(run),
        "checkpoints": workspace.checkpoints(run),
        "metrics": state.metrics(run),
    }
    (folder / "reference.json").write_text(json.dumps(content))


def metrics_bytes(run: Path) -> int:
    return sum(path.stat().st_size for path in state.metrics_files(run))
