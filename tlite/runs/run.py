"""What the runs of all models have in common: prepared, trained, validated, evaluated."""

import contextlib
import dataclasses
import hashlib
import json
import math
import reprlib
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float

from tlite import distributed
from tlite import functional as F
from tlite.data.tables import Part
from tlite.errors import Interrupted, UserError, check_packages, command, disk_errors, resumable
from tlite.experiment import Pretrained, Pretraining
from tlite.models import Ensemble, TransformerConfig, make_model
from tlite.models.config import describe_components
from tlite.models.custom import probe
from tlite.models.parameters import from_named_arrays, named_arrays, stack_blocks
from tlite.pretrained import load_pretrained
from tlite.pretrained.configs import flatten, replace_fields, resolve_fields
from tlite.terminal import printable
from tlite.training import TrainState
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import fit, means_of
from tlite.training.metrics import read_metrics, save_examples
from tlite.training.run_dir import RunDir, sha256
from tlite.training.sharding import out_of_memory

EVALUATION_BATCH = 64
FEW, FEW_TOKENS = {"texts": 100, "pairs": 100}, 2000  # so few scored say little
LEARNED = "training", "validation"  # the parts that a run reads before it has ended
OURS = {  # fields of a model that are the experiment's, whatever it starts from
    "dropout", "attention.dropout", "feed_forward.dropout", "embedding.word_dropout",
    "attention.function", "attention.query_chunk_size", "head.product", "embedding.init_std",
    "loop.scan", "loop.remat", "context",
}  # fmt: skip


class Parts(NamedTuple):
    """The examples that a run learns from, and is validated on."""

    training: Iterable
    validation: Iterable


class Run:
    """A run with its data, its tokenizer and the trainer that can restore its checkpoints.

    A kind of runs has besides what is here
    - `fit_to_data(experiment, data)`: the experiment with the sizes that its data decides, and the
      tokenizer; `load_tokenizer(run)`: the one that was saved with a run;
    - `make_trainer()`: the compiled core for this model and its training data;
    - `tokens_per_example`: positions of one example, padding among them;
    - `report(means, parameters, step)`: prints and draws the validation of the best checkpoint at
      the end of training; `means` (M,) are those of `validate`;
    - `evaluate(split, checkpoint, replica)`: prints how the models do on a part of the data, one by
      one; with `replica` "all" also how the mean of their probabilities does;
    and, unless it overrides what uses them, `read(experiment, part)`, the examples of a part, their
    `unit`, `text_of(example)`, and `batches(examples)`, batches that hold each of them once.
    """

    kind: ClassVar[str]
    """The word for it: generator."""
    experiment_type: ClassVar[type]
    model_type: ClassVar[type]
    """What of a Hugging Face folder can take the place of a run's model."""
    unit: ClassVar[str]
    """What examples are called: texts."""
    measured: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    """What a validation finds: the best checkpoint can be chosen by it."""
    data_needs: ClassVar[tuple[str, ...]]
    """Attributes and methods that `data` of any class, also the user's, must have."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Those of the extra `text` that a run needs at last, and so from its beginning."""

    def __init__(self, run: RunDir, tokenizer: Any, data: Any):
        self.dir, self.tokenizer, self.data = run, tokenizer, data
        self.trainer = self.make_trainer()

    @property
    def experiment(self):
        return self.dir.experiment

    # What a kind of runs may do otherwise

    @classmethod
    def load_data(cls, experiment) -> Any:
        """The data of an experiment."""
        return Parts(*(cls.read(experiment, part) for part in LEARNED))

    @classmethod
    def fingerprint(cls, data: Any) -> dict[str, Any]:
        """How many examples each part has, and the SHA-256 of their texts, to know them again."""
        found: dict[str, Any] = {}
        for part, examples in data._asdict().items():
            digest, number = hashlib.sha256(), 0
            for number, example in enumerate(examples, 1):  # noqa: B007
                digest.update(cls.text_of(example).encode())
            found[f"{part} {cls.unit}"] = number
            found[f"SHA-256 of the {part} part"] = digest.hexdigest()
        return found

    def validation(self) -> Any:
        """Batches that hold all of the validation part once."""
        return self.batches(self.data.validation)

    def start_replicas(self) -> TrainState:
        """Return the state before the first step."""
        names = self.trainer.shapes.keys()
        start = self.start_parameters()
        return self.trainer.init({name: a for name, a in start.items() if name in names})

    def start_parameters(self) -> dict[str, Any]:
        """Return the arrays by name that every seed starts from; the others are drawn."""
        source, config = getattr(self.experiment, "pretraining", None), self.experiment.model
        if not isinstance(source, Pretrained):
            return {}
        return taken_from(source, config, getattr(config, "num_classes", None))[1]

    def measure(self, parameters: dict, means: dict) -> dict[str, np.ndarray]:
        """What a validation finds beside the `means` of the task's own sums, by replica (M,)."""
        return {}

    def sums_by_example(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """What a validation finds of each example, by replica (M, E)."""
        return self.trainer.evaluate(parameters, batches, each=True)

    @property
    def scored(self) -> tuple[int, str]:
        """How much a validation scores: a number of texts, pairs, or what a token is called."""
        return self.dir.data[f"validation {self.unit}"], self.unit

    # What all kinds do alike

    @classmethod
    def prepare(cls, experiment, data: Any = None) -> tuple[Any, Any, Any]:
        """An experiment with the sizes that its data decides; its tokenizer; and the data, which is
        read unless it is given.

        Raises:
            UserError: the data can't be read, or does not go with the experiment; a part of the
                user's is not what a model needs; or the best checkpoint is to have what no
                validation finds.
        """
        if (chosen := experiment.training.best_metric) not in cls.measured:
            known = " or ".join(cls.measured)
            raise UserError(f"a {experiment.name} run has no {chosen}: --best-metric {known}")
        probe(experiment.model, make_model)
        if distributed.is_process0():
            check_packages("text", cls.packages)
        data = cls.load_data(experiment) if data is None else data
        return *cls.fit_to_data(experiment, data), data

    def train(self, profile: int = 0, *, report: bool = True) -> None:
        """Train to the end, then report if asked; so many of the steps are profiled."""
        run, trainer = self.dir, self.trainer
        trainer.check_fits()
        self.tell_what_is_trained()
        batches = self.validation()
        try:
            with contextlib.closing(trainer.feed):
                fit(
                    trainer,
                    run.path,
                    batches,
                    self.tokens_per_example,
                    self.start_replicas,
                    self.measure,
                    profile,
                )
            parameters, last = self.parameters("last")
            sums = self.sums_by_example(parameters, batches)
            if distributed.is_process0():  # for `compare`
                save_examples(run.path, last, sums)
            parameters, step = self.parameters()
        except Interrupted as stop:
            stop.args = (f"{stop}; go on: {command('train', '--resume', resumable(run.metrics))}",)
            raise
        if report:
            print(f"best checkpoint: step {step:,}")
            sums = sums if step == last else trainer.evaluate(parameters, batches)
            self.report(means_of(sums), parameters, step)

    def tell_what_is_trained(self) -> None:
        """Print the sizes of model, data and training, and where the run lies."""
        run, trainer, config = self.dir, self.trainer, self.experiment.training
        tokens, model = len(self.tokenizer), self.experiment.model
        rows = getattr(model, "vocabulary_size", tokens)
        padded = f", {rows:,} rows in the embedding" if rows > tokens else ""
        print(
            f"{trainer.num_parameters:,} parameters in {len(trainer.shapes)} arrays, "
            f"{tokens:,} tokens in the vocabulary{padded}"
        )
        print(", ".join(f"{n:,} {name}" for name, n in run.data.items() if isinstance(n, int)))
        parts = "".join(f", {name} {told}" for name, told in describe_components(model))
        print(
            f"{config.seeds} x {config.steps:,} steps in {config.precision} precision"
            f"{parts} on {trainer.mesh.size} {jax.default_backend()} device(s), "
            f"run folder {run.path}"
        )
        if config.label_smoothing:
            smoothed = f"label smoothing of {config.label_smoothing}"
            print(f"the training loss includes {smoothed}, the validation loss does not")
        for warning in trainer.mesh_warnings if distributed.is_process0() else ():
            print(f"warning: {warning}", file=sys.stderr)
        settings = getattr(self.experiment, "pretraining", None)
        if config.seeds > 1 and getattr(settings, "pretraining_steps", settings):
            print(f"one pre-trained model is under all {config.seeds} seeds: it is a single draw")
        number, what = self.scored
        if number < FEW.get(what, FEW_TOKENS):
            told = f"warning: the validation part has {number:,} {what}"
            print(f"{told}: differences of a few percent mean nothing")
        sys.stdout.flush()  # JAX may abort this process when another one is lost

    def parameters(self, checkpoint: str = "best") -> tuple[dict[str, jax.Array], int]:
        """The replicas' parameters at a checkpoint, on the trainer's devices, and its step.

        Raises:
            UserError: the run has no such checkpoint.
        """
        return read_parameters(self.dir, checkpoint, self.trainer.replica_shapes.parameters)

    def examples(self, split: Part) -> Iterable:
        """Those of a part; the test part, which nothing else reads, is named before it is read."""
        if split != "test":
            return getattr(self.data, split)
        tell_what_is_read(self.experiment, [split])
        return self.read(self.experiment, split)

    def ensemble(self, replica: int | str) -> str:
        """The name of the mean of all replicas, where "all" of several are named; else ""."""
        number = self.experiment.training.seeds
        return f"the ensemble of all {number} replicas" if replica == "all" and number > 1 else ""

    def ensemble_of(self, parameters: dict) -> Ensemble:
        """The replicas as one model, whole in this process."""
        arrays = self.trainer.on_host(parameters)
        return Ensemble(jax.tree.map(jnp.asarray, from_named_arrays(self.trainer.model)(arrays)))

    def ensemble_means(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """`training.loop.validate` of the replicas as one model: means over all batches, (1,) each.

        The examples of a batch are divided over the devices, and on each of them the replicas come
        one after the other.
        """

        def evaluate(ensemble, batches):
            def of_batch(batch):
                sums = self.trainer.task.evaluate(ensemble, batch)
                return jax.tree.map(lambda a: a.sum(0), sums)

            return jax.lax.map(of_batch, batches)

        examples, devices = jax.tree.leaves(batches)[0].shape[1], jax.local_devices()
        mesh = Mesh(np.array(devices[: math.gcd(examples, len(devices))]), ("data",))
        divided = NamedSharding(mesh, PartitionSpec(None, "data"))
        with out_of_memory("a batch of the evaluation"):
            whole = NamedSharding(mesh, PartitionSpec())
            ensemble = jax.device_put(self.ensemble_of(parameters), whole)
            score = jax.jit(F.float32_products(evaluate))
            sums = jax.device_get(score(ensemble, jax.device_put(batches, divided)))
        return means_of({name: values[None] for name, values in sums.items()})

    def advise_test(self) -> None:
        """Say where the run is saved, and how its test part is read, if there is one."""
        folder, there = self.dir.path, getattr(self.experiment.data, "test", True)
        read = f"; read the test part once, when all is chosen:\n{command('evaluate', folder)}"
        print(f"saved in {folder}" + (f"{read} --split test" if there else ""))

    def save_sample(self, step: int, text: str) -> None:
        """Keep what a model has written at a step."""
        if distributed.is_process0():
            with disk_errors(self.dir.samples):
                self.dir.samples.mkdir(exist_ok=True)
                path = self.dir.samples / f"step-{step}.txt"
                path.write_text(text, encoding="utf-8")

    def save_curves(self, *names: str) -> None:
        """Draw what training and validations have found, by step."""
        from tlite import pictures  # matplotlib is slow to import

        lines = read_metrics(self.dir.metrics, most=1000)
        self.save_plots({name: partial(pictures.plot_curves, lines, name) for name in names})

    def save_plots(self, plots: dict) -> None:
        """Draw each of the pictures (name -> function that returns Axes) into the run folder."""
        if not distributed.is_process0():
            return
        from tlite.pictures import own_figures  # matplotlib is slow to import

        with disk_errors(self.dir.plots):
            self.dir.plots.mkdir(exist_ok=True)
            for name, plot in plots.items():
                with own_figures():
                    plot().figure.savefig(self.dir.plots / f"{name}.png", dpi=120)


# A number with its error


def spread(values: np.ndarray, style: str) -> str:
    """Mean and standard deviation over the replicas (M,)."""
    deviation = f" (SD {values.std(ddof=1):{style}})" if len(values) > 1 else ""
    return f"{values.mean():{style}}{deviation}"


def interval(scores: Float[np.ndarray, "M N"], examples: str, style: str) -> str:
    """The 95 % interval of the mean, as text: ± half_width and its parts.

    Args:
        scores: by seed and example, or block of examples (`comparison.statistics.variance`).
        examples: name of the examples: texts, pairs, or text for blocks of one.
    """
    from tlite.comparison.blocks import new_examples  # SciPy is slow to import
    from tlite.comparison.statistics import Difference, variance

    seeds, number = scores.shape
    found = Difference(scores.mean(), variance(scores), (seeds, seeds), examples=number)
    half, (of_seeds, of_examples) = found.half_width, found.parts
    if half is None:
        return f"95 % for {new_examples(examples)}, with this seed: ± {of_examples:{style}}"
    parts = f"(seeds {of_seeds:{style}}, {examples} {of_examples:{style}})"
    return f"95 % for new seeds and {new_examples(examples)}: ± {half:{style}} {parts}"


def accuracy_interval(right: Bool[np.ndarray, "M N"], examples: str) -> str:
    """`interval` of an accuracy in percent; Wilson's where all are right, or none."""
    from tlite.comparison.statistics import wilson

    if right.any() and not right.all():
        return interval(100.0 * right, examples, ".1f")
    low, high = (100 * end for end in wilson(right.mean(), right.shape[1]))
    return f"95 % for new {examples}: {low:.1f} to {high:.1f} (Wilson)"


# An experiment and its data


def with_sizes(experiment: Any, sizes: dict[str, int], whose: str) -> Any:
    """Return the experiment with model sizes that the data decides, as "wide.num_word_ngrams".

    Raises:
        UserError: it says otherwise.
    """
    given = flatten(experiment.model)
    for path, size in sizes.items():
        if given[path] not in (0, size):
            raise UserError(f"{path} is {given[path]}, but the {whose} has {size}: leave it out")
    return dataclasses.replace(experiment, model=replace_fields(experiment.model, sizes))


def check_examples(examples: Any, kind: type) -> Any:
    """The examples that a data class, perhaps the user's, has returned.

    Raises:
        UserError: in a list of them is something of another type.
    """
    for example in examples if isinstance(examples, list) else []:
        if not isinstance(example, kind):
            found = type(example).__name__
            raise UserError(
                f"the data must have examples of tlite.data.{kind.__name__}: not {found}"
            )
    return examples


def same_everywhere(values: dict) -> None:
    """Raise a `UserError` in a process whose values are not those of process 0."""
    here = json.loads(json.dumps(values))
    if here != (first := distributed.broadcast_from_process0(lambda: here)):
        raise UserError(
            f"process 0 disagrees: {first_difference(first, here)}; start every process with the "
            "same command and files"
        )


def first_difference(saved: Any, current: Any, path: str = "") -> str:
    """Return the first field, by its dotted path, in which two configs in JSON differ."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for name in saved | current:
            if saved.get(name) != current.get(name):
                inner = f"{path}.{name}".lstrip(".")
                return first_difference(saved.get(name), current.get(name), inner)
    return f"{path} is {reprlib.repr(saved)} there, {reprlib.repr(current)} here"


def tell_what_is_read(experiment: Any, parts: Iterable[Part] = LEARNED) -> None:
    """Print what of its data an experiment reads, before it is read: a run of somebody else's may
    name anything.

    Raises:
        UserError: something is no regular file.
    """
    if not hasattr(experiment.data, "reads"):  # made up, or a part of Python
        return
    found = [place for part in parts for place in experiment.data.reads(part)]
    source = getattr(experiment, "pretraining", None) if "training" in parts else None
    if isinstance(source, Pretraining) and source.pretraining_steps and source.unlabelled:
        found += experiment.data.reads("training", source.unlabelled)
    if isinstance(source, Pretrained):
        found.append(source.folder)
    if found:
        print(printable(f"the run reads: {', '.join(dict.fromkeys(found))}"), flush=True)


# What a run starts from


def taken_from(
    settings: Pretrained, config: TransformerConfig, num_classes: int | None = None
) -> tuple[TransformerConfig, dict[str, Any], Any, Pretrained]:
    """The config, the arrays by name and the tokenizer that a run starts from; and where from.

    Its context, dropout and function of attention are the experiment's, the rest is the folder's;
    so is the dropout rate of attention weights if the experiment has dropout but sets none there.

    Raises:
        UserError: the folder can't be read, has changed, or does not fit the experiment.
    """
    model, tokenizer, told = load_pretrained(settings.folder, num_classes=num_classes)
    if type(model.config) is not type(config):
        raise UserError(f"{settings.folder} has a {told.family} {told.kind}: that can't start it")
    if tokenizer is None:
        raise UserError(told.no_tokenizer)
    digest = hashlib.sha256()
    for path in sorted(told.folder.glob("*.safetensors")):
        digest.update(bytes.fromhex(sha256(path)))
    if settings.sha256 not in ("", digest.hexdigest()):
        raise UserError(f"the arrays in {settings.folder} have changed since the run was made")
    ours, theirs = resolve_fields(config), resolve_fields(model.config)
    for path in set_in(config):
        if path not in OURS and ours[path] != theirs.get(path):
            raise UserError(f"{path} is the pre-trained model's: leave it out")
    changed = {path: ours[path] for path in OURS & ours.keys()}
    changed["context"] = min(config.context, model.config.context)
    if config.dropout and not changed.get("attention.dropout"):
        changed["attention.dropout"] = theirs["attention.dropout"]
    arrays = stack_blocks(named_arrays(model)) if config.loop.scan else named_arrays(model)
    for name in told.new:  # each replica draws its own
        del arrays[name]
    if "positions.table" in arrays:  # those of the places that are not used are left out
        rows = changed["context"] + model.config.positions.offset
        arrays["positions.table"] = arrays["positions.table"][:rows]
    try:
        config = replace_fields(model.config, changed)
    except ValueError as error:
        raise UserError(str(error)) from error
    return config, arrays, tokenizer, dataclasses.replace(settings, sha256=digest.hexdigest())


def set_in(part, prefix: str = "") -> Iterator[str]:
    """The paths of the fields that are not what they are unless given."""
    for field in dataclasses.fields(part):
        value, path = getattr(part, field.name), prefix + field.name
        if value != field.default:
            yield path
            if dataclasses.is_dataclass(value):
                yield from set_in(value, f"{path}.")


# A run's parameters. Only what goes on training reads an optimizer too (`training.loop.restore`).


def read_parameters(
    run: RunDir, checkpoint: str, wanted: dict[str, jax.ShapeDtypeStruct]
) -> tuple[dict[str, jax.Array], int]:
    """The parameters (M, ...) of a run's replicas by name, without their optimizer; and the step.

    Args:
        checkpoint: "best", "last" or a step; or "average", the mean in float64 over the last ones.
        wanted: their shapes, types and where they are to lie.

    Raises:
        UserError: the run has no such checkpoint, or one of several is damaged.
    """
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


def checkpoint_steps(run: RunDir, checkpoints: Checkpoints, checkpoint: str) -> list[int]:
    """The step that "best", "last" or a number names; for "average" the last that are kept.

    Raises:
        UserError: the run has no such checkpoint.
    """
    if not (steps := checkpoints.steps()):
        raise UserError(f"{run.path} has no checkpoint yet")
    known = {"best": [checkpoints.best_step()], "last": steps[-1:]}
    known["average"] = checkpoints.regular_steps()[-run.experiment.training.max_to_keep :]
    known |= {str(step): [step] for step in steps}
    if checkpoint not in known:
        named = f"best, last, average or one of {', '.join(map(str, steps))}"
        raise UserError(f"there is no checkpoint {checkpoint}: choose {named}")
    return known[checkpoint]


def check_replica(replica: int, number: int) -> None:
    """Raises a `UserError` where a run of `number` models has no such replica."""
    if not 0 <= replica < number:
        raise UserError(f"there is no replica {replica}: the run has {number}, counted from 0")
