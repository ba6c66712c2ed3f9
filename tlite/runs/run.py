"""A run: an experiment with its data, tokenizer and trainer, and the folder of its results."""

import abc
import contextlib
import dataclasses
import fnmatch
import hashlib
import importlib
import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tlite.distributed as distributed
import tlite.functional as F
from tlite.config import override, to_dict
from tlite.data.reading import Split
from tlite.errors import (
    Interrupted,
    UserError,
    check_packages,
    command,
    disk_errors,
    printable,
    resume_command,
)
from tlite.experiment import BaseExperiment
from tlite.models import make_model
from tlite.models.config import describe_components, user_components
from tlite.models.low_rank import init_low_rank, merge_low_rank
from tlite.models.parameters import from_named_arrays, named_arrays
from tlite.training.checkpoints import Checkpoints
from tlite.training.config import TrainingConfig, user_functions
from tlite.training.loop import fit
from tlite.training.losses import CrossEntropy
from tlite.training.metrics import (
    MetricsFile,
    means_from_sums,
    parse_line,
    read_metrics,
    save_example_scores,
)
from tlite.training.optimizers import check_patterns, find_inits, select_trainable
from tlite.training.precision import bfloat16_hardware
from tlite.training.probe import probe_init, probe_loss, probe_training
from tlite.training.run_dir import (
    ROOT,
    RUN,
    UNREADABLE,
    RunDir,
    create_run,
    experiment_fields,
    find_runs,
    new_folder,
    newest_or_path,
    numbered_folders,
    open_run,
    read_config,
    replace_file,
    to_checked_json,
)
from tlite.training.schedules import schedule
from tlite.training.sharding import out_of_memory
from tlite.training.step import Task, TrainState
from tlite.training.trainer import Trainer
from tlite.user_code import name_of, remember_code

EVALUATION_BATCH = 64

CLASSES = {
    "GeneratorExperiment": "tlite.runs.generator:GeneratorRun",
    "ClassifierExperiment": "tlite.runs.classifier:ClassifierRun",
    "TranslatorExperiment": "tlite.runs.translator:TranslatorRun",
}
"""Run classes by the name of the experiment's class; imported when they are needed."""
_user_classes: dict[type, "type[Run]"] = {}


class Built(NamedTuple):
    """An experiment with its tokenizer and data, from one pass over the data."""

    experiment: Any
    """With the sizes and settings that its data decides."""
    tokenizer: Any
    train: Any
    """Examples or tokens of the training split."""
    validation: Any
    fingerprint: dict[str, Any]
    """Sizes and SHA-256 of the data."""
    new_arrays: tuple[str, ...] | None = None
    """Names of the arrays that a pretrained model lacks; None: there is no such model."""


class Trunk(NamedTuple):
    """Checkpoint at which the schedule wsd begins to decay; a new run continues from it."""

    run: RunDir
    step: int

    @property
    def origin(self) -> dict[str, Any]:
        return {"run": str(self.run.path.resolve()), "step": self.step}

    def copy(self, folder: Path) -> None:
        """Copy checkpoints and metrics up to the step into the folder of the new run."""
        checkpoints = self.run.checkpoints
        for step in numbered_folders(checkpoints):
            if step <= self.step:
                to = folder / checkpoints.name / str(step)
                shutil.copytree(checkpoints / str(step), to)
        with self.run.metrics.open("rb") as file:
            lines = [
                text for text in file if (line := parse_line(text)) and line["step"] <= self.step
            ]
        (folder / self.run.metrics.name).write_bytes(b"".join(lines))


def run_class(experiment: Any) -> "type[Run]":
    """Return the class of an experiment's runs, registered for its type or its nearest base."""
    for base in type(experiment).__mro__:
        if base in _user_classes:
            return _user_classes[base]
        if base.__name__ in CLASSES and base.__module__.startswith("tlite."):
            module, name = CLASSES[base.__name__].split(":")
            return getattr(importlib.import_module(module), name)
    names = ", ".join(CLASSES)
    raise UserError(
        f"a {type(experiment).__name__} can't be trained: derive it from one of {names}"
    )


def build(experiment: Any, data: Any = None) -> Built:
    """Read the data of a resolved experiment and fit tokenizer and model sizes to it.

    Args:
        data: result of `load_data` of the run's class; None: call it.

    Raises:
        UserError: the data can't be read or does not fit the experiment, a user's component does
            not do what a model needs, or `best_metric` is not a metric of this experiment.
    """
    kind = run_class(experiment)
    metric, average = experiment.training.best_metric, experiment.training.best_weights
    prefix = f"{average}_" if average else ""
    if metric.removeprefix(prefix) not in kind.metrics:
        choices = " or ".join(prefix + name for name in kind.metrics)
        raise UserError(f"{experiment.name} has no metric {metric}: --best-metric {choices}")
    if user_components(experiment.model):
        from tlite.models.custom import probe

        probe(experiment.model, make_model)
    probe_training(experiment.training)
    if kind.packages and distributed.is_process0():
        check_packages("text", kind.packages)
    built = kind.build(experiment, kind.load_data(experiment) if data is None else data)
    return with_training(built, built.experiment.training)


def with_training(built: Built, config: TrainingConfig) -> Built:
    """Return a built experiment with a training config, which may be another variant's.

    Raises:
        UserError: a pattern, a group or `init` has no effect on the model, `init` would replace
            zeros of `zero_output`, or a loss or an initializer of the user's does not do what
            training needs.
    """
    if built.new_arrays:
        config = train_new_arrays(config, built.new_arrays)
    model = built.experiment.model
    check_parts(model, config)
    built = built._replace(experiment=dataclasses.replace(built.experiment, training=config))
    if config.init == "default" and not (config.groups or config.trainable or config.low_rank):
        return built

    def draw(key):
        arrays = named_arrays(make_model(model, rng=key))
        return arrays | (init_low_rank(config.low_rank, arrays, key) if config.low_rank else {})

    try:
        shapes = jax.eval_shape(draw, jax.random.key(0))
        check_patterns(config, shapes)
    except ValueError as error:
        raise UserError(str(error)) from error
    for field, inits in find_inits(config, shapes).items():
        if built.new_arrays is not None and inits.keys().isdisjoint(built.new_arrays):
            raise UserError(
                f"{field} would change only arrays of the pretrained model: leave it out"
            )
        for index, layer in zero_outputs(model):
            blocks = "blocks" if model.loop.scan else f"blocks.{index}"
            if fnmatch.filter(inits, f"*{blocks}.*{layer}.output.kernel"):
                zeros = f"the zeros of {layer}.zero_output"
                raise UserError(f"{field} would replace {zeros}: leave out one of them")
    probe_init(config, shapes)
    return built


def check_parts(model: Any, config: TrainingConfig) -> None:
    """Raise a `UserError` for a user's loss that fails, or a setting without effect."""
    if "loss" in user_functions(config):
        probe_loss(config, getattr(model, "num_classes", None) or model.vocabulary_size)
    word_dropout = getattr(getattr(model, "embedding", None), "word_dropout", 0)
    if word_dropout and not hasattr(model, "num_classes"):
        raise UserError("--embedding.word-dropout is for classifiers: leave it out")


def zero_outputs(model: Any) -> list[tuple[int, str]]:
    """Return (index of the block, field) of each layer with `zero_output`."""
    blocks = enumerate(getattr(model, "blocks", ()))
    layers = itertools.product(blocks, ("attention", "feed_forward"))
    return [(i, n) for (i, b), n in layers if getattr(getattr(b, n), "zero_output", False)]


def train_new_arrays(config: TrainingConfig, new_arrays: Iterable[str]) -> TrainingConfig:
    """Return the training config that trains new arrays, such as a head, beside low-rank updates.

    `trainable` decides if the config has it.
    """
    if config.low_rank is None or config.trainable is not None or not new_arrays:
        return config
    return dataclasses.replace(config, trainable=" ".join(new_arrays))


class Run(abc.ABC):
    """An experiment, its data, tokenizer and trainer, and the folder of its results.

    `Run.create` and `Run.open` return an instance of the class of the experiment. To add a class of
    runs, derive it from this one or one of tlite's and set `experiment_type` to a subclass of an
    experiment's dataclass, whose instances it trains (`experiments/masked_language_model.py`).
    """

    kind: ClassVar[str]
    """Name of the class of runs: generator."""
    experiment_type: ClassVar[type]
    model_type: ClassVar[type]
    """Model class; commands also accept a Hugging Face folder with such a model."""
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    """Validation metrics that can select the best checkpoint."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages of the extra `text` that the report needs, checked before training."""
    tokens_per_example: int
    """Positions of an example, padding included, for the logged tokens per second."""
    table: str = ""
    """File that replaces the test split (`tlite evaluate --path`)."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "experiment_type" in vars(cls) and not cls.__module__.startswith("tlite."):
            _user_classes[cls.experiment_type] = cls

    def __init__(self, dir: RunDir, built: Built):
        self.dir, self.built, self.tokenizer = dir, built, built.tokenizer
        training_data = self.training_data()
        self.trainer = Trainer(self.make_task(), self.experiment.training, training_data)
        self._last_sums: tuple[int, dict] | None = None

    @property
    def experiment(self) -> Any:
        return self.dir.experiment

    @staticmethod
    def create(
        experiment: BaseExperiment,
        dir: str | Path | None = None,
        *,
        resume: Literal["never", "auto", "must"] = "never",
    ) -> "Run":
        """Create the run of an experiment in `dir`, or in a new folder runs/NAME/TIME.

        Args:
            resume: "auto": if there is a run of the same experiment in `dir`, or in runs/NAME, open
                the newest one instead; "must": raise if there is none.

        Raises:
            UserError: the experiment can't be trained, or `dir` exists or has another experiment.
        """
        dir = None if dir is None else Path(dir)
        built = build(experiment.resolve())
        if resume != "never":
            read, required = partial(saved_and_new_config, built.experiment), resume == "must"
            if path := find_same("run", experiment.name, dir, RUN, read, required=required):
                return Run.open(path)
        built = built._replace(experiment=built.experiment.resolve_precision())
        return Run.start(built, dir)

    @staticmethod
    def start(built: Built, dir: Path | None = None, trunk: Trunk | None = None) -> "Run":
        """Compile the run of a built experiment, then write its folder, runs/NAME/TIME if None.

        Args:
            trunk: checkpoint that the run continues from.
        """
        experiment, fingerprint = built.experiment, built.fingerprint

        def choose_folder() -> str:
            return str(new_folder(experiment.name, dir))

        path = Path(distributed.broadcast_from_process0(choose_folder))
        values = {"experiment": to_dict(experiment), "data": fingerprint}
        distributed.assert_equal_across_processes("run", values)
        run = run_class(experiment)(RunDir(path, experiment, fingerprint), built)
        run.trainer.compile()  # an error leaves no folder

        def write() -> str:
            new_dir = create_run(
                path,
                experiment,
                fingerprint,
                built.tokenizer,
                exist_ok=dir is None,
                origin=trunk.origin if trunk else None,
                fill=trunk.copy if trunk else None,
            )
            return str(new_dir.path)

        path = Path(distributed.broadcast_from_process0(write))
        run.dir = dataclasses.replace(run.dir, path=path)
        if trunk and distributed.is_process0():
            print(f"{trunk.run.path} is unchanged; {path} continues it from step {trunk.step:,}")
        return run

    @staticmethod
    def open(
        dir: str | Path,
        *,
        steps: int | None = None,
        new_dir: str | Path | None = None,
        trust: bool = False,
    ) -> "Run":
        """Open the run in a folder with the data that it was trained on.

        Args:
            dir: run folder, or "latest", the newest in ./runs.
            steps: new total number of steps. If the learning rate of the schedule wsd decays
                already, a new run continues from the checkpoint before the decay.
            new_dir: folder to create for such a new run; None: runs/NAME/TIME.
            trust: execute the run's copy of user code, even if this user has not trained with it.

        Raises:
            UserError: it can't be opened, its data has changed, or `steps` is not possible.
        """
        from tlite.experiment import Experiment

        run_dir = open_run(newest_or_path(dir), Experiment, trust=trust)
        experiment, trunk = with_steps(run_dir, steps)
        if new_dir is not None and trunk is None:
            raise UserError(
                f"--run {new_dir} has no effect: {dir} is resumed in its own folder (only a wsd "
                "run that decays already continues in a new one)"
            )
        experiment = experiment.with_paths(moved=True)  # the fingerprint of the data decides
        run_dir = dataclasses.replace(run_dir, experiment=experiment)
        built = rebuild(run_dir)
        if trunk is not None:
            return Run.start(built, None if new_dir is None else Path(new_dir), trunk)
        run = run_class(experiment)(run_dir, built)
        if steps is not None and distributed.is_process0():
            path = run_dir.path / RUN
            with MetricsFile(run_dir.metrics):  # locked: no other process trains it meanwhile
                replace_file(path, read_config(path) | {"experiment": to_checked_json(experiment)})
        return run

    # Methods of each class of runs

    @classmethod
    @abc.abstractmethod
    def load_data(cls, experiment: Any) -> Any:
        """Return the raw data: a text, a corpus, or the examples of both splits."""

    @classmethod
    @abc.abstractmethod
    def fingerprint(cls, experiment: Any, data: Any) -> dict[str, Any]:
        """Return sizes and SHA-256 of what training reads, as JSON.

        Args:
            data: result of `load_data`.
        """

    @classmethod
    @abc.abstractmethod
    def build(cls, experiment: Any, data: Any) -> Built:
        """Fit tokenizer and sizes of a new run to the result of `load_data`."""

    @classmethod
    @abc.abstractmethod
    def load_tokenizer(cls, run_dir: RunDir) -> Any:
        """Return the tokenizer that was saved with a run."""

    @classmethod
    def split(cls, experiment: Any, tokenizer: Any, data: Any) -> tuple[Any, Any]:
        """Return the training and the validation split of the raw data."""
        return data

    @abc.abstractmethod
    def make_task(self) -> Task:
        """Return the task: initial model, batches, loss and evaluation."""

    @abc.abstractmethod
    def training_data(self) -> Any:
        """Return the trainer's data: arrays of the training split, or a function that loads it."""

    @abc.abstractmethod
    def validation(self) -> Any:
        """Return batches (N, B, ...) that hold the validation split once."""

    @abc.abstractmethod
    def print_report(self, means: dict[str, np.ndarray], parameters: dict, step: int) -> None:
        """Print and draw the results of a checkpoint with these validation means (M,)."""

    @abc.abstractmethod
    def evaluate(
        self,
        split: Split = "validation",
        checkpoint: str = "best",
        replica: int | Literal["all"] = 0,
    ) -> None:
        """Print the scores of the models on a split; with replica "all" also their ensemble's."""

    def init_params(self) -> dict[str, Any]:
        """Return the arrays by name that all seeds start from; the others are random."""
        if (init_from := getattr(self.experiment, "init_from", None)) is None:
            return {}
        from tlite.runs.init_from import load_init

        model = self.experiment.model
        return load_init(init_from, model, getattr(model, "num_classes", None)).arrays

    def extra_metrics(self, parameters: dict, means: dict) -> dict[str, np.ndarray]:
        """Return validation metrics in addition to the task's, (M,) each."""
        return {}

    def sums_by_example(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """Return the sums of each validation example by seed (M, E)."""
        return self.trainer.evaluate(parameters, batches, by_example=True)

    # Train and report

    def train(self, *, profile: int = 0, report: bool = True) -> "Run":
        """Train from the last checkpoint to the last step, and report.

        Args:
            profile: number of steps to profile.
            report: print the results of the best checkpoint at the end.

        Raises:
            Interrupted: a signal stopped it; everything is saved.
        """
        self.trainer.check_fits()
        self.print_summary()
        steps = self.experiment.training.steps
        if saved := Checkpoints(self.dir.checkpoints).steps():
            print(f"last checkpoint: step {saved[-1]:,} of {steps:,}")
        self.train_until(steps, profile=profile)
        if report:
            self.report()
        return self

    def train_until(self, step: int, *, profile: int = 0) -> None:
        """Train from the last checkpoint to a step; save the state and its validation scores."""
        remember_code(to_dict(self.experiment))
        sys.stdout.flush()  # JAX may abort this process when another one is lost
        batches = self.validation()
        try:
            with contextlib.closing(self.trainer.loader):
                state = fit(
                    self.trainer,
                    self.dir.path,
                    batches,
                    self.tokens_per_example,
                    self.init_state,
                    self.extra_metrics,
                    profile,
                    step,
                )
        except Interrupted as stop:
            stop.args = (f"{stop}; to resume: {resume_command(self.dir.metrics)}",)
            raise
        reached = Checkpoints(self.dir.checkpoints).steps()[-1]  # patience may have ended it
        sums = self.sums_by_example(state.parameters, batches)
        self._last_sums = reached, sums.copy()
        for average in self.experiment.training.averages:
            scores = self.sums_by_example(self.parameters(average)[0], batches)
            sums |= {f"{average}_{n}": a for n, a in scores.items() if n not in ("count", "bytes")}
        if distributed.is_process0():  # for `tlite compare`
            save_example_scores(self.dir.path, reached, sums)

    def report(self) -> None:
        """Print and draw the results of the best checkpoint on the validation split."""
        parameters, step = self.parameters()
        average = self.experiment.training.best_weights
        print(f"best checkpoint: step {step:,}" + f", {average}" * bool(average))
        if self._last_sums and self._last_sums[0] == step and not average:
            sums = self._last_sums[1]
        else:
            sums = self.trainer.evaluate(parameters, self.validation())
        self.print_report(means_from_sums(sums), parameters, step)

    def init_state(self) -> TrainState:
        """Return the state before the first step."""
        return self.trainer.init(self.init_params())

    def print_summary(self) -> None:
        """Print the sizes of model and data, the settings of training, folder and warnings."""
        trainer, config, model = self.trainer, self.experiment.training, self.experiment.model
        sizes = {"parameters": trainer.num_parameters, "arrays": len(trainer.shapes)}
        trained = sum(a.size for a in select_trainable(config, trainer.shapes).values())
        sizes |= {"trained": trained} if trained < trainer.num_parameters else {}
        sizes |= {"vocabulary": len(self.tokenizer)}
        sizes |= {
            n.replace(" ", "_"): v for n, v in self.dir.fingerprint.items() if isinstance(v, int)
        }
        print(" ".join(f"{name}={value:,}" for name, value in sizes.items()))
        hardware = bfloat16_hardware() if config.precision == "mixed" else ""
        settings = {
            "seeds": config.seeds,
            "steps": config.steps,
            "precision": config.precision + (f" (bfloat16 by {hardware})" if hardware else ""),
            **dict(describe_components(model)),
            **{name: name_of(f) for name, f in user_functions(config).items()},
            "devices": f"{trainer.mesh.size}x{jax.default_backend()}",
            "dir": self.dir.path,
        }
        print(printable(" ".join(f"{name}={value}" for name, value in settings.items())))
        if config.loss != CrossEntropy():
            loss = config.loss if dataclasses.is_dataclass(config.loss) else name_of(config.loss)
            print(f"the training loss is {loss}; the validation loss is the cross-entropy")
        warnings, stage = [*trainer.mesh_warnings], getattr(self.experiment, "pretraining", None)
        init_from = getattr(self.experiment, "init_from", None)
        pretrained = init_from or (stage and stage.pretraining_steps)
        if config.seeds > 1 and pretrained:
            warnings.append(
                f"all {config.seeds} seeds start from the same pretrained model: intervals over "
                "seeds leave out its variance"
            )
        for warning in warnings if distributed.is_process0() else ():
            print(f"warning: {warning}", file=sys.stderr)

    # Parameters and models

    def parameters(self, checkpoint: str | int = "best") -> tuple[dict[str, jax.Array], int]:
        """Return the parameters (M, ...) of a checkpoint on the trainer's devices, and its step."""
        return read_parameters(self.dir, checkpoint, self.trainer.abstract_state.parameters)

    def check_replica(self, replica: int | str) -> None:
        """Raise a `UserError` if `evaluate` has no scores of this replica alone."""
        if replica not in (0, "all"):
            raise UserError(f"--replica must be 0 or all for {self.dir.path}, not {replica}")

    def ensemble_name(self, replica: int | str) -> str:
        """Return a name for the mean of all replicas if `replica` is "all" of several, else ""."""
        number = self.experiment.training.seeds
        return f"the ensemble of all {number} replicas" if replica == "all" and number > 1 else ""

    def ensemble(self, parameters: dict) -> Any:
        """Return all replicas as one `Ensemble`, whose arrays this process holds in full."""
        from tlite.models.ensemble import Ensemble

        low_rank = self.experiment.training.low_rank
        arrays = finite_models(merge_low_rank(low_rank, self.trainer.on_host(parameters)))
        return Ensemble(jax.tree.map(jnp.asarray, from_named_arrays(self.trainer.model)(arrays)))

    def evaluate_ensemble(self, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
        """Return the means (1,) over all batches of the mean prediction of all replicas.

        The examples of a batch are divided over the devices; replicas are computed in turn.
        """

        def evaluate(ensemble, batches):
            def sums_of_batch(batch):
                return jax.tree.map(lambda a: a.sum(0), self.trainer.task.evaluate(ensemble, batch))

            return jax.lax.map(sums_of_batch, batches)

        examples, devices = jax.tree.leaves(batches)[0].shape[1], jax.local_devices()
        mesh = Mesh(np.array(devices[: math.gcd(examples, len(devices))]), ("data",))
        replicated = NamedSharding(mesh, PartitionSpec())
        by_example = NamedSharding(mesh, PartitionSpec(None, "data"))
        with out_of_memory("a batch of the evaluation"):
            ensemble = jax.device_put(self.ensemble(parameters), replicated)
            score = jax.jit(F.float32_products(evaluate))
            sums = jax.device_get(score(ensemble, jax.device_put(batches, by_example)))
        return means_from_sums({name: values[None] for name, values in sums.items()})

    # Files

    def print_next_steps(self) -> None:
        """Print the run's folder, and the command that scores its test split if there is one."""
        path = self.dir.path
        print(f"saved in {path}")
        if getattr(self.experiment.data, "test", True):
            print(f"final test, after all choices: {command('evaluate', path)} --split test")

    def save_sample(self, step: int, text: str) -> None:
        """Write the text generated at a step to the folder `samples`."""
        if distributed.is_process0():
            with disk_errors(self.dir.samples):
                self.dir.samples.mkdir(exist_ok=True)
                path = self.dir.samples / f"step-{step}.txt"
                path.write_text(text, encoding="utf-8")

    def save_curves(self, *names: str) -> None:
        """Draw these metrics of training and validation by step."""
        from tlite import pictures  # matplotlib is slow to import

        lines = read_metrics(self.dir.metrics, max_training_lines=1000)
        self.save_plots({name: partial(pictures.plot_curves, lines, name) for name in names})

    def save_plots(self, plots: dict) -> None:
        """Draw pictures (name -> function that returns Axes) into the folder `plots`."""
        if not distributed.is_process0():
            return
        from tlite.pictures import isolate_figures  # matplotlib is slow to import

        with disk_errors(self.dir.plots):
            self.dir.plots.mkdir(exist_ok=True)
            for name, plot in plots.items():
                with isolate_figures():
                    plot().figure.savefig(self.dir.plots / f"{name}.png", dpi=120)


class ExamplesRun(Run):
    """A run on examples, which are texts with labels or pairs of sentences."""

    unit: ClassVar[str]
    """Plural name of the examples: texts."""

    @classmethod
    @abc.abstractmethod
    def read(cls, experiment: Any, split: Split) -> Iterable:
        """Return the examples of a split."""

    @staticmethod
    @abc.abstractmethod
    def hashed_text(example: Any) -> str:
        """Return the text of an example that is hashed for the fingerprint."""

    def examples(self, split: Split) -> Iterable:
        """Return the examples of a split; the files of the test split are printed first."""
        if split != "test":
            return self.built.train if split == "training" else self.built.validation
        print_inputs(self.experiment, [split])
        return self.read(self.experiment, split)

    @abc.abstractmethod
    def batches(self, examples: Iterable) -> Any:
        """Return batches (N, B, ...) that hold each example once."""

    @classmethod
    def load_data(cls, experiment: Any) -> tuple[Iterable, Iterable]:
        return cls.read(experiment, "training"), cls.read(experiment, "validation")

    @classmethod
    def fingerprint(cls, experiment: Any, data: tuple[Iterable, Iterable]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for split, examples in zip(("training", "validation"), data, strict=True):
            digest, number = hashlib.sha256(), 0
            for number, example in enumerate(examples, 1):  # noqa: B007
                digest.update(cls.hashed_text(example).encode())
            values[f"{split} {cls.unit}"] = number
            values[f"SHA-256 of the {split} part"] = digest.hexdigest()
        return values

    def validation(self) -> Any:
        return self.batches(self.built.validation)


# Resume and extend


def find_same(
    what: str,
    name: str,
    dir: Path | None,
    config: str,
    read: Callable[[Path], tuple[dict, dict]],
    *,
    required: bool,
) -> Path | None:
    """Return `dir`, or the newest folder in runs/NAME, whose config equals the new one.

    Args:
        what: "run", "study" or "tuning", of the experiment called `name`.
        config: name of the config file.
        read: folder -> content of its config, and of the new config.
        required: raise if there is no such folder, instead of returning None.

    Raises:
        UserError: `dir` has another experiment.
    """

    def find() -> str:
        runs = [run.folder for run in find_runs(ROOT / name) if run.kind != "damaged"]
        for path in [dir] if dir else runs:
            with contextlib.suppress(*UNREADABLE):
                if not (path / config).is_file():
                    continue
                saved, new = read(path) if dir else read_or_warn(read, path)
                if saved == new:
                    return str(path)
                if dir:
                    difference = distributed.first_difference(saved, new)
                    raise UserError(f"{path} has another experiment: {difference}")
        return ""

    if path := distributed.broadcast_from_process0(find):
        return Path(path)
    if required:
        raise UserError(f"there is no {what} of {name} in {dir or ROOT} to resume")
    return None


def read_or_warn(read: Callable[[Path], tuple[dict, dict]], path: Path) -> tuple[dict | None, dict]:
    """Return read(path); after a `UserError`, which becomes a warning, two different values."""
    try:
        return read(path)
    except UserError as error:
        print(f"warning: {path} is not resumed: {error}", file=sys.stderr)
        return None, {}


def saved_and_new_config(experiment: Any, folder: Path) -> tuple[dict, dict]:
    """Return the experiment of a run in a folder, and a new one, as JSON.

    A new config with precision "auto" gets the saved run's precision. Attention "auto" is resolved
    for this machine: with and without the fused kernel of a GPU the configs differ.
    """
    saved, precision = read_config(folder / RUN)["experiment"], experiment.training.precision
    if precision == "auto":
        precision = experiment_fields(saved)["training"]["precision"]
    return saved, to_checked_json(experiment.resolve_precision(precision))


def rebuild(run_dir: RunDir) -> Built:
    """Return the data and the tokenizer of a saved run.

    Raises:
        UserError: the data has changed, or processes disagree on the run.
    """
    experiment = run_dir.experiment
    kind = run_class(experiment)
    print_inputs(experiment)  # they may have been moved since
    data = kind.load_data(experiment)
    fingerprint = kind.fingerprint(experiment, data)
    check_same_data(run_dir.path, run_dir.fingerprint, fingerprint)
    values = {"experiment": to_dict(experiment), "data": fingerprint}
    values["folder"] = str(run_dir.path.resolve())
    distributed.assert_equal_across_processes("run", values)
    tokenizer = kind.load_tokenizer(run_dir)
    splits = kind.split(experiment, tokenizer, data)
    return Built(experiment, tokenizer, *splits, fingerprint)


def with_steps(run_dir: RunDir, steps: int | None) -> tuple[Any, Trunk | None]:
    """Return a run's experiment with other steps, and the trunk if a new run must continue it."""
    if steps is None:
        return run_dir.experiment, None
    saved = Checkpoints(run_dir.checkpoints).steps()
    done = max(saved, default=0)
    try:
        experiment = override(run_dir.experiment, {"training.steps": steps})
    except ValueError as error:
        raise UserError("--" + str(error).removeprefix("training: ")) from error
    configs = run_dir.experiment.training, experiment.training
    before, after = (np.asarray(jax.vmap(partial(schedule, c))(jnp.arange(done))) for c in configs)
    is_same = np.array_equal(before, after)
    if steps >= done and is_same:
        return experiment, None
    if (trunk := configs[0].trunk) and trunk in saved:
        if trunk > (start := configs[1].decay_start):
            raise UserError(
                f"--steps {steps} decays from step {start:,}, before the trunk of {run_dir.path}, "
                f"step {trunk:,}"
            )
        return experiment, Trunk(run_dir, trunk)
    if steps < done:
        raise UserError(f"--steps must be at least {done:,}: {run_dir.path} is at step {done:,}")
    if not is_same:
        raise UserError(
            f"cannot extend a run with the schedule {name_of(configs[0].schedule)} from "
            f"{configs[0].steps:,} to {steps:,} --steps: its learning rates would have differed "
            f"from step {np.flatnonzero(before != after)[0]:,} on; train a new run, with "
            "the schedule constant, inverse_sqrt or wsd if you want to extend it later"
        )
    return experiment, None


def check_same_data(path: Path, saved: dict, fingerprint: dict) -> None:
    """Raise a `UserError` that names the first difference of two fingerprints of data.

    An entry that an earlier version of tlite did not save is not compared.
    """
    fingerprint = json.loads(json.dumps(fingerprint))
    for name, value in saved.items():
        if value != fingerprint.get(name):
            raise UserError(
                f"the inputs of {path} have changed: {name} was {value} when it was created and "
                f"is {fingerprint.get(name)}"
            )


# Checkpoints


def read_parameters(
    run_dir: RunDir, checkpoint: str | int, abstract: dict[str, jax.ShapeDtypeStruct]
) -> tuple[dict[str, jax.Array], int]:
    """Return the parameters (M, ...) of a run by name, without the optimizer, and their step.

    Args:
        checkpoint: "last" or a step: the weights. "ema": the moving average at the last step;
            "average": the mean of the last scheduled checkpoints (`average_last`, or else
            `max_to_keep` of them). "best": what `best_metric` validates, the weights or one of
            these averages, at its best step.
        abstract: shapes, types and shardings by name.
    """
    config = run_dir.experiment.training
    with Checkpoints(run_dir.checkpoints, config) as checkpoints:
        step, average = select_checkpoint(run_dir, checkpoints, checkpoint)
        if average == "average":
            saved = checkpoints.steps()
            steps = [s for s in config.average_steps(step) if s in saved]
            return checkpoints.load_mean(abstract, steps, config.low_rank), step
        trees = {"parameters": abstract}
        if average:
            shapes = {n: jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for n, a in abstract.items()}
            trees["ema"] = {name: abstract[name] for name in select_trainable(config, shapes)}
        step, trees = checkpoints.load(trees, step)
        return trees["parameters"] | trees.get("ema", {}), step


def select_checkpoint(
    run_dir: RunDir, checkpoints: Checkpoints, checkpoint: str | int
) -> tuple[int, str]:
    """Return the step of a checkpoint, and the name of its average: "" for the weights."""
    config = run_dir.experiment.training
    if not (steps := checkpoints.steps()):
        raise UserError(f"{run_dir.path} has no checkpoint yet")
    choices = {"best": (checkpoints.best_step(), config.best_weights), "last": (steps[-1], "")}
    choices |= {} if config.ema is None else {"ema": (steps[-1], "ema")}
    choices["average"] = checkpoints.eval_steps()[-1], "average"
    names = f"{', '.join(choices)} or one of {', '.join(map(str, steps))}"
    choices |= {str(step): (step, "") for step in steps}
    if str(checkpoint) not in choices:
        raise UserError(f"there is no checkpoint {checkpoint}: choose {names}")
    return choices[str(checkpoint)]


def finite_models(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays (M, ...) without models that have diverged; a warning says how many."""
    axes = [(np.asarray(a), tuple(range(1, np.ndim(a)))) for a in arrays.values()]
    is_finite = np.all([np.isfinite(a).all(axis) for a, axis in axes], axis=0)
    if is_finite.all() or not is_finite.any():
        return arrays
    if distributed.is_process0():
        number = f"{np.count_nonzero(~is_finite)} of {len(is_finite)}"
        print(f"warning: the ensemble leaves out diverged models: {number}", file=sys.stderr)
    return {name: a[is_finite] for name, a in arrays.items()}


# Data


def with_sizes(experiment: Any, sizes: dict[str, int], source: str) -> Any:
    """Return the experiment with model sizes, by dotted field of the model, that `source` decides.

    An experiment that sets another size is a `UserError`.
    """
    for path, size in sizes.items():
        if (current := attrgetter(path)(experiment.model)) not in (0, size):
            raise UserError(f"{path} is {current}, but the {source} has {size}: leave it out")
    return override(experiment, {f"model.{path}": size for path, size in sizes.items()})


def check_examples(examples: Any, example_type: type) -> Any:
    """Return the examples of a data class.

    Raises:
        UserError: there are none, one is of another type, or they can be read only once.
    """
    if isinstance(examples, Iterator):
        raise UserError("the data must return a list of examples, not a generator")
    if isinstance(examples, list) and not examples:
        raise UserError(f"a split of the data is empty: no tlite.data.{example_type.__name__}")
    for example in examples if isinstance(examples, list) else []:
        if not isinstance(example, example_type):
            expected, actual = example_type.__name__, type(example).__name__
            raise UserError(f"the data must be of tlite.data.{expected}, not {actual}")
    return examples


def print_inputs(experiment: Any, splits: Iterable[Split] = ("training", "validation")) -> None:
    """Print the files that an experiment reads; raise a `UserError` if one isn't a regular file."""
    if not hasattr(experiment.data, "input_paths"):  # synthetic, or from the standard library
        return
    paths = [path for split in splits for path in experiment.data.input_paths(split)]
    if "training" in splits:
        paths += experiment.further_inputs()
    if paths:
        print(printable(f"input files: {', '.join(dict.fromkeys(paths))}"), flush=True)
