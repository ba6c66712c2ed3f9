"""An experiment: data, model and training in one frozen dataclass, to be varied and saved."""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tlite.distributed as distributed
from tlite import import_lazily
from tlite.config import Config, check_size
from tlite.data.corpus import Corpus
from tlite.data.reading import locate
from tlite.data.sources import BuiltinText, TextSource
from tlite.errors import UserError
from tlite.models.config import GeneratorConfig
from tlite.training.config import TrainingConfig
from tlite.training.precision import Precision, choose_precision, choose_products

MAX_SUBWORDS = 1_000_000


@dataclass(frozen=True)
class Pretrained:
    """Start from a model that others have trained, with its tokenizer."""

    folder: str = field(metadata={"option": False})
    """Hugging Face folder or hub name. The experiment can set context, attention function, scan,
    remat and dropout rates; all other fields of the model are the folder's. The dropout rate of
    attention weights is the folder's too, unless the experiment sets it or has no dropout."""
    sha256: str = field(default="", metadata={"option": False})
    """SHA-256 of its arrays; a run fills it in and checks it when it is opened."""


@dataclass(frozen=True)
class Characters:
    """One token for each character of the text."""


@dataclass(frozen=True)
class Bytes:
    """One token for each byte of the text as UTF-8, and one for the end of a text."""


@dataclass(frozen=True)
class BPE:
    """Byte-level byte-pair encoding, as GPT-2's, learned from the training split."""

    num_subwords: int = 8000
    """Size of the vocabulary, the 256 bytes and the end-of-text token included."""

    def __post_init__(self):
        check_size("num_subwords", self.num_subwords, MAX_SUBWORDS)
        if self.num_subwords < 257:
            raise ValueError(
                f"num_subwords must be at least 257, not {self.num_subwords}: there are 256 bytes, "
                "and a token that ends a text"
            )


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer from a file or the Hugging Face hub."""

    path: str
    """A tokenizer.json, a folder with one, or a name on the Hugging Face hub: gpt2, say."""
    sha256: str = field(default="", metadata={"option": False})
    """SHA-256 of its files; a run fills it in and checks it when it is opened."""


TextTokenizer = Characters | Bytes | BPE | TokenizerFile
TOKENIZERS = {"characters": Characters, "bytes": Bytes, "bpe": BPE}


def tokenizer_named(name: str) -> TextTokenizer:
    """Return the tokenizer of a name: characters, bytes, bpe, bpe:4000, or a file or hub name."""
    if name.startswith("bpe:"):
        number = name.removeprefix("bpe:")
        if not number.isdecimal():
            raise ValueError(f"bpe:N needs a whole number, as in bpe:4000, not {number!r}")
        return BPE(int(number))
    return TOKENIZERS[name]() if name in TOKENIZERS else TokenizerFile(name)


@dataclass(frozen=True)
class BaseExperiment(Config):
    """Base class of experiments; derive your own experiments from one of its subclasses."""

    data_needs: ClassVar[tuple[str, ...]] = ()
    """Attributes and methods that the data must have, also of a user's class."""

    name: str
    """Name of the folder of its runs."""

    def __post_init__(self):
        super().__post_init__()
        if not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"name must be printable, not {self.name!r}")

    def resolve(self) -> "BaseExperiment":
        """Return the experiment with absolute paths and with the columns of its tables.

        A run can then be used from any folder. Columns that are chosen are printed.

        Raises:
            UserError: a file is missing, a column is ambiguous, or the data lacks an attribute of
                `data_needs`.
        """
        experiment = self.with_paths()
        data, needs = experiment.data, self.data_needs
        for name in needs if not isinstance(data, Corpus) else ():
            if not hasattr(data, name):
                raise UserError(
                    f"{type(data).__name__} has no {name}: the data of a {type(self).__name__} "
                    f"needs {' and '.join(needs)}"
                )
        data = data.with_columns() if hasattr(data, "with_columns") else data
        return dataclasses.replace(experiment, data=data)

    def with_paths(self, moved: bool = False) -> "BaseExperiment":
        """Return the experiment with absolute paths of its inputs.

        Args:
            moved: search the data folder for files that have moved since a run was created; the
                caller must compare fingerprints.
        """
        changes: dict[str, Any] = {}
        if hasattr(self.data, "with_absolute_paths"):
            changes["data"] = self.data.with_absolute_paths(moved)
        if init_from := getattr(self, "init_from", None):
            folder = locate(init_from.folder, in_data=False)
            changes["init_from"] = dataclasses.replace(init_from, folder=folder)
        return dataclasses.replace(self, **changes)

    def resolve_precision(self, precision: Precision | None = None, attention: str = "fused"):
        """Return the experiment with "auto" precision, attention and head product resolved.

        Args:
            precision: precision to use; None: resolve "auto" by the hardware of process 0.
            attention: fastest function that "auto" attention may become.
        """
        if precision is None:
            choose = partial(choose_precision, self.training.precision)
            precision = distributed.broadcast_from_process0(choose)
        training = dataclasses.replace(self.training, precision=precision)
        model = choose_products(self.model, precision, attention)
        return dataclasses.replace(self, training=training, model=model)

    def further_inputs(self) -> list[str]:
        """Return the files that training reads in addition to the data's."""
        init_from = getattr(self, "init_from", None)
        return [init_from.folder] if init_from else []


@dataclass(frozen=True)
class GeneratorExperiment(BaseExperiment):
    """Train a `CausalLM` to predict the next token of a text."""

    data_needs: ClassVar[tuple[str, ...]] = ("load", "validation_fraction")

    data: TextSource | Corpus = field(default_factory=BuiltinText)
    """Source of the text: a class of `tlite.data`, or your frozen dataclass with `load() -> str`
    and `validation_fraction`, the share at the end of the text for validation."""
    model: GeneratorConfig = field(default_factory=GeneratorConfig)
    """Sizes and components of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Optimizer, schedule, batches, precision and checkpoints."""
    prompt: str = "\n"
    """Prompt of the sample at the end of training; "": the token between documents."""
    init_from: Pretrained | None = None
    """Hugging Face folder or hub name of the model that training starts from. Its config sets the
    model's sizes: do not set them here, except a smaller context."""
    tokenizer: TextTokenizer = field(
        default_factory=Characters, metadata={"parse": tokenizer_named}
    )
    """characters, bytes, bpe (learned from the text; bpe:4000 sets the vocabulary size), or a
    tokenizer.json, its folder, or a name on the Hugging Face hub (gpt2)."""


if TYPE_CHECKING:
    from tlite.experiment.classifier import ClassifierExperiment, Pretraining, Subwords, Words
    from tlite.experiment.translator import PairSubwords, TranslatorExperiment

    Experiment = GeneratorExperiment | ClassifierExperiment | TranslatorExperiment

MODULES = {
    "tlite.experiment.classifier": "ClassifierExperiment Pretraining Subwords Words",
    "tlite.experiment.translator": "PairSubwords TranslatorExperiment",
}
"""Public names by module, which is imported when a name is first used."""


import_name = import_lazily(__name__, MODULES)


def __getattr__(name: str) -> Any:
    if name != "Experiment":
        return import_name(name)
    from tlite.experiment.classifier import ClassifierExperiment
    from tlite.experiment.translator import TranslatorExperiment

    return GeneratorExperiment | ClassifierExperiment | TranslatorExperiment
