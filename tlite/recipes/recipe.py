"""What the runs of all models have in common: started, opened, trained, restored, evaluated."""

import contextlib
import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from tlite.data.tables import Part
from tlite.errors import Interrupted, UserError, check_packages, command, disk_errors, resumable
from tlite.experiment import Pretrained, Pretraining
from tlite.models import make_model, summary
from tlite.models.config import named_parts
from tlite.models.probe import probe
from tlite.parallel import processes
from tlite.recipes.evaluation import few_scored, overfitted
from tlite.recipes.loading import read_parameters
from tlite.terminal import printable
from tlite.training import Trainer, TrainState
from tlite.training.examples import save_examples
from tlite.training.loop import fit
from tlite.training.metrics import read_metrics
from tlite.training.runs import Run

EVALUATION_BATCH = 64


class Parts(NamedTuple):
    """The examples that a run learns from, and is validated on."""

    training: Iterable
    validation: Iterable


class Prepared(NamedTuple):
    """An experiment with the sizes that its data decides; its tokenizer, and the data."""

    experiment: Any
    tokenizer: Any
    data: Any


class Recipe(ABC):
    """A run with its data, its tokenizer and the trainer that can restore its checkpoints."""

    kind: ClassVar[str]
    """The word for it: generator."""
    experiment_type: ClassVar[type]
    model_type: ClassVar[type]
    """What of a Hugging Face folder can take the place of a run's model."""
    measured: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    """What a validation finds: the best checkpoint can be chosen by it."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Those of the extra `text` that a run needs at last, and so from its beginning."""

    def __init__(self, run: Run, tokenizer: Any, data: Any):
        self.run, self.tokenizer, self.data = run, tokenizer, data
        self.trainer = self.make_trainer()

    # What a kind of run is made of

    @classmethod
    def load_data(cls, experiment) -> Any:
        """The data of an experiment."""
        return Parts(*(cls.read(experiment, part) for part in ("training", "validation")))

    @classmethod
    def read(cls, experiment, part: Part) -> Iterable:
        """The examples of a part."""
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def fit_to_data(cls, experiment, data) -> tuple[Any, Any]:
        """The experiment with the sizes that its data decides, and the tokenizer."""

    @classmethod
    @abstractmethod
    def load_tokenizer(cls, run: Run) -> Any:
        """The tokenizer that was saved with a run."""

    @classmethod
    @abstractmethod
    def fingerprint(cls, data) -> dict[str, Any]:
        """Sizes and SHA-256, to know the data again."""

    @abstractmethod
    def make_trainer(self) -> Trainer:
        """The compiled core for this model and its training data."""

    def validation(self) -> Any:
        """Batches that hold all of the validation part once."""
        return self.batches(self.data.validation)

    def batches(self, examples: Iterable) -> Any:
        """Batches that hold each of the examples once."""
        raise NotImplementedError

    @abstractmethod
    def report(self, batches, parameters: dict, step: int) -> None:
        """What is printed and drawn at the end of training, of the best checkpoint."""

    @abstractmethod
    def evaluate(
        self, split: Part = "validation", checkpoint: str = "best", member: int | str = 0
    ) -> None:
        """Print how the models do on a part of the data, of members one by one.

        With `member` "all" also how the mean of their probabilities does.
        """

    def start_members(self) -> TrainState:
        """The members before their first step."""
        return self.trainer.init()

    def measure(self, parameters: dict, means: dict) -> dict[str, np.ndarray]:
        """What a validation finds beside the `means` of the task's own sums, by member (M,)."""
        return {}

    @property
    @abstractmethod
    def tokens_per_example(self) -> int:
        """Positions of one example, padding among them."""

    @property
    def scored(self) -> tuple[int, str]:
        """How much a validation scores: a number of texts, pairs, or what a token is called."""
        name = next(name for name in self.run.data if name.startswith("validation "))
        return self.run.data[name], name.removeprefix("validation ")

    # What all kinds do alike

    @classmethod
    def prepare(cls, experiment, data: Any = None) -> Prepared:
        """An experiment with what its data decides; the data is read unless it is given.

        Raises:
            UserError: the data can't be read, or does not go with the experiment; or a part of
                the user's is not what a model needs.
        """
        cls.check_selected(experiment)
        probe(experiment.model, make_model)
        if processes.is_first():
            check_packages("text", cls.packages)
        data = cls.load_data(experiment) if data is None else data
        return Prepared(*cls.fit_to_data(experiment, data), data)

    @classmethod
    def check_selected(cls, experiment) -> None:
        """Raises a `UserError` where the best checkpoint is to have what no validation finds."""
        if (chosen := experiment.training.select) not in cls.measured:
            known = " or ".join(cls.measured)
            raise UserError(f"a {experiment.name} run has no {chosen}: --select {known}")

    @property
    def experiment(self):
        return self.run.experiment

    def train(self, profile: int = 0, *, report: bool = True) -> None:
        """Train to the end, then report if asked; so many of the steps are profiled."""
        run, trainer = self.run, self.trainer
        trainer.check_fits()
        self.tell_what_is_trained()
        batches = self.validation()
        try:
            starts = self.tokens_per_example, self.start_members, self.measure
            with contextlib.closing(trainer.feed):
                fit(trainer, run.folder, batches, *starts, profile=profile)
            parameters, step = self.parameters()
            sums = self.sums_by_example(parameters, batches)
            if processes.is_first():  # for `compare`
                save_examples(run.folder, step, sums)
        except Interrupted as stop:
            going_on = command("train", "--resume", resumable(run.metrics))
            stop.args = (f"{stop}; go on: {going_on}",)
            raise
        if told := overfitted(read_metrics(run.metrics, most=1000)):
            print(told)
        if report:
            print(f"best checkpoint: step {step:,}")
            self.report(batches, parameters, step)

    def tell_what_is_trained(self) -> None:
        """Print the sizes of model, data and training, and where the run lies."""
        run, trainer, config = self.run, self.trainer, self.experiment.training
        print(summary(trainer.model).splitlines()[-1].removeprefix("total: "), end=", ")
        tokens = len(self.tokenizer)
        rows = getattr(self.experiment.model, "vocabulary_size", tokens)
        padded = f", {rows:,} rows in the embedding" if rows > tokens else ""
        print(f"{tokens:,} tokens in the vocabulary{padded}")
        print(", ".join(f"{n:,} {name}" for name, n in run.data.items() if isinstance(n, int)))
        parts = "".join(f", {name} {told}" for name, told in named_parts(self.experiment.model))
        print(
            f"{config.seeds} x {config.steps:,} steps in {config.precision} precision"
            f"{parts} on {trainer.mesh.size} {jax.default_backend()} device(s), "
            f"run folder {run.folder}"
        )
        settings = getattr(self.experiment, "pretraining", None)
        if config.seeds > 1 and getattr(settings, "pretraining_steps", settings):
            print(f"one pre-trained model is under all {config.seeds} seeds: it is a single draw")
        if told := few_scored(*self.scored):
            print(told)

    def sums_by_example(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """What a validation finds of each example, by member (M, E)."""
        return self.trainer.evaluate(parameters, batches, each=True)

    def parameters(self, checkpoint: str = "best") -> tuple[dict[str, jax.Array], int]:
        """The members' parameters at a checkpoint, on the trainer's devices, and its step.

        Raises:
            UserError: the run has no such checkpoint.
        """
        return read_parameters(self.run, checkpoint, self.trainer.member_shapes.parameters)

    def examples(self, split: Part) -> Iterable:
        """Those of a part; the test part, which nothing else reads, is named before it is read."""
        if split != "test":
            return getattr(self.data, split)
        say_what_is_read(self.experiment, [split])
        return self.read(self.experiment, split)

    def ensemble(self, member: int | str) -> str:
        """What the mean of all members is called, where "all" of several are asked for; else ""."""
        number = self.experiment.training.seeds
        return f"the ensemble of all {number} members" if member == "all" and number > 1 else ""

    def advise_test(self) -> None:
        if not getattr(self.experiment.data, "test", True):
            print(f"saved in {self.run.folder}")
            return
        print(f"saved in {self.run.folder}; read the test part once, when all is chosen:")
        print(command("evaluate", self.run.folder, "--split", "test"))

    def save_sample(self, step: int, text: str) -> None:
        """Keep what a model has written at a step."""
        if not processes.is_first():
            return
        with disk_errors(self.run.samples):
            self.run.samples.mkdir(exist_ok=True)
            path = self.run.samples / f"step-{step}.txt"
            path.write_text(text, encoding="utf-8")

    def curves(self, *names: str) -> dict[str, Callable]:
        """Pictures of what training and validations have found, by step."""
        from tlite import pictures  # matplotlib is slow to import

        lines = read_metrics(self.run.metrics, most=1000)
        return {name: partial(pictures.plot_curves, lines, name) for name in names}

    def save_plots(self, plots: dict) -> None:
        """Draw each of the pictures (name -> function that returns Axes) into the run folder."""
        if not processes.is_first():
            return
        from tlite.pictures import own_figures  # matplotlib is slow to import

        for name, plot in plots.items():
            with own_figures():
                figure = plot().figure
                with disk_errors(self.run.plots):
                    self.run.plots.mkdir(exist_ok=True)
                    figure.savefig(self.run.plots / f"{name}.png", dpi=120)


def with_sizes(experiment: Any, sizes: dict[str, int], whose: str) -> Any:
    """The experiment with sizes of its model that its data decides; "wide.word_rows" is a part's.

    Raises:
        UserError: it says otherwise.
    """
    changed: dict[str, Any] = {}
    for path, size in sizes.items():
        slot, _, name = path.rpartition(".")
        owner = changed.get(slot, getattr(experiment.model, slot)) if slot else experiment.model
        if (given := getattr(owner, name)) not in (0, size):
            raise UserError(f"{path} is {given}, but the {whose} has {size}: leave it out")
        if slot:
            changed[slot] = dataclasses.replace(owner, **{name: size})
        else:
            changed[name] = size
    return dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, **changed))


def fingerprint_of(data: Parts, unit: str, text_of: Callable[[Any], str]) -> dict[str, Any]:
    """How many examples each part has, and the SHA-256 of their texts."""
    found: dict[str, Any] = {}
    for part, examples in data._asdict().items():
        digest, number = hashlib.sha256(), 0
        for example in examples:
            digest.update(text_of(example).encode())
            number += 1
        found |= {f"{part} {unit}": number, f"SHA-256 of the {part} part": digest.hexdigest()}
    return found


def same_everywhere(what: dict) -> None:
    """Raises a `UserError` where this process would do something else than the first one."""
    own = json.loads(json.dumps(what))  # as it is told
    first = processes.of_first(lambda: own)
    first = first if isinstance(first, dict) else {}
    if changed := [part for part in own if own[part] != first.get(part)]:
        raise UserError(
            f"this process has another {changed[0]} than process 0: give all the same command and "
            "the same files"
        )


def say_what_is_read(experiment: Any, parts: Iterable[Part] = ("training", "validation")) -> None:
    """Print it, before it is read: a run of somebody else's may name anything."""
    if line := describe_sources(experiment, parts):
        print(line, flush=True)


def describe_sources(experiment: Any, parts: Iterable[Part] = ("training", "validation")) -> str:
    """What is read for the parts of an experiment's data, in one line; "" if nothing is.

    Raises:
        UserError: something is no regular file.
    """
    if not hasattr(experiment.data, "reads"):  # made up, or a part of Python
        return ""
    found = [place for part in parts for place in experiment.data.reads(part)]
    pretraining = getattr(experiment, "pretraining", None)
    if isinstance(pretraining, Pretraining) and "training" in parts:
        unlabelled = pretraining.unlabelled if pretraining.pretraining_steps else ()
        found += experiment.data.reads("training", unlabelled) if unlabelled else []
    if isinstance(pretraining, Pretrained) and "training" in parts:
        found.append(pretraining.folder)
    return printable(f"the run reads: {', '.join(dict.fromkeys(found))}") if found else ""
