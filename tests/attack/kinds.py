"""The kinds of run that are attacked, and one of each that nobody disturbed."""

import fcntl
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack import state
from tests.attack.processes import Fault, Process, surrounding

SAVES = 24
TINY = (
    "--width 8 --num-heads 2 --num-blocks 1 --precision float32 --seed 3 "
    f"--steps {2 * SAVES} --evaluate-every 2"
)
GENERATOR = f"my_text --path {{work}}/text.txt {TINY} --context 8 --batch-size 4"
# What each is trained with. {work} is the folder of the attack, which has these files.
KINDS = {
    "generator": GENERATOR,
    "classifier": f"reviews_demo --reviews 60 {TINY} --context 8 --batch-size 4",
    "translator": f"copy_task --sequences 200 --bleu-sentences 4 --beam 1 --buckets 1 "
    f"--pieces 40 --context 40 --best-metric loss {TINY} --batch-size 64",
    "two seeds": f"{GENERATOR} --seeds 2",
    "pre-training": f"{{work}}/pretrained.py {TINY} --batch-size 4",
    "study": f"{{work}}/variants.py --path {{work}}/text.txt {TINY} --context 8 --batch-size 4",
}
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


@dataclass(frozen=True)
class Work:
    """The folder of an attack, where each case has one of its own; its seed; the kinds of run."""

    folder: Path
    seed: int
    kinds: tuple[str, ...] = tuple(KINDS)

    def start(self, arguments: list, folder: Path, **settings) -> Process:
        environment = surrounding(self.folder) | settings.pop("environment", {})
        return Process(arguments, folder, environment=environment, **settings)

    def train(self, kind: str, run: Path) -> list[str]:
        """The command line that goes on with this run, or begins it where there is none."""
        if run.exists():
            return ["train", "--resume", str(run)]
        return ["train", *KINDS[kind].format(work=self.folder).split(), "--run", str(run)]

    def case(self, name: str) -> Path:
        folder = self.folder / "cases" / name
        folder.mkdir(parents=True)
        return folder

    def checkpoints(self, run: Path) -> dict:
        """`state.checkpoints` of a run, by a fork: what reads it leaves nothing here."""
        show = lambda _: print("\n" + json.dumps(state.checkpoints(run)))  # noqa: E731
        return json.loads(self.start([], run.parent, call=show).end(0).out.splitlines()[-1])

    def reference(self, kind: str) -> "Reference":
        """A run of this kind that nobody disturbed; trained by the first who asks."""
        folder = self.folder / "references" / kind
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "reference.json").exists():
                make_reference(self, kind, folder)
        content = json.loads((folder / "reference.json").read_text())
        return Reference(folder / "run", folder / "half", **content)


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed."""

    run: Path
    half: Path
    """The same, killed on its way."""
    startup: float
    """Seconds to its first step."""
    training: float
    """Seconds after it."""
    size: int
    """Bytes of its metrics, that grow with every step."""
    checkpoints: dict = field(repr=False)
    metrics: dict = field(repr=False)

    def compare(self, work: Work, run: Path) -> None:
        """Raises a `Fault` for what is different in a run that has ended."""
        found = work.checkpoints(run)
        for name, value in self.checkpoints.items():
            if found[name] != value:
                both = (sorted(v) if isinstance(v, dict) else v for v in (found[name], value))
                raise Fault("{}: {}, not {}; or other bits".format(name, *both))
        ours = state.metrics(run)
        if different := [name for name, lines in self.metrics.items() if ours.get(name) != lines]:
            raise Fault(f"other lines in {different}")


def make_reference(work: Work, kind: str, folder: Path) -> None:
    """Train a run of this kind in peace; and another, with its programs compiled, to the half."""

    def begin(run: Path) -> tuple[Process, float]:
        """One that is at its first step, and the seconds until then."""
        process = work.start(work.train(kind, run), folder)
        process.wait(300, lambda: bool(grown(run)))
        return process, time.monotonic() - process.began

    run, half = folder / "run", folder / "half"
    process, cold = begin(run)
    training = process.end(0).seconds - cold
    process, startup = begin(half)
    process.wait(300, lambda: grown(half) > 0.6 * grown(run))
    process.kill()
    content = {"startup": startup, "training": training, "size": grown(run)}
    content |= {"checkpoints": work.checkpoints(run), "metrics": state.metrics(run)}
    (folder / "reference.json").write_text(json.dumps(content))


def grown(run: Path) -> int:
    """Bytes of metrics."""
    return sum(path.stat().st_size for path in state.metrics_files(run))
