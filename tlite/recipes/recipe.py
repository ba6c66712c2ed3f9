"""What the runs of all models have in common: started, opened, trained, restored, evaluated."""

import contextlib
import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from tlite.config import to_dict
from tlite.errors import Interrupted, UserError, check_packages, command, disk_errors, resumable
from tlite.models import make_model, summary
from tlite.models.config import named_parts
from tlite.models.probe import probe
from tlite.parallel import processes
from tlite.recipes.data import locate_data, say_what_is_read
from tlite.recipes.loading import read_parameters
from tlite.recipes.options import Evaluate
from tlite.training import Trainer, TrainState
from tlite.training.examples import save_examples
from tlite.training.loop import fit
from tlite.training.metrics import read_metrics
from tlite.training.precision import choose_products
from tlite.training.runs import Run, create_run

EVALUATION_BATCH = 64
FEW = {"texts": 100, "pairs": 100}  # so few scored say little
FEW_TOKENS = 2000
WORSE = 1.02  # the last loss, as a multiple of the best


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
    @abstractmethod
    def load_data(cls, experiment) -> Any:
        """The data of an experiment."""

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

    @abstractmethod
    def validation(self) -> Any:
        """Batches that hold all of the validation part once."""

    @abstractmethod
    def report(self, batches) -> None:
        """What is printed and drawn at the end of training."""

    @abstractmethod
    def evaluate(self, options: Evaluate) -> None:
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

    @classmethod
    def build(cls, prepared: Prepared, path: Path) -> "Recipe":
        """The run that will be in a folder, compiled: what can't fit is told before it is written.

        The precision must have been chosen.
        """
        experiment, tokenizer, data = prepared
        model = choose_products(experiment.model, experiment.training.precision)
        experiment = dataclasses.replace(experiment, model=model)
        fingerprint = cls.fingerprint(data)
        same_everywhere({"experiment": to_dict(experiment), "data": fingerprint})
        new = cls(Run(path, experiment, fingerprint), tokenizer, data)
        new.trainer.compile()
        return new

    def save(self, *, exactly: bool) -> None:
        """Let the run's folder appear; unless `exactly` under the next number, if there is one."""
        run = self.run
        what = run.folder, run.experiment, run.data, self.tokenizer
        folder = processes.of_first(lambda: str(create_run(*what, exactly=exactly).folder))
        self.run = dataclasses.replace(run, folder=Path(folder))

    @classmethod
    def open(cls, run: Run) -> "Recipe":
        """A run with the data it was trained on.

        Raises:
            UserError: the data can't be read, or has changed.
        """
        located = locate_data(run.experiment, run.folder)
        run = dataclasses.replace(run, experiment=located)
        say_what_is_read(located)
        data = cls.load_data(run.experiment)
        then, now = run.data, cls.fingerprint(data)
        if changed := [name for name in [*then, *now] if then.get(name) != now.get(name)]:
            raise UserError(
                f"the data of {run.folder} has changed since the run began: {changed[0]}: "
                f"{then.get(changed[0])} then, {now.get(changed[0])} now"
            )
        where = str(run.folder.resolve())
        same_everywhere({"experiment": to_dict(run.experiment), "data": now, "folder": where})
        return cls(run, cls.load_tokenizer(run), data)

    @property
    def experiment(self):
        return self.run.experiment

    def train(self, profile: int = 0, *, report: bool = True) -> None:
        """Train to the end, then report if asked; so many of the steps are profiled."""
        run, trainer, config = self.run, self.trainer, self.experiment.training
        trainer.check_fits()
        print(summary(trainer.model).splitlines()[-1].removeprefix("total: "), end=", ")
        print(f"{len(self.tokenizer):,} tokens in the vocabulary")
        print(", ".join(f"{n:,} {name}" for name, n in run.data.items() if isinstance(n, int)))
        print(
            f"{config.seeds} x {config.steps:,} steps in {config.precision} precision"
            f"{self._own_parts()} on "
            f"{trainer.mesh.size} {jax.default_backend()} device(s), "
            f"run folder {run.folder}"
        )
        settings = getattr(self.experiment, "pretraining", None)
        if config.seeds > 1 and getattr(settings, "pretraining_steps", settings):
            print(f"one pre-trained model is under all {config.seeds} seeds: it is a single draw")
        if told := few_scored(*self.scored):
            print(told)
        batches = self.validation()
        try:
            starts = self.tokens_per_example, self.start_members, self.measure
            with contextlib.closing(trainer.feed):
                fit(trainer, run.folder, batches, *starts, profile=profile)
            self.save_examples(batches)
        except Interrupted as stop:
            going_on = command("train", "--resume", resumable(run.metrics))
            stop.args = (f"{stop}; go on: {going_on}",)
            raise
        if told := overfitted(read_metrics(run.metrics, most=1000)):
            print(told)
        if report:
            self.report(batches)

    def save_examples(self, batches: Any) -> None:
        """Keep what the best checkpoint's validation finds of each example, for `compare`."""
        parameters, step = self.parameters()
        sums = self.sums_by_example(parameters, batches)
        if processes.is_first():
            save_examples(self.run.folder, step, sums)

    def sums_by_example(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """What a validation finds of each example, by member (M, E)."""
        return self.trainer.evaluate_each(parameters, batches)

    def _own_parts(self) -> str:
        """Which attention the model has, and which functions and parts of the user's."""
        return "".join(f", {name} {told}" for name, told in named_parts(self.experiment.model))

    def parameters(self, checkpoint: str = "best") -> tuple[dict[str, jax.Array], int]:
        """The members' parameters at a checkpoint, on the trainer's devices, and its step.

        Raises:
            UserError: the run has no such checkpoint.
        """
        return read_parameters(self.run, checkpoint, self.trainer.member_shapes().parameters)

    def is_together(self, member: int | str) -> bool:
        """Whether "all" of several members are asked for."""
        return member == "all" and self.experiment.training.seeds > 1

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


def spread(values: np.ndarray, style: str) -> str:
    """Mean and standard deviation over the members (M,)."""
    deviation = f" ± {values.std(ddof=1):{style}}" if len(values) > 1 else ""
    return f"{values.mean():{style}}{deviation}"


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


def fingerprint_of(name: str, texts: Iterable[str], unit: str) -> dict[str, Any]:
    """How many texts a part has, and the SHA-256 of them."""
    digest, number = hashlib.sha256(), 0
    for text in texts:
        digest.update(text.encode())
        number += 1
    return {f"{name} {unit}": number, f"SHA-256 of the {name} part": digest.hexdigest()}


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


def few_scored(number: int, what: str) -> str:
    """A warning where so few texts, pairs or tokens are scored that it says little; else ""."""
    if number >= FEW.get(what, FEW_TOKENS):
        return ""
    told = f"warning: the validation part has {number:,} {what}"
    return f"{told}: differences of a few percent mean nothing"


def overfitted(lines: Sequence[dict]) -> str:
    """A sentence where the validation loss has risen clearly since its best; else "".

    Args:
        lines: those of metrics.jsonl.
    """
    known = [line for line in lines if line.get("loss") is not None]
    validations = [line for line in known if line["split"] == "validation"]
    if len(validations) < 2:
        return ""
    best, last = min(validations, key=lambda line: line["loss"]), validations[-1]
    if best["step"] > 0.8 * last["step"] or last["loss"] < WORSE * best["loss"]:
        return ""
    training = [line for line in known if line["split"] == "training"]

    def mean_before(index: int) -> float | None:
        """The mean training loss between the validation before and this one."""
        start = validations[index - 1]["step"] if index else 0
        end = validations[index]["step"]
        found = [line["loss"] for line in training if start < line["step"] <= end]
        return fmean(found) if found else None

    then, now = mean_before(validations.index(best)), mean_before(len(validations) - 1)
    if then is not None and now is not None and now >= then:
        return ""  # it diverges
    told = f"validation is best at step {best['step']:,} (loss {best['loss']:.2f})"
    went_on = "" if now is None else f"training went on to {now:.2f}, "
    return f"{told}; {went_on}validation to {last['loss']:.2f}: the model overfits"
