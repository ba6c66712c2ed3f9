"""Commands of `tlite`: one dataclass of options per command, and `execute`, which runs it."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from tyro.conf import Positional, UseAppendAction, arg

import tlite.distributed as distributed
from tlite.cli import HELP, parse, parse_known
from tlite.distributed import devices
from tlite.errors import UserError, printable, show, show_columns
from tlite.runs.experiment_files import (
    describe_experiments,
    find_experiment,
    find_experiments,
    load_variants,
)
from tlite.training.run_dir import (
    STUDY,
    RunDir,
    check_shared,
    find_run,
    find_runs,
    newest_or_path,
)
from tlite.user_code import allow_code

MAX_LISTED = 5  # unknown words
Texts = Annotated[
    Positional[tuple[str, ...]],
    arg(metavar="[TEXT ...]", help_behavior_hint="(default: standard input)"),
]

NAME_VALUES = arg(metavar="NAME VALUE [VALUE ...]")
NAME_RANGE = arg(metavar="NAME LOW..HIGH | NAME VALUE [VALUE ...]")


def check_range(options: Any, **limits: tuple[float | int, float | int]) -> None:
    """Raise a `UserError` for an option that is out of its limits."""
    for name, (low, high) in limits.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            option = name.replace("_", "-")
            raise UserError(f"--{option} must be between {low:,} and {high:,}, not {value:,}")


def warn(text: str) -> None:
    print(printable(f"warning: {text}"), file=sys.stderr)


# Options of several commands


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    run: Annotated[Positional[str], arg(metavar="RUN")]
    """Run folder, or a folder of runs (its newest); latest, the newest in ./runs; or a Hugging Face
    folder or hub name."""
    trust: bool = False
    """Execute the user code saved in the run's folder, even if you have not trained with it."""
    checkpoint: str = "best"
    """best, last, average (mean of the last ones kept), ema (if the run has one), or a step."""
    replica: int = 0
    """Index of the model, if several seeds were trained: 0 is that of the first seed."""

    def open_model(self, experiment_type: type) -> tuple[Any, Any, Any]:
        """Return model and tokenizer, and the `RunDir` or the description of a Hugging Face folder.

        In a folder of runs it is the newest one of an experiment of this type, not of a subclass.
        """
        from tlite.runs.models import open_model

        folder = find_run(self.run, experiment_type.__name__.removesuffix("Experiment").lower())
        return open_model(folder, experiment_type, self.checkpoint, self.replica)


@dataclass(frozen=True, kw_only=True)
class EnsembleOptions(RunOptions):
    replica: int | Literal["all"] = 0
    """Index of the model, if several seeds were trained: 0 is that of the first seed; all: their
    ensemble, the mean of their probabilities."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Search of a translator; None keeps the experiment's setting."""

    beam: int | None = None
    """Translator: number of beams, 1 for greedy search; None: the experiment's."""
    length_penalty: float | None = None
    """Translator: above 0 favours longer translations; None: the experiment's."""
    truncate: bool = False
    """Translator: cut sentences that are longer than the model's context."""


@dataclass(frozen=True)
class DistributedOptions:
    coordinator: str | None = None
    """HOST:PORT where process 0 listens; the same for all processes."""
    processes: int | None = None
    """Number of processes."""
    process: int | None = None
    """Index of this process, from 0."""
    distributed: Literal["auto", "off"] = "auto"
    """auto: join the processes of a Slurm step, Open MPI or a TPU pod; off: train in this process
    alone, unless the three options above are set."""
    heartbeat: int = 100
    """Seconds without a sign of life after which a process counts as lost."""
    deterministic: bool = False
    """On GPUs use only operations that repeat bit for bit, as on CPUs; slower."""


@dataclass(frozen=True)
class CreateOptions(DistributedOptions):
    run: Path | None = None
    """Folder to create; None: runs/NAME/TIME."""
    resume: Literal["never", "auto", "must"] = "never"
    """auto: resume the run, study or tuning of the same settings in the folder --run, or the newest
    such one in runs/NAME; create one if there is none. The same command then survives a restart.
    must: raise an error if there is none."""


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(DistributedOptions):
    resume: Annotated[str, arg(metavar="FOLDER")]
    """Folder of the run, study or tuning; or latest, the newest in ./runs."""
    trust: bool = False
    """Execute the user code saved in this folder, even if you have not trained with it."""

    def find_folder(self, command: str, **settings: Any) -> Path:
        """Return the folder to resume; for `latest` the newest by `find_run` with `settings`."""
        if self.resume in ("auto", "must") and not os.path.exists(self.resume):
            words = f"tlite {command} EXPERIMENT --resume {self.resume}"
            raise UserError(f"name an experiment: {words}")
        check_shared(folder := newest_or_path(self.resume, **settings))
        return folder


# Train, tune, plan and launch: the experiment's fields are options, too


@dataclass(frozen=True)
class Train(CreateOptions):
    """Train an experiment, by its name below or from a Python file.

    Its fields are options, too: `tlite train EXPERIMENT --help` lists them, and
    `tlite train --resume RUN --help` lists the options for resuming.
    """

    vary: Annotated[tuple[tuple[str, ...], ...], UseAppendAction, NAME_VALUES] = ()
    """Train a study: a variant for each value of an option, as in --vary norm layer rms. With
    several --vary all combinations are trained. The first variant is the one that the others are
    compared with."""
    only: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Train only the variant of this name, such as "pre_norm rotary"."""
    tune_each: Annotated[tuple[tuple[str, ...], ...], UseAppendAction, NAME_RANGE] = ()
    """Before training, tune an option for each variant by itself, as tlite tune does, with the same
    number of trials: --tune-each learning-rate 1e-4..1e-1."""
    trials: int | None = None
    """Number of trials of --tune-each for each variant; None: 8."""
    tuning_seeds: int | None = None
    """Number of seeds of each trial of --tune-each: the experiment's --seed + 10000, + 10001, ...;
    None: 3."""
    profile: int = 0
    """Number of steps to profile, into the run's folder profile/, for XProf or TensorBoard."""

    def execute(self, name: str, words: list[str], experiment: Any, variants: dict) -> None:
        from tlite.cli.overrides import read_experiments, read_search_space
        from tlite.runs.run import Run

        check_range(self, profile=(0, 2**31 - 1))
        read = partial(read_experiments, experiment, variants, words, self.vary, self.only)
        experiments = distributed.call_in_all_processes(read)
        if not self.tune_each and (self.trials, self.tuning_seeds) != (None, None):
            raise UserError("--trials and --tuning-seeds need --tune-each NAME LOW..HIGH")
        first = next(iter(experiments.values()))
        if len(experiments) == 1:
            if self.tune_each:
                tune = "use tlite tune for a single experiment"
                raise UserError(f"--tune-each is for a study: {tune}")
            Run.create(first, self.run, resume=self.resume).train(profile=self.profile)
            return
        if self.profile:
            raise UserError("--profile is for one run: name one of the variants, --only NAME")
        from tlite.runs import api  # imports what compares the variants

        read_space = partial(read_search_space, first, self.tune_each, "--tune-each", self.vary)
        api.train(
            experiments,
            dir=self.run,
            resume=self.resume,
            tune=distributed.call_in_all_processes(read_space),
            trials=8 if self.trials is None else self.trials,
            tuning_seeds=3 if self.tuning_seeds is None else self.tuning_seeds,
        )


@dataclass(frozen=True, kw_only=True)
class Resume(ResumeOptions):
    """Resume a run or a study from its last checkpoint."""

    steps: int | None = None
    """New total number of steps. cosine and linear schedules depend on the total, so only runs with
    other schedules can be extended. A wsd run whose learning rate decays already is not changed: a
    new run continues from its checkpoint before the decay."""
    run: Path | None = None
    """Folder of the new run that --steps creates from a wsd run; None: runs/NAME/TIME."""
    retry: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Failed variant of a study to train again."""
    profile: int = 0
    """Number of steps to profile, into the run's folder profile/, for XProf or TensorBoard."""

    def execute(self) -> None:
        check_range(self, profile=(0, 2**31 - 1))
        folder = self.find_folder("train", studies=True)
        if not (folder / STUDY).is_file():
            if self.retry:
                raise UserError("--retry is for a study")
            from tlite.runs.run import Run

            run = Run.open(folder, steps=self.steps, new_dir=self.run)
            run.train(profile=self.profile)
        elif self.steps is not None or self.profile or self.run is not None:
            raise UserError("--steps, --run and --profile are for a run: name one in the study")
        else:
            from tlite.runs.study import resume_study

            resume_study(folder, self.retry)


@dataclass(frozen=True)
class Tune(CreateOptions):
    """Try values of an experiment's options by successive halving, and print the best.

    All values are trained for part of the steps, then the better half of them for more, and so on.
    The best has the lowest validation loss, whatever best_metric is. A value is dropped only if the
    95 % interval of its difference from the best one excludes 0. The experiment's fields are
    options, too: `tlite train EXPERIMENT --help` lists them.
    """

    vary: Annotated[tuple[tuple[str, ...], ...], UseAppendAction, NAME_RANGE] = ()
    """Option and the values to try: a logarithmic range, as in --vary learning-rate 1e-4..1e-1, or
    words, as in --vary norm layer rms. Several --vary: combinations of their values are tried."""
    trials: int = 8
    """Number of points to try. One range: evenly spaced in the logarithm. Words only: all
    combinations, if there are at most this many. Otherwise: Sobol points."""
    tuning_seeds: int = 3
    """Number of seeds of each trial: the experiment's --seed + 10000, + 10001, ..."""

    def execute(self, name: str, words: list[str], experiment: Any, variants: dict) -> None:
        from tlite.cli.overrides import read_experiments, read_search_space
        from tlite.runs.tune import tune

        read = partial(read_experiments, experiment, {}, words)
        (experiment,) = distributed.call_in_all_processes(read).values()
        read = partial(read_search_space, experiment, self.vary)
        tune(
            experiment,
            distributed.call_in_all_processes(read),
            trials=self.trials,
            seeds=self.tuning_seeds,
            dir=self.run,
            resume=self.resume,
            train_command=("train", name, *words),
        )


@dataclass(frozen=True, kw_only=True)
class ResumeTuning(ResumeOptions):
    """Resume a tuning, or print the result of a finished one."""

    def execute(self) -> None:
        from tlite.runs.tune import resume_tuning

        resume_tuning(self.find_folder("tune", kind="tuning"))


@dataclass(frozen=True)
class Plan:
    """Compute memory and time of a training step on any devices; nothing is run.

    The experiment is a generator, or a classifier with --init-from. No data is read: without a
    vocabulary size in the experiment set --vocabulary-size.
    """

    devices: int = 0
    """Number of devices; 0: all of the slice --tpu, or 1 without it."""
    tpu: str | None = None
    """Compile for a TPU slice such as v5e:16x16 (needs the extra tpu); None: for CPU devices."""
    hardware: str | None = None
    """v4, v5e, v5p, v6e, a100, h100 or h200: print a step's time on it; None: that of --tpu."""
    utilisation: float = 0.4
    """Expected fraction of the hardware's peak FLOP/s (MFU)."""
    parameters: bool = False
    """List each parameter with its shape, dtype in matrix products, optimizer and weight decay."""

    def execute(self, name: str, words: list[str], experiment: Any, variants: dict) -> None:
        import jax

        from tlite.cli.overrides import read_experiments
        from tlite.planning.plan import count_devices, plan

        check_range(self, devices=(0, 2**16))
        (experiment,) = read_experiments(experiment, {}, words).values()
        if not self.tpu:
            number = count_devices(self.devices)
            jax.config.update("jax_num_cpu_devices", number)  # before JAX starts
            jax.config.update("jax_platforms", "cpu")
        plan(experiment, **vars(self))


@dataclass(frozen=True)
class Launch:
    """Train as several processes on this machine.

    A train command follows the options: `tlite launch -n 2 train EXPERIMENT [OPTIONS]`.
    """

    processes: Annotated[int, arg(aliases=("-n",))] = 2
    """Number of processes."""
    devices_each: int | None = None
    """Devices of each process; None: its share of the CPU's cores, or one GPU."""


# Prepare


@dataclass(frozen=True)
class Prepare:
    """Tokenize texts of any size into the files of a corpus, on which an experiment trains.

    The same command resumes after an interruption.
    """

    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """Text file, JSON Lines (both also .gz), Parquet, a folder of these, a folder written by
    `Dataset.save_to_disk`, or a dataset on the Hugging Face hub."""
    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Folder to create."""
    tokenizer: str = "gpt2"
    """bytes, characters, bpe (learned from 50 megabytes of the training split; bpe:4000 sets the
    vocabulary size); or a tokenizer.json, a folder with one, or a name on the hub."""
    field: str = "text"
    """Column with the text."""
    split: str = "train"
    """Split of a dataset."""
    subset: str = ""
    """Configuration of a dataset on the hub, such as sample-10BT."""
    validation_fraction: float = 0.005
    """Fraction for validation: the end of each text file; in other formats, documents chosen by
    their hash."""

    def execute(self) -> None:
        from tlite.data.documents import Source
        from tlite.data.prepare import prepare
        from tlite.experiment import BPE, TokenizerFile, tokenizer_named
        from tlite.pretrained.tokenizers import open_tokenizer
        from tlite.runs.generator import make_tokenizer

        try:
            settings = tokenizer_named(self.tokenizer)
        except ValueError as error:
            raise UserError(f"--tokenizer {self.tokenizer}: {error}") from error
        name = f"bpe:{settings.num_subwords}" if isinstance(settings, BPE) else self.tokenizer
        if isinstance(settings, TokenizerFile):
            open_tokenizer(settings.path)  # raises before anything is read
        fraction = self.validation_fraction
        source = Source(self.source, self.field, self.split, self.subset, fraction)
        manifest = prepare(
            source, self.folder, name, lambda texts: make_tokenizer(settings, texts)[1]
        )
        for split, part in manifest.splits.items():
            print(
                f"{split}: {part.tokens:,} tokens, {part.bytes:,} bytes of text, "
                f"{part.documents:,} documents"
            )
        size, dtype = manifest.vocabulary_size, manifest.dtype
        print(f"{self.folder}: a vocabulary of {size:,} tokens, stored as {dtype}")


# Models


@dataclass(frozen=True, kw_only=True)
class Evaluate(EnsembleOptions, SearchOptions):
    """Print losses and scores of a run's models on a split of its data, or on a text or table."""

    split: Literal["validation", "training", "test"] = "validation"
    """Split of the data. Evaluate the test split once, at the end."""
    path: Path | None = None
    """File to evaluate on instead: a text for a generator or Hugging Face model, else a table with
    the columns of the run's data."""
    replica: int | Literal["all"] = 0
    """Index of the model that scores a text in --path, or whose scores by class a classifier
    prints; other scores are printed for every seed. all: also score the ensemble of the seeds, the
    mean of their probabilities."""

    def execute(self) -> None:
        from tlite.runs import api

        folder = find_run(self.run)
        search = {field.name: getattr(self, field.name) for field in fields(SearchOptions)}
        search = {name: v for name, v in search.items() if v is not None and v is not False}
        settings = {"checkpoint": self.checkpoint, "replica": self.replica}
        api.evaluate(folder, path=self.path, split=self.split, **settings, **search)


@dataclass(frozen=True, kw_only=True)
class Generate(EnsembleOptions):
    """Generate text with the model of a run."""

    prompt: str | None = None
    """Start of the text; None: the experiment's prompt."""
    tokens: int = 500
    """Largest number of new tokens (characters, for most runs)."""
    temperature: float = 1.0
    """Sampling temperature: below 1 sharper, above 1 flatter; 0: always the most probable token."""
    top_k: int | None = None
    """Sample from the k most probable tokens only."""
    top_p: float | None = None
    """Sample from the fewest most probable tokens whose probabilities sum to at least p."""
    min_p: float | None = None
    """Sample from the tokens at least p times as probable as the most probable."""
    greedy: bool = False
    """Always the most probable token, as with --temperature 0."""
    seed: int = 0
    """Seed of the first sample; sample i has seed + i."""
    samples: int = 1
    """Number of texts."""
    unknown: bool = False
    """Replace characters that the model does not know by its unknown symbol; without this option
    they are an error."""

    def __post_init__(self):
        # Beyond these limits float32 and int32 underflow, overflow or wrap around.
        check_range(self, temperature=(1e-4 * (self.temperature > 0), 1e4))
        check_range(self, top_p=(1e-6, 1), min_p=(1e-6, 1))
        check_range(self, seed=(0, 2**31 - 1), samples=(1, 2**31 - self.seed))

    def execute(self) -> None:
        import jax

        from tlite.experiment import GeneratorExperiment
        from tlite.runs.generator import end_ids, write_sample
        from tlite.runs.models import warn_unsupported_generation

        prompt = self.prompt
        model, tokenizer, source = self.open_model(GeneratorExperiment)
        if isinstance(source, RunDir):
            prompt = (source.experiment.prompt or None) if prompt is None else prompt
            stop = end_ids(tokenizer)
        else:
            stop = source.end_ids
            warn_unsupported_generation(source)
        tokens = encode_prompt(tokenizer, prompt, self.unknown)
        settings = {"num_tokens": self.tokens, "stop": stop, "sampler": make_sampler(self)}
        for index in range(self.samples):
            title = f"--- sample {index + 1}\n" if self.samples > 1 else ""
            rng = jax.random.key(self.seed + index)
            try:
                write_sample(model, tokenizer, tokens, title + (prompt or ""), rng=rng, **settings)
            except ValueError as error:
                raise UserError(str(error)) from error


def make_sampler(options: Generate) -> Callable:
    """Return the sampler of the options; greedy at temperature 0."""
    import tlite.functional as F

    filters = {name: getattr(options, name) for name in ("top_k", "top_p", "min_p")}
    if options.temperature and not options.greedy:
        return partial(F.sample, temperature=options.temperature, **filters)
    if options.temperature not in (0, 1) or any(value is not None for value in filters.values()):
        raise UserError("greedy decoding has no --temperature, --top-k, --top-p or --min-p")
    return F.greedy


def encode_prompt(tokenizer: Any, prompt: str | None, unknown: bool) -> Any:
    """Return the tokens of the prompt; without one the symbol that starts a text, or ends it."""
    import numpy as np

    from tlite.runs.generator import prompt_tokens

    if prompt is None:
        ids = [i for i in (tokenizer.bos_id, tokenizer.eos_id) if i is not None]
        if not ids:
            raise UserError("this model has no start symbol: give a --prompt")
        return np.array(ids[:1], np.int32)
    if not unknown and (symbols := tokenizer.unknown_in(prompt)):
        raise UserError(
            f"the model does not know {', '.join(map(repr, symbols))} in the prompt: "
            "remove them, or pass --unknown to replace them by the unknown symbol"
        )
    return prompt_tokens(tokenizer, prompt)


@dataclass(frozen=True, kw_only=True)
class Classify(EnsembleOptions):
    """Print each text's class, with probabilities; without TEXT read lines of standard input."""

    texts: Texts = ()
    """Texts to classify."""
    format: Literal["table", "jsonl"] = "table"
    """Table or JSON Lines."""

    def execute(self) -> None:
        from tlite.experiment import ClassifierExperiment
        from tlite.runs.classifier import are_cut, encode_texts, probabilities

        model, tokenizer, source = self.open_model(ClassifierExperiment)
        texts = list(self.texts) or read_input("classify")
        for number, text in enumerate(texts, 1):
            if not tokenizer.words(text):
                warn(f"text {number} has no word in it")
        if isinstance(source, RunDir):
            experiment, classes = source.experiment, source.experiment.data.classes
            tokens, cut = (f(experiment, tokenizer, texts) for f in (encode_texts, are_cut))
        else:
            context, classes = model.config.context, source.labels
            cut = [len(ids) > context for ids in tokenizer.encode_ids(texts)]
            tokens = tokenizer.encode_texts(texts, context if any(cut) else None)
        warn_unread(tokenizer, texts, cut)
        rows = probabilities(model, tokens)
        if self.format == "table":
            print_table(texts, rows, classes)
            return
        for text, row in zip(texts, rows.tolist(), strict=True):
            scores = {name: round(p, 6) for name, p in zip(classes, row, strict=True)}
            best = max(scores, key=scores.__getitem__)
            show(json.dumps({"text": text, "class": best, "probabilities": scores}))


def print_table(texts: list[str], rows: Any, classes: list[str]) -> None:
    """Print the probabilities (N, C) of the classes, and the most probable class."""
    width = max(*map(len, classes), 5)
    show("  ".join(f"{name:>{width}}" for name in [*classes, "class"]) + "  text")
    for text, row in zip(texts, rows, strict=True):
        cells = [f"{p:.3f}" for p in row] + [classes[row.argmax()]]
        short = text if len(text) <= 60 else text[:59] + "\N{HORIZONTAL ELLIPSIS}"
        show("  ".join(f"{cell:>{width}}" for cell in cells) + f"  {short}")


@dataclass(frozen=True, kw_only=True)
class Translate(EnsembleOptions, SearchOptions):
    """Translate each text; without TEXT each line of the --input file or of standard input."""

    texts: Texts = ()
    """Texts to translate."""
    input: Path | None = None
    """File with a sentence per line."""
    max_length: int | None = None
    """Largest number of tokens of a translation; None: 1.5 times the source's and 10 more."""
    n_best: int = 1
    """Number of translations of each text, with their scores."""
    format: Literal["text", "jsonl"] = "text"
    """A translation per line (with --n-best: rank, score, translation, text), or JSON Lines."""

    def __post_init__(self):
        if self.texts and self.input:
            raise UserError("give texts or --input, not both")

    def execute(self) -> None:
        from tlite.decoding.translate import translate
        from tlite.experiment import TranslatorExperiment
        from tlite.runs.models import warn_unsupported_generation
        from tlite.runs.translator import encode_sources, with_search

        model, tokenizer, source = self.open_model(TranslatorExperiment)
        if isinstance(source, RunDir):
            experiment = source.experiment
        else:
            experiment = TranslatorExperiment("pretrained", model=model.config)
            warn_unsupported_generation(source)
        names = "beam", "length_penalty", "truncate", "max_length"
        experiment = with_search(experiment, **{name: getattr(self, name) for name in names})
        check_range(self, n_best=(1, experiment.beam))
        texts = list(self.texts) or read_input("translate", self.input)
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise UserError(f"line {number} is empty: there is nothing to translate")
        sources = encode_sources(experiment, tokenizer, texts)
        context = experiment.model.context
        warn_unread(tokenizer, texts, [len(ids) > context for ids in tokenizer.encode_ids(texts)])
        settings = {"beam": experiment.beam, "length_penalty": experiment.length_penalty}
        translations = translate(model, sources, max_length=self.max_length, **settings)
        for text, beams in zip(texts, translations, strict=True):
            best = [(tokenizer.decode(t).lstrip(" "), float(s)) for t, s in beams[: self.n_best]]
            print_translations(text, best, self)


def print_translations(text: str, best: list[tuple[str, float]], options: Translate) -> None:
    """Print the best translations of a text with their scores."""
    if options.format == "jsonl":
        is_utf8 = sys.stdout.encoding.lower() in ("utf-8", "utf8")  # else letters are escaped
        rows = [{"translation": t, "score": round(score, 4)} for t, score in best]
        show(json.dumps({"text": text, "translations": rows}, ensure_ascii=not is_utf8))
    elif options.n_best == 1:
        show(best[0][0])
    else:
        for rank, (translation, score) in enumerate(best, 1):
            show(f"{rank}\t{score:.4f}\t{translation}\t{text}")


def warn_unread(tokenizer: Any, texts: list[str], cut: list[bool]) -> None:
    """Warn of words that are unknown, and of texts that are cut."""
    text = "\n".join(texts)
    if unknown := tokenizer.unknown_in(text):
        names = ", ".join(map(repr, unknown[:MAX_LISTED])) + ", ..." * (len(unknown) > MAX_LISTED)
        number = len(set(tokenizer.words(text)))
        warn(f"{len(unknown)} of {number} different words are unknown to the model: {names}")
    if any(cut):
        reason = "texts exceed the model's input and are truncated: the first is text"
        warn(f"{sum(cut)} of {len(texts)} {reason} {cut.index(True) + 1}")


def read_input(purpose: str, path: Path | None = None) -> list[str]:
    """Return the lines of a file, or of standard input."""
    from tlite.data.reading import read_lines

    if path is None and sys.stdin.isatty():
        print("one text per line; end with Ctrl-D", file=sys.stderr)
    if not (lines := read_lines(path)):
        raise UserError(f"there is nothing to {purpose}: give texts, or lines on standard input")
    return lines


# Runs


@dataclass(frozen=True)
class Compare:
    """Compare runs with the first: differences of configs and of results, with intervals."""

    folders: Annotated[
        Positional[tuple[str, ...]], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
    ]
    """Run folders, the reference first; a study stands for its variants; latest is the newest."""
    to: Path | None = None
    """Folder to write to; None: comparison/ of a study, or runs/comparison/TIME."""
    format: Literal["table", "markdown", "csv", "json"] = "table"
    """Format of what is printed."""
    smallest_effect: float | None = None
    """Smallest difference of interest, in the printed unit: print the number of seeds that detects
    it in 80 of 100 studies (80 % power)."""
    match: Literal["steps", "flops", "seconds"] | None = None
    """For runs with several numbers of steps: print the effective speedup, the reference's steps,
    FLOPs or seconds divided by those that a run needs to reach the reference's final loss."""

    def execute(self) -> None:
        import jax

        from tlite.runs import api

        jax.config.update("jax_platforms", "cpu")  # a GPU may be busy with these runs
        settings = dict(vars(self))
        folders = settings.pop("folders")
        api.compare(*folders, **settings)


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Write a run's metrics for TensorBoard or Weights & Biases, also while it trains."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """Run folder; or latest, the newest in ./runs."""
    to: Literal["tensorboard", "wandb"]
    """Event files, or an offline run of W&B, in the run's folder."""

    def execute(self) -> None:
        from tlite.report.tracking import follow

        follow(find_run(self.run), self.to)


@dataclass(frozen=True, kw_only=True)
class Export(RunOptions):
    """Write a run's model to a folder that Hugging Face's transformers reads."""

    to: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Folder to create."""
    family: str | None = None
    """gpt2, llama, gpt_neox, bert, marian, bart or t5; None: that of the model it was fine-tuned
    from, else the one that has its components."""

    def execute(self) -> None:
        from tlite.runs.models import export

        to, settings = self.to, {"checkpoint": self.checkpoint, "replica": self.replica}
        family = export(find_run(self.run), to, family=self.family, **settings)
        print(f"saved as a {family} model, for AutoModel*.from_pretrained({str(to)!r})")


@dataclass(frozen=True, kw_only=True)
class Inspect(RunOptions):
    """Draw what a model has learned, and write one HTML page with all pictures."""

    text: str | None = None
    """Text for attention and predictions; None: from the validation split, or two sentences for a
    Hugging Face folder."""
    to: Path | None = None
    """Folder to write to; None: the run's inspection/, or ./inspection/NAME for a Hugging Face
    folder."""

    def execute(self) -> None:
        from tlite.pretrained import is_pretrained
        from tlite.report import inspect_pretrained, inspect_run
        from tlite.runs import Run
        from tlite.runs.models import check_replica

        folder = find_run(self.run)
        if is_pretrained(folder):
            path = inspect_pretrained(folder, self.checkpoint, self.replica, self.text, self.to)
        else:
            run = Run.open(folder)
            check_replica(self.replica, run.experiment.training.seeds)
            path = inspect_run(run, self.checkpoint, self.replica, self.text, self.to)
        number = len(list(path.parent.glob("*.png")))
        print(f"{number} pictures in {path.parent}; all of them on one page: {path}")


@dataclass(frozen=True)
class Experiments:
    """List the experiments: those of tlite, and yours in ./experiments."""

    def execute(self) -> None:
        show_columns(describe_experiments())


@dataclass(frozen=True)
class Runs:
    """List the runs, studies and tunings in a folder, newest first."""

    folder: Annotated[Positional[Path], arg(metavar="[FOLDER]")] = Path("runs")
    """Folder of runs."""

    def execute(self) -> None:
        if not os.path.isdir(self.folder):
            raise UserError(f"there is no folder {self.folder}: runs are created in ./runs")
        if not (summaries := find_runs(self.folder)):
            raise UserError(f"there are no runs in {self.folder}")
        rows = [("folder", "experiment", "kind", "done", "best validation", "created")]
        for run in summaries:
            unit = {"study": "variants", "tuning": "rungs"}.get(run.kind, "steps")
            done = f"{run.progress:,} of {run.total:,} {unit}" if run.total else ""
            created = f"{run.created:%Y-%m-%d %H:%M}"
            rows.append((str(run.folder), run.experiment, run.kind, done, run.best, created))
        show_columns(rows)


OPTIONS_BY_COMMAND = {
    options.__name__.lower(): options
    for options in (
        Train, Tune, Plan, Launch, Prepare, Evaluate, Generate, Classify, Translate, Compare,
        Inspect, Follow, Export, Experiments, Runs,
    )
}  # fmt: skip
"""Options dataclass of each command."""


def execute(command: str, words: list[str]) -> None:
    """Execute a command with the words after its name."""
    if command == "launch":
        run_launch(words)
    options, name, words = read_command(command, words)
    devices.prepare_devices()
    file = None if name is None else find_experiment(name)
    if isinstance(options, DistributedOptions) and HELP.isdisjoint(words):
        if options.deterministic:
            devices.use_deterministic_operations()
        distributed.initialize(  # before a file may use a device
            options.coordinator,
            options.processes,
            options.process,
            detect=options.distributed == "auto",
            heartbeat=options.heartbeat,
        )
    if file is None:
        with allow_code(trust=getattr(options, "trust", False)):
            return options.execute()
    if command != "plan":
        show(f"experiment: {file.resolve()}", flush=True)
    experiment, variants = distributed.call_in_all_processes(partial(load_variants, file))
    if HELP & {*words}:
        from tlite.cli.overrides import print_help

        about = f"{command.title()} {file}."
        about += f" Its variants: {', '.join(variants)}." if variants else ""
        print_help(type(options), experiment, f"tlite {command} {name}", about)
    options.execute(name, words, experiment, variants)


def read_command(command: str, words: list[str]) -> tuple[Any, str | None, list[str]]:
    """Return a command's options, and the experiment's name and the options of its fields, if any.

    With an experiment the options are `Train`, `Tune` or `Plan`, to resume `Resume` or
    `ResumeTuning`; those of other commands have no experiment.
    """
    options_type, program = OPTIONS_BY_COMMAND[command], f"tlite {command}"
    if options_type not in (Train, Tune, Plan):
        return parse(options_type, words, program), None, []
    if words and not words[0].startswith("-"):
        name, *words = words
        options, words = parse_known(options_type, words, f"{program} {name}", add_help=False)
        return options, name, words
    resume = {Train: Resume, Tune: ResumeTuning}.get(options_type)
    if resume and any(word.startswith("--resume") for word in words):
        return parse(resume, words, program), None, []
    known = ", ".join(find_experiments())
    if HELP & {*words}:
        about = f"{getdoc(options_type)}\n\nexperiments: {known}"
        parse_known(options_type, ["--help"], f"{program} EXPERIMENT", description=about)
    example = f"{program} EXPERIMENT" + " [OPTIONS]" * bool(words)
    raise UserError(f"name an experiment first, {example}: {known}")


def run_launch(words: list[str]) -> NoReturn:
    """Start several processes that train together."""
    from tlite.distributed.launch import launch

    at = words.index("train") if "train" in words else len(words)
    if at == len(words) and HELP.isdisjoint(words):
        raise UserError("launch needs a command to train: tlite launch -n 2 train EXPERIMENT")
    options = parse(Launch, words[:at], "tlite launch")
    _, name, _ = read_command("train", words[at + 1 :])  # an error is printed once
    if name is not None:
        find_experiment(name)
    sys.stdout.flush()
    raise SystemExit(launch(words[at:], options.processes, options.devices_each))
