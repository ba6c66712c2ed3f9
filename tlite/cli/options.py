"""What each command of `tlite` can be told: a field is an option, its text the help.

JAX is not imported: a misspelt option is told before that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec

from tlite.errors import UserError
from tlite.training.run_dir import LATEST, check_local, find_run


def one_word(
    metavar: str,
    read: Callable[[str], Any],
    fits: Callable[[Any], bool],
    say: Callable[[Any], str] = str,
    choices: tuple[str, ...] | None = None,
) -> PrimitiveConstructorSpec:
    """How an option is read that is one word, and how its default is said."""
    read_words, say_words = lambda words: read(words[0]), lambda value: [say(value)]
    return PrimitiveConstructorSpec(1, metavar, read_words, fits, say_words, choices)


def run_folder(find: Callable[[str], Path]) -> Any:
    """The type of a folder that is found by a word."""
    return Annotated[Path, one_word("RUN", find, lambda value: isinstance(value, Path))]


def read_folder(word: str) -> Path:
    """Return the path of a run folder, without a search in folders of runs."""
    check_local(word)
    return find_run(word, studies=True) if word == LATEST else Path(word)


RunFolder = run_folder(read_folder)
"""A folder; the word `latest` is the newest run or study in ./runs, whatever ./latest is."""
Code = Annotated[tuple[Path, ...], UseAppendAction]


def limit(asked: Any, **limits: tuple[float | int, float | int]) -> None:
    """Raises a `UserError` for an option that is out of its limits."""
    for name, (least, most) in limits.items():
        value, option = getattr(asked, name), name.replace("_", "-")
        if value is not None and not least <= value <= most:
            allowed = f"between {least:,} and {most:,}"
            raise UserError(f"--{option} must be {allowed}, not {value:,}")


@dataclass(frozen=True, kw_only=True)
class OfRun:
    run: Positional[run_folder(find_run)]
    """The run folder; latest, the newest in ./runs; or a Hugging Face folder or hub name."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    replica: int = 0
    """Which of the run's models, where several were trained side by side."""


@dataclass(frozen=True, kw_only=True)
class OfMembers(OfRun):
    replica: int | Literal["all"] = 0
    """Which of the models trained side by side; all: the mean of their probabilities."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How translations are searched for; what is None is the experiment's."""

    beam: int | None = None
    """Of a translator: beams of the search, 1 for the greedy one; the experiment's unless given."""
    length_penalty: float | None = None
    """Of a translator: above 0 longer translations are preferred; the experiment's unless given."""
    truncate: bool = False
    """Of a translator: cut sentences that are longer than the model's context."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfMembers, Search):
    """Print how a run's models do on a part of its data, or a model of others on a text."""

    split: Literal["validation", "training", "test"] = "validation"
    """Which part of the data. A test part is there to be read once, at the end."""
    path: Path | None = None
    """Of a generator in a Hugging Face folder: the text that it is scored on."""


@dataclass(frozen=True)
class Trains:
    """Options of any training."""

    coordinator: str | None = None
    """HOST:PORT where process 0 listens; the same for all."""
    processes: int | None = None
    """How many processes there are."""
    process: int | None = None
    """Which one this is, from 0."""
    distributed: Literal["auto", "off"] = "auto"
    """auto: join the processes of a Slurm step, of Open MPI or of a TPU pod; off: train in this
    process alone, unless the three options above say otherwise."""
    heartbeat: int = 100
    """Seconds without a sign of life after which a process counts as lost."""
    deterministic: bool = False
    """On a GPU: only operations that repeat bit for bit, as a CPU's do; slower."""
    profile: int = 0
    """Profile so many steps, into the run's folder profile/, for XProf, TensorBoard or Perfetto."""

    def __post_init__(self):
        limit(self, profile=(0, math.inf))


@dataclass(frozen=True)
class Launch:
    """Train as several processes on this machine."""

    processes: Annotated[int, arg(aliases=("-n",))] = 2
    """How many."""
    devices_each: int | None = None
    """The devices of each: its share of the CPU's cores, or one GPU, unless given."""


@dataclass(frozen=True)
class Train(Trains):
    """Train an experiment, by its name below or from a Python file.

    Its fields are options too: `tlite train EXPERIMENT --help` lists them, and
    `tlite train --resume RUN --help` lists the options for resuming.
    """

    vary: Annotated[tuple[tuple[str, ...], ...], UseAppendAction] = ()
    """Train a study of variants: an option's name and its values, as --vary norm layer rms. Given
    again, all combinations are trained. The others are compared with the first."""
    only: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Train only this variant; may be given again."""
    run: Path | None = None
    """The folder to make for the run; runs/NAME/TIME unless given."""
    resume: Literal["auto"] | None = None
    """auto: resume the run of the same experiment in the folder --run, or the newest one in
    runs/NAME; create one if there is none. The same command then survives a restart."""

    def __post_init__(self):
        super().__post_init__()
        check_local(self.run or "")


@dataclass(frozen=True, kw_only=True)
class Resume(Trains):
    """Go on with a run, or a study of runs, from its last checkpoint."""

    resume: RunFolder
    """The run folder, or the study's; or latest, the newest in ./runs."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""
    steps: int | None = None
    """Go on to so many steps in all, where the schedule of the learning rate is no cosine."""

    def __post_init__(self):
        super().__post_init__()
        if str(self.resume) == "auto" and not self.resume.exists():
            raise UserError("name an experiment: tlite train EXPERIMENT --resume auto")


@dataclass(frozen=True)
class Plan:
    """What a training step of an experiment would take on devices that are not there."""

    mesh: str = ""
    """The devices, 8 say; or 64x4, where large arrays lie over two of their axes."""
    tpu: str | None = None
    """Compile for a TPU slice, v5e:16x16 say (needs the extra tpu); else for CPU devices."""
    hardware: str | None = None
    """v4, v5e, v5p, v6e, a100, h100, h200: the time its peak allows; the TPU's unless given."""
    utilisation: float = 0.4
    """Part of its peak that a device is thought to reach."""
    parameters: bool = False
    """List each parameter with its shape, its type in products, its optimizer and decay."""


@dataclass(frozen=True)
class Prepare:
    """Token files of texts of any size: a corpus that an experiment trains on.

    What a kill has interrupted goes on with the same command.
    """

    source: Positional[str]
    """A text file, JSON Lines (both also .gz), Parquet, a folder of these or of save_to_disk, or a
    set on the Hugging Face hub."""
    folder: Positional[Path]
    """The folder to make."""
    tokenizer: str = "gpt2"
    """bytes, characters, bpe (learned from 50 megabytes of the training part; bpe:4000 for so many
    pieces); or a tokenizer.json, a folder with one, or a name on the hub."""
    field: str = "text"
    """The column with the text."""
    split: str = "train"
    """Of a set: its split."""
    subset: str = ""
    """Of a set on the hub: its configuration, sample-10BT say."""
    validation_fraction: float = 0.005
    """For validation: the last part of each text file; else documents, by their text's hash."""
    shard_tokens: int = 0
    """Tokens of a file, before the next one begins; 0: train.bin and val.bin."""
    processes: int = 0
    """Processes that encode; 0: one for each core."""


@dataclass(frozen=True, kw_only=True)
class Generate(OfMembers):
    """Write text with the model of a run."""

    run: Positional[run_folder(partial(find_run, kind="generator"))]
    prompt: str | None = None
    """What the text starts with; the experiment's own prompt unless given."""
    tokens: int = 500
    """Tokens (characters, of most runs) to write."""
    temperature: float = 1.0
    """Sampling temperature: below 1 sharper, above 1 flatter; 0: always the most probable token."""
    top_k: int | None = None
    """Draw from the k most probable tokens only."""
    top_p: float | None = None
    """Draw from the most probable tokens that sum to p."""
    min_p: float | None = None
    """Draw from the tokens at least p times as probable as the most probable."""
    greedy: bool = False
    """Always the most probable token."""
    seed: int = 0
    """Of the drawing; sample i uses seed + i."""
    samples: int = 1
    """How many texts."""
    unknown: bool = False
    """Read characters the model does not know as the unknown symbol."""

    def __post_init__(self):
        # Otherwise it is 0 or infinite among the numbers that JAX computes with.
        limit(self, temperature=(1e-4 * (self.temperature > 0), 1e4))
        limit(self, top_p=(1e-6, 1), min_p=(1e-6, 1))
        limit(self, seed=(0, 2**31 - 1), samples=(1, 2**31 - self.seed))  # sample i has seed + i


@dataclass(frozen=True, kw_only=True)
class Classify(OfMembers):
    """The class of each text, with probabilities; the lines of standard input without texts."""

    run: Positional[run_folder(partial(find_run, kind="classifier"))]
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="[TEXT ...]")] = ()
    """What is classified."""
    format: Literal["table", "jsonl"] = "table"
    """A table, or JSON Lines."""


@dataclass(frozen=True, kw_only=True)
class Translate(OfMembers, Search):
    """The translation of each text, or of each line of a file or of standard input."""

    run: Positional[run_folder(partial(find_run, kind="translator"))]
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="[TEXT ...]")] = ()
    """What is translated."""
    input: Path | None = None
    """A file with a sentence a line."""
    max_length: int | None = None
    """Tokens of the longest translation; from the source's length unless given."""
    n_best: int = 1
    """The best so many translations of each text, with their scores."""
    format: Literal["text", "jsonl"] = "text"
    """A translation a line (n-best: place, score, translation and text), or JSON Lines."""

    def __post_init__(self):
        if self.texts and self.input:
            raise UserError("give texts or --input, not both")


@dataclass(frozen=True)
class Compare:
    """How runs differ from the first: in their configs, and in what they reach, seed by seed."""

    folders: Positional[tuple[RunFolder, ...]]
    """Run folders, the reference first; a study's stands for its variants; latest is the newest."""
    to: Path | None = None
    """The folder to write into; a study's comparison/, or runs/comparison/TIME unless given."""
    format: Literal["table", "markdown", "csv", "json"] = "table"
    """What is printed."""
    smallest_effect: float | None = None
    """Smallest difference of interest, in the printed unit: print the number of seeds that show it
    in 80 of 100 studies."""


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Write a run's metrics for TensorBoard or Weights & Biases, also while it is trained."""

    run: Positional[run_folder(find_run)]
    """The run folder; or latest, the newest in ./runs."""
    to: Literal["tensorboard", "wandb"]
    """Event files, or an offline run of W&B, into the run's folder."""


@dataclass(frozen=True, kw_only=True)
class Export(OfRun):
    """Write a run's model to a folder that Hugging Face's transformers opens."""

    to: Positional[Path]
    """The folder to make."""
    family: str | None = None
    """gpt2, llama, gpt_neox, bert, marian, bart or t5; unless given, that of the folder the run
    started from, or by its kind and parts."""


@dataclass(frozen=True, kw_only=True)
class Inspect(OfRun):
    """Pictures of what a model has learned, and one HTML page with all of them."""

    text: str | None = None
    """What attention and predictions are drawn for; a part of the validation data unless given, or
    of a Hugging Face folder two sentences."""
    to: Path | None = None
    """The folder for them; the run's inspection/, or ./inspection/NAME of others' unless given."""


@dataclass(frozen=True)
class Experiments:
    """The experiments that there are: those that come with tlite, and yours in ./experiments."""


@dataclass(frozen=True)
class Runs:
    """The runs and studies below a folder, newest first."""

    folder: Positional[Path] = Path("runs")
    """Where to look."""
