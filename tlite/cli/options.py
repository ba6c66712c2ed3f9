"""What each command of `tlite` can be told: a field is an option, its text the help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

Members = int | Literal["all"]
Code = Annotated[tuple[Path, ...], UseAppendAction]


@dataclass(frozen=True)
class Processes:
    """One of several processes that train a run together; Slurm, Open MPI and TPUs tell by
    themselves."""

    coordinator: str | None = None
    """HOST:PORT where process 0 listens; the same for all."""
    processes: int | None = None
    """How many processes there are."""
    process: int | None = None
    """Which one this is, from 0."""
    heartbeat: int = 100
    """Seconds without a sign of a process after which the others give up."""


@dataclass(frozen=True)
class Launch:
    """Train as several processes on this machine."""

    processes: Annotated[int, arg(aliases=("-n",))] = 2
    """How many."""
    devices_each: int | None = None
    """The devices of each: its share of the CPU's cores, or one GPU, unless given."""


@dataclass(frozen=True)
class Variants:
    """What else is trained beside an experiment, with the same seeds."""

    vary: Annotated[tuple[tuple[str, ...], ...], UseAppendAction] = ()
    """A study of variants: an option's name and its values, --vary norm layer rms; given again, of
    all their combinations. The first is what the others are compared with."""
    only: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Of the variants this one alone; may be given again."""


@dataclass(frozen=True)
class Profiled:
    """What of a training is profiled."""

    profile: int = 0
    """Profile so many steps, into the run's folder profile/, for XProf, TensorBoard or Perfetto."""


@dataclass(frozen=True)
class Train(Variants):
    """What `tlite train` is told beside an experiment's fields."""

    run: Path | None = None
    """The folder to make for the run; runs/NAME/TIME unless given."""
    profiled: Profiled = Profiled()
    joined: Processes = Processes()


@dataclass(frozen=True)
class Resume:
    """Go on with a run, or a study of runs, from its last checkpoint."""

    resume: Path
    """The run folder, or the study's."""
    member: int | None = None
    """Take this one of the run's models (from 0) into a run of its own."""
    steps: int | None = None
    """Go on to so many steps in all, where the schedule of the learning rate is no cosine."""
    profiled: Profiled = Profiled()
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""
    joined: Processes = Processes()


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
    """bytes, characters, bpe (learned from 50 megabytes of the training part); or a tokenizer.json,
    a folder with one, or a name on the hub."""
    pieces: int = 8000
    """Of bpe: how many."""
    field: str = "text"
    """The column with the text."""
    split: str = "train"
    """Of a set: its split."""
    subset: str = ""
    """Of a set on the hub: its configuration, sample-10BT say."""
    validation_fraction: float = 0.005
    """For validation: the last part of text files; else documents, by the hash of their text."""
    shard_tokens: int = 0
    """Tokens of a file, before the next one begins; 0: train.bin and val.bin."""
    processes: int = 0
    """Processes that encode; 0: one for each core."""


@dataclass(frozen=True)
class Plan:
    """What a training step would take on devices that are not there."""

    mesh: str = ""
    """The devices, 8 say; or 64x4, where large arrays lie over two of their axes."""
    tpu: str | None = None
    """Compile for a TPU slice, v5e:16x16 say (needs the extra tpu); else for CPU devices."""
    hardware: str | None = None
    """v4, v5e, v5p, v6e, a100, h100 or h200: the time that its peak allows; the TPU's unless given.
    """
    utilisation: float = 0.4
    """Part of its peak that a device is thought to reach."""


@dataclass(frozen=True)
class Evaluate:
    """How a run's models do on a part of its data."""

    run: Positional[Path]
    """The run folder."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    split: Literal["validation", "training", "test"] = "validation"
    """Which part of the data. A classifier's test part is there to be read once, at the end."""
    path: Path | None = None
    """Of a generator in a Hugging Face folder: the text that it is scored on."""
    sampled: int = 0
    """Of a generator: also print an estimate from this many random windows."""
    member: Members = 0
    """all: also score the mean of the members' probabilities. Of a classifier: whose scores by
    class, confusions and texts are shown."""
    beside: Path | None = None
    """Of a classifier: another run, whose learning curves are drawn beside."""
    beam: int | None = None
    """Of a translator: beams of the search beside the greedy one; the experiment's unless given."""
    length_penalty: float | None = None
    """Of a translator: above 0 longer translations are preferred; the experiment's unless given."""
    truncate: bool = False
    """Of a translator: cut sentences that are longer than the model's context."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""


@dataclass(frozen=True)
class Generate:
    """Write text with the model of a run."""

    run: Positional[Path]
    """The run folder."""
    prompt: str | None = None
    """What the text starts with; the experiment's own prompt unless given."""
    tokens: int = 500
    """Characters to write."""
    temperature: float = 1.0
    """Below 1 safer, above 1 wilder."""
    top_k: int | None = None
    """Draw from the k most probable characters only."""
    top_p: float | None = None
    """Draw from the most probable characters that sum to p."""
    greedy: bool = False
    """Always the most probable character."""
    seed: int = 0
    """Of the drawing; sample i uses seed + i."""
    samples: int = 1
    """How many texts."""
    member: Members = 0
    """Which of the run's models, where several were trained side by side; all: the mean of their
    probabilities."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    unknown: bool = False
    """Read characters the model does not know as the unknown symbol."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""


@dataclass(frozen=True)
class Classify:
    """The class of each text, with probabilities; the lines of standard input without texts."""

    run: Positional[Path]
    """The run folder."""
    texts: Positional[tuple[str, ...]] = ()
    """What is classified."""
    format: Literal["table", "jsonl"] = "table"
    """A table, or JSON Lines."""
    member: Members = 0
    """Which of the run's models, where several were trained side by side; all: the mean of their
    probabilities."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""


@dataclass(frozen=True)
class Translate:
    """The translation of each text, or of each line of a file or of standard input."""

    run: Positional[Path]
    """The run folder."""
    texts: Positional[tuple[str, ...]] = ()
    """What is translated."""
    input: Path | None = None
    """A file with a sentence a line."""
    beam: int | None = None
    """Beams of the search, 1 for the greedy one; the experiment's unless given."""
    length_penalty: float | None = None
    """Above 0 longer translations are preferred; the experiment's unless given."""
    max_length: int | None = None
    """Tokens of the longest translation; from the source's length unless given."""
    n_best: int = 1
    """The best so many translations of each text, with their scores."""
    truncate: bool = False
    """Cut texts that are longer than the model's context."""
    format: Literal["text", "jsonl"] = "text"
    """A translation a line (n-best: place, score and translation), or JSON Lines."""
    member: Members = 0
    """Which of the run's models, where several were trained side by side; all: the mean of their
    probabilities."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""


@dataclass(frozen=True)
class Compare:
    """How runs differ from the first: in their configs, and in what they reach, seed by seed."""

    folders: Positional[tuple[Path, ...]]
    """Run folders, the reference first; a study's folder stands for its variants."""
    to: Path | None = None
    """The folder to write tables, pictures and a page into; a study's own comparison/ unless given,
    of runs a new one, runs/comparison/TIME."""
    format: Literal["table", "markdown", "csv", "json"] = "table"
    """What is printed."""


@dataclass(frozen=True)
class Export:
    """Write a run's model to a folder that Hugging Face's transformers opens."""

    run: Positional[Path]
    """The run folder; or a Hugging Face folder, which is written anew."""
    to: Positional[Path]
    """The folder to make."""
    family: str | None = None
    """gpt2, llama, bert, ...; the first that has this model unless given."""
    member: int = 0
    """Which of the run's models, where several were trained side by side."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""


@dataclass(frozen=True)
class Inspect:
    """Pictures of what a model has learned, and one HTML page with all of them."""

    run: Positional[Path]
    """The run folder; or a Hugging Face folder or hub name: then what needs no data is drawn."""
    text: str | None = None
    """What attention and predictions are drawn for; a part of the validation data unless given, or
    of a Hugging Face folder two sentences."""
    member: int = 0
    """Which of the run's models, where several were trained side by side."""
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""
