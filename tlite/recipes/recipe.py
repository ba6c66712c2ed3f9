"""What the runs of all models have in common: prepared, trained, validated, evaluated."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from tlite.data.tables import Part
from tlite.errors import Interrupted, UserError, check_packages, command, disk_errors, resumable
from tlite.experiment import Pretrained, Pretraining
from tlite.models import count_parameters, make_model
from tlite.models.config import named_parts
from tlite.models.parameters import by_name
from tlite.models.probe import probe
from tlite.parallel import processes
from tlite.pretrained.configs import flat, with_fields
from tlite.terminal import printable
from tlite.training import TrainState
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import fit
from tlite.training.metrics import read_metrics, save_examples
from tlite.training.runs import Run

EVALUATION_BATCH = 64
FEW, FEW_TOKENS = {"texts": 100, "pairs": 100}, 2000  # so few scored say little


class Parts(NamedTuple):
    """The examples that a run learns from, and is validated on."""

    training: Iterable
    validation: Iterable


class Prepared(NamedTuple):
    """An experiment with the sizes that its data decides; its tokenizer, and the data."""

    experiment: Any
    tokenizer: Any
    data: Any


class Recipe:
    """A run with its data, its tokenizer and the trainer that can restore its checkpoints.

    A kind of runs has besides what is here
    - `fit_to_data(experiment, data)`: the experiment with the sizes that its data decides, and the
      tokenizer; `load_tokenizer(run)`: the one that was saved with a run;
    - `fingerprint(data)`: sizes and SHA-256, to know the data again;
    - `make_trainer()`: the compiled core for this model and its training data;
    - `tokens_per_example`: positions of one example, padding among them;
    - `report(batches, parameters, step)`: prints and draws at the end of training, of the best
      checkpoint;
    - `evaluate(split, checkpoint, member)`: prints how the models do on a part of the data, one by
      one; with `member` "all" also how the mean of their probabilities does;
    and, unless it overrides `load_data` and `validation`, `read(experiment, part)`, the examples of
    a part, and `batches(examples)`, batches that hold each of them once.
    """

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

    @property
    def experiment(self):
        return self.run.experiment

    # What a kind of runs may do otherwise

    @classmethod
    def load_data(cls, experiment) -> Any:
        """The data of an experiment."""
        return Parts(*(cls.read(experiment, part) for part in ("training", "validation")))

    def validation(self) -> Any:
        """Batches that hold all of the validation part once."""
        return self.batches(self.data.validation)

    def start_members(self) -> TrainState:
        """The members before their first step."""
        return self.trainer.init()

    def measure(self, parameters: dict, means: dict) -> dict[str, np.ndarray]:
        """What a validation finds beside the `means` of the task's own sums, by member (M,)."""
        return {}

    def sums_by_example(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """What a validation finds of each example, by member (M, E)."""
        return self.trainer.evaluate(parameters, batches, each=True)

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
            stop.args = (f"{stop}; go on: {command('train', '--resume', resumable(run.metrics))}",)
            raise
        if report:
            print(f"best checkpoint: step {step:,}")
            self.report(batches, parameters, step)

    def tell_what_is_trained(self) -> None:
        """Print the sizes of model, data and training, and where the run lies."""
        run, trainer, config = self.run, self.trainer, self.experiment.training
        arrays = len(jax.tree.leaves(trainer.model))
        print(f"{count_parameters(trainer.model):,} parameters in {arrays} arrays", end=", ")
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
        number, what = self.scored
        if number < FEW.get(what, FEW_TOKENS):
            told = f"warning: the validation part has {number:,} {what}"
            print(f"{told}: differences of a few percent mean nothing")

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
        """Say where the run is saved, and how its test part is read, if there is one."""
        if not getattr(self.experiment.data, "test", True):
            print(f"saved in {self.run.folder}")
            return
        print(f"saved in {self.run.folder}; read the test part once, when all is chosen:")
        print(command("evaluate", self.run.folder, "--split", "test"))

    def save_sample(self, step: int, text: str) -> None:
        """Keep what a model has written at a step."""
        if processes.is_first():
            with disk_errors(self.run.samples):
                self.run.samples.mkdir(exist_ok=True)
                path = self.run.samples / f"step-{step}.txt"
                path.write_text(text, encoding="utf-8")

    def curves(self, *names: str) -> dict[str, Callable]:
        """Pictures of what training and validations have found, by step."""
        from tlite import pictures  # matplotlib is slow to import

        lines = read_metrics(self.run.metrics, most=1000)
        return {name: partial(pictures.plot_curves, lines, name) for name in names}

    def save_plots(self, plots: dict[str, Callable]) -> None:
        """Draw each of the pictures (name -> function that returns Axes) into the run folder."""
        if not processes.is_first():
            return
        from tlite.pictures import own_figures  # matplotlib is slow to import

        with disk_errors(self.run.plots):
            self.run.plots.mkdir(exist_ok=True)
            for name, plot in plots.items():
                with own_figures():
                    plot().figure.savefig(self.run.plots / f"{name}.png", dpi=120)


def with_sizes(experiment: Any, sizes: dict[str, int], whose: str) -> Any:
    """The experiment with sizes of its model that its data decides; "wide.word_rows" is a part's.

    Raises:
        UserError: it says otherwise.
    """
    given = flat(experiment.model)
    for path, size in sizes.items():
        if given[path] not in (0, size):
            raise UserError(f"{path} is {given[path]}, but the {whose} has {size}: leave it out")
    return dataclasses.replace(experiment, model=with_fields(experiment.model, sizes))


def fingerprint_of(data: Parts, unit: str, text_of: Callable[[Any], str]) -> dict[str, Any]:
    """How many examples each part has, and the SHA-256 of their texts."""
    found: dict[str, Any] = {}
    for part, examples in data._asdict().items():
        digest, number = hashlib.sha256(), 0
        for number, example in enumerate(examples, 1):  # noqa: B007
            digest.update(text_of(example).encode())
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
    source = getattr(experiment, "pretraining", None) if "training" in parts else None
    if isinstance(source, Pretraining) and source.pretraining_steps and source.unlabelled:
        found += experiment.data.reads("training", source.unlabelled)
    if isinstance(source, Pretrained):
        found.append(source.folder)
    return printable(f"the run reads: {', '.join(dict.fromkeys(found))}") if found else ""


# A run's parameters. Only what goes on training reads an optimizer too (`training.loop.restore`).


def read_parameters(
    run: Run, checkpoint: str = "best", wanted: dict[str, jax.ShapeDtypeStruct] | None = None
) -> tuple[dict[str, jax.Array], int]:
    """The parameters (M, ...) of a run's members by name, without their optimizer; and the step.

    Args:
        checkpoint: "best", "last" or a step; or "average", the mean in float64 over the last ones.
        wanted: their shapes, types and where they are to lie; on the host unless given.

    Raises:
        UserError: the run has no such checkpoint, or one of several is damaged.
    """
    if wanted is None:
        host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        number, shapes = run.experiment.training.seeds, by_name(model_shapes(run))
        of_members = partial(jax.ShapeDtypeStruct, sharding=host)
        wanted = {name: of_members((number, *a.shape), a.dtype) for name, a in shapes.items()}
    totals: dict[str, np.ndarray] = {}
    with Checkpoints(run.checkpoints, run.experiment.training) as checkpoints:
        steps = checkpoint_steps(run, checkpoints, checkpoint)
        for step in steps:
            found, trees = checkpoints.load({"parameters": wanted}, step)
            if len(steps) == 1:
                return trees["parameters"], found
            if found != step:
                raise UserError(f"checkpoint {step} is damaged: there is no average without it")
            for name, array in trees["parameters"].items():
                totals[name] = totals.get(name, 0.0) + np.asarray(array, np.float64)
    mean = {name: (total / len(steps)).astype(np.float32) for name, total in totals.items()}
    return {name: jax.device_put(a, wanted[name].sharding) for name, a in mean.items()}, steps[-1]


def checkpoint_steps(run: Run, checkpoints: Checkpoints, checkpoint: str) -> list[int]:
    """The step that "best", "last" or a number names; for "average" the last that are kept.

    Raises:
        UserError: the run has no such checkpoint.
    """
    if not (steps := checkpoints.steps()):
        raise UserError(f"{run.folder} has no checkpoint yet")
    known = {"best": [checkpoints.best_step()], "last": steps[-1:]}
    known["average"] = checkpoints.regular_steps()[-run.experiment.training.keep :]
    known |= {str(step): [step] for step in steps}
    if checkpoint not in known:
        named = f"best, last, average or one of {', '.join(map(str, steps))}"
        raise UserError(f"there is no checkpoint {checkpoint}: choose {named}")
    return known[checkpoint]


def check_member(member: int, number: int) -> None:
    """Raises a `UserError` where a run of `number` models has no such member."""
    if not 0 <= member < number:
        raise UserError(f"there is no member {member}: the run has {number}, counted from 0")


def model_shapes(run: Run):
    """One of a run's models, as shapes."""
    return jax.eval_shape(lambda: make_model(run.experiment.model, rng=jax.random.key(0)))
