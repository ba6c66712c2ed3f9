"""What the commands about a run can be told, and the recipes are handed: fields are options.

JAX is not imported: a misspelt option is told before that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction
from tyro.constructors import PrimitiveConstructorSpec

from tlite.run_folders import LATEST, find_run, newest


def run_folder(find: Callable[[str], Path]) -> Any:
    """The type of a folder that is found by a word."""
    spec = PrimitiveConstructorSpec(
        nargs=1,
        metavar="RUN",
        instance_from_str=lambda words: find(words[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda value: [str(value)],
    )
    return Annotated[Path, spec]


RunFolder = run_folder(lambda word: newest() if word == LATEST else Path(word))
"""A folder; the word `latest` is the newest run or study in ./runs, whatever ./latest is."""
Code = Annotated[tuple[Path, ...], UseAppendAction]


@dataclass(frozen=True, kw_only=True)
class OfFolder:
    run: Positional[run_folder(find_run)]
    """The run folder; or latest, the newest in ./runs (./latest is a folder of that name); or a
    Hugging Face folder or hub name."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""


@dataclass(frozen=True, kw_only=True)
class OfRun(OfFolder):
    checkpoint: str = "best"
    """best, last, average (of the last that are kept), or a step."""


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
class Evaluate(OfRun):
    split: Literal["validation", "training", "test"] = "validation"
    """Which part of the data. A test part is there to be read once, at the end."""


@dataclass(frozen=True, kw_only=True)
class EvaluateTokens(Evaluate):
    member: Literal[0, "all"] = 0
    """all: also score the mean of the members' probabilities."""


@dataclass(frozen=True, kw_only=True)
class EvaluateGenerator(EvaluateTokens):
    sampled: int = 0
    """Of a generator: also print an estimate from this many random windows."""

    def __post_init__(self):
        if self.sampled < 0:
            raise ValueError(f"--sampled must be at least 1, not {self.sampled}")


@dataclass(frozen=True, kw_only=True)
class EvaluateTranslator(EvaluateTokens, Search):
    pass


@dataclass(frozen=True, kw_only=True)
class EvaluateClassifier(Evaluate):
    member: int | Literal["all"] = 0
    """all: also score the mean of the members' probabilities. Of a classifier: whose scores by
    class, confusions and texts are shown."""
    beside: RunFolder | None = None
    """Of a classifier: another run, whose learning curves are drawn beside."""


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained(OfFolder):
    path: Path | None = None
    """Of a generator in a Hugging Face folder: the text that it is scored on."""


@dataclass(frozen=True, kw_only=True)
class EvaluateAny(EvaluatePretrained, EvaluateClassifier, EvaluateGenerator, EvaluateTranslator):
    """Print how a run's models do on a part of its data."""


EVALUATIONS = {
    "GeneratorExperiment": ("a generator's run", EvaluateGenerator),
    "ClassifierExperiment": ("a classifier's run", EvaluateClassifier),
    "TranslatorExperiment": ("a translator's run", EvaluateTranslator),
    "pretrained": ("a Hugging Face folder", EvaluatePretrained),
}
"""By the kind of a folder: what it is called, and what its evaluation can be told."""
