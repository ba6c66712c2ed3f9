"""What the commands about a run can be told, and the recipes are handed: fields are options.

JAX is not imported: a misspelt option is told before that.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction
from tyro.constructors import PrimitiveConstructorSpec

from tlite.errors import UserError
from tlite.training.runs import LATEST, find_run, kind_of, newest


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
class OfRun:
    run: Positional[run_folder(find_run)]
    """The run folder; or latest, the newest in ./runs (./latest is a folder of that name); or a
    Hugging Face folder or hub name."""
    code: Code = ()
    """The file with your own functions that the run was made with; may be given again."""
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
class Evaluate(OfRun, Search):
    """Print how a run's models do on a part of its data."""

    split: Literal["validation", "training", "test"] = "validation"
    """Which part of the data. A test part is there to be read once, at the end."""
    member: int | Literal["all"] = 0
    """all: also score the mean of the members' probabilities. Of a classifier: whose scores by
    class, confusions and texts are shown."""
    sampled: int = 0
    """Of a generator: also print an estimate from this many random windows."""
    beside: RunFolder | None = None
    """Of a classifier: another run, whose learning curves are drawn beside."""
    path: Path | None = None
    """Of a generator in a Hugging Face folder: the text that it is scored on."""

    def __post_init__(self):
        """Raises a `UserError` for what is not for a folder of this kind."""
        if self.sampled < 0:
            raise UserError(f"--sampled must be at least 1, not {self.sampled}")
        kind = kind_of(self.run)
        if kind not in EVALUATED:  # told where it is opened
            return
        whose, known = EVALUATED[kind]
        for field in fields(self):
            name, value = field.name.replace("_", "-"), getattr(self, field.name)
            if value != field.default and field.name not in ("run", *known):
                raise UserError(f"there is no option --{name} for {whose}")
        if "beside" not in known and self.member not in (0, "all"):
            raise UserError(f"--member must be 0 or all for {whose}, not {self.member}")


OF_ANY_RUN = "code", "checkpoint", "split", "member"
EVALUATED = {
    "GeneratorExperiment": ("a generator's run", (*OF_ANY_RUN, "sampled")),
    "ClassifierExperiment": ("a classifier's run", (*OF_ANY_RUN, "beside")),
    "TranslatorExperiment": ("a translator's run", (*OF_ANY_RUN, *Search.__dataclass_fields__)),
    "pretrained": ("a Hugging Face folder", ("code", "path")),
}
"""By the kind of a folder: what it is called, and what its evaluation can be told."""
