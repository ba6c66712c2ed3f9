"""An experiment: data, model and training in one frozen dataclass, to be varied and saved."""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from tyro.constructors import PrimitiveConstructorSpec

from tlite import distributed
from tlite.config import check_size, validate_fields
from tlite.data import (
    BuiltinText,
    CopyTask,
    LabelledText,
    NumberWords,
    ParallelText,
    SyntheticReviews,
    TextSource,
)
from tlite.data.corpus import Corpus
from tlite.data.reading import locate
from tlite.errors import UserError
from tlite.models import ClassifierConfig, GeneratorConfig, LogisticConfig, Seq2SeqConfig
from tlite.training.config import TrainingConfig
from tlite.training.precision import Precision, choose_precision, choose_products

MOST_PIECES = 1_000_000  # of subwords, that can still be learned


@dataclass(frozen=True)
class Words:
    """One token for each word of the simplified text."""

    min_document_frequency: int = 4
    """Texts of the training part that a word must occur in."""
    marks: bool = False
    """Punctuation marks and words of one letter are tokens too."""
    word_ngrams: int = 0
    """A linear model of the text's words and of n-grams of up to so many words is added to the
    transformer's logits. It is found before, by naive Bayes and L-BFGS (Wang and Manning 2012);
    0: no n-grams of words."""
    character_ngrams: int = 0
    """The same with n-grams of up to so many characters; 0: none of them."""

    def __post_init__(self):
        check_size("min_document_frequency", self.min_document_frequency)
        for name in ("word_ngrams", "character_ngrams"):
            if getattr(self, name) not in (0, *range(2, 17)):
                raise ValueError(f"{name} must be 0, or 2 to 16, not {getattr(self, name)}")

    @property
    def has_ngrams(self) -> bool:
        return self.word_ngrams > 0 or self.character_ngrams > 0


@dataclass(frozen=True)
class Subwords:
    """Pieces of words, learned from the training part."""

    pieces: int = 8000
    """How many pieces, single characters among them."""

    def __post_init__(self):
        check_size("pieces", self.pieces, MOST_PIECES)


@dataclass(frozen=True)
class Pretraining:
    """Train a generator on the texts first; its embedding and blocks start the classifier."""

    pretraining_steps: int = 2000
    """Updates of the generator; 0 skips it."""
    pretraining_batch_size: int = 32
    """Windows of the model's context in a batch."""
    pretraining_learning_rate: float = 3e-3
    """Peak of its cosine schedule."""
    pretraining_dropout: float = 0.1
    """Its dropout rate."""
    unlabelled: tuple[str, ...] = ()
    """Files whose texts are read too, whatever their labels."""

    def __post_init__(self):
        validate_fields(
            self,
            counts="pretraining_steps",
            sizes="pretraining_batch_size",
            positive="pretraining_learning_rate",
            rates="pretraining_dropout",
        )


@dataclass(frozen=True)
class Pretrained:
    """Start from a model that others have trained, with its tokenizer."""

    folder: str
    """A Hugging Face folder, or a hub name. The experiment sets only context, implementation of
    attention, scan, remat and dropout rates; the rate of attention weights is the folder's if it
    sets none, and 0 if its `dropout` is 0."""
    sha256: str = ""
    """Of its arrays; a run fills it in, to know them again."""


@dataclass(frozen=True)
class Characters:
    """One token for each character of the text."""


@dataclass(frozen=True)
class Bytes:
    """One token for each byte of the text as UTF-8, and one for the end of a text."""


@dataclass(frozen=True)
class BPE:
    """Byte-pair merges of bytes, as GPT-2's, learned from the training part."""

    pieces: int = 8000
    """How many pieces, the 256 bytes and a mark for the end of a text among them."""

    def __post_init__(self):
        check_size("pieces", self.pieces, MOST_PIECES)
        if self.pieces < 257:
            raise ValueError(f"pieces of bytes must be at least 257, not {self.pieces}")


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer that others have made."""

    path: str
    """A tokenizer.json, a folder with one, or a name on the Hugging Face hub: gpt2, say."""
    sha256: str = ""
    """Of its files; a run fills it in, to know them again."""


TextTokenizer = Characters | Bytes | BPE | TokenizerFile
NAMED_TOKENIZERS = {"characters": Characters(), "bytes": Bytes(), "bpe": BPE()}


def tokenizer_named(name: str) -> TextTokenizer:
    """The tokenizer that is called so on a command line: "bpe:4000" for 4,000 pieces.

    Raises:
        ValueError: the number of pieces is none, or can't be.
    """
    if name.startswith("bpe:"):
        return BPE(int(name.removeprefix("bpe:")))
    return NAMED_TOKENIZERS.get(name, TokenizerFile(name))


AsOneWord = PrimitiveConstructorSpec(  # on the command line: another kind can be asked for
    nargs=1,
    metavar="NAME",
    instance_from_str=lambda words: tokenizer_named(words[0]),
    is_instance=lambda value: isinstance(value, TextTokenizer),
    str_from_instance=lambda value: [getattr(value, "path", type(value).__name__.lower())],
)


@dataclass(frozen=True)
class BaseExperiment:
    """What every experiment has; derive a kind of your own from one of the classes below."""

    data_needs: ClassVar[tuple[str, ...]] = ()
    """Attributes and methods that the data of any class, also a user's, must have."""

    name: str
    """Name of the folder of its runs."""

    def __post_init__(self):
        if not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"name must be printable, not {self.name!r}")

    def resolve(self) -> "BaseExperiment":
        """Return the experiment with absolute paths and with the columns of its tables.

        A run can then be used from any folder. Columns that are chosen are printed.

        Raises:
            UserError: a file is missing, a column is ambiguous, or data of a user's class lacks
                an attribute that `data_needs` names.
        """
        experiment = self.with_paths()
        data, needs = experiment.data, self.data_needs
        missing = [name for name in needs if not (isinstance(data, Corpus) or hasattr(data, name))]
        if missing:
            raise UserError(
                f"{type(data).__name__} has no {' and no '.join(missing)}: the data of a "
                f"{type(self).__name__} needs {' and '.join(needs)}"
            )
        data = data.found() if hasattr(data, "found") else data
        return dataclasses.replace(experiment, data=data)

    def with_paths(self, moved: bool = False) -> "BaseExperiment":
        """Return the experiment with absolute paths of its inputs.

        Args:
            moved: search the data folder for files that have moved since a run was created; the
                caller must compare fingerprints.
        """
        changed: dict[str, Any] = {}
        if hasattr(self.data, "located"):
            changed["data"] = self.data.located(moved)
        if init_from := getattr(self, "init_from", None):
            folder = locate(init_from.folder, in_data=False)
            changed["init_from"] = dataclasses.replace(init_from, folder=folder)
        return dataclasses.replace(self, **changed)

    def resolve_precision(self, precision: Precision | None = None, attention: str = "fused"):
        """Return the experiment with "auto" precision and "auto" functions resolved.

        Args:
            precision: instead of what the hardware of process 0 suggests.
            attention: the fastest function that "auto" attention may become.
        """
        if precision is None:
            choose = partial(choose_precision, self.training.precision)
            precision, _ = distributed.broadcast_from_process0(choose)
        training = dataclasses.replace(self.training, precision=precision)
        model = choose_products(self.model, precision, attention)
        return dataclasses.replace(self, training=training, model=model)

    def further_inputs(self) -> list[str]:
        """Return the files beside the data's that training reads."""
        init_from = getattr(self, "init_from", None)
        return [init_from.folder] if init_from else []


@dataclass(frozen=True)
class GeneratorExperiment(BaseExperiment):
    """Train a `CausalLM` to predict the next token of a text."""

    data_needs: ClassVar[tuple[str, ...]] = ("load", "validation_fraction")

    data: TextSource | Corpus = field(default_factory=BuiltinText)
    """Where the text comes from: a class of `tlite.data`, or a frozen dataclass of your own with
    `load() -> str` and `validation_fraction`, the last part of the text that is held out."""
    model: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The sizes and parts of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""
    prompt: str = "\n"
    """What the sample at the end of training starts from; "": the mark between documents."""
    init_from: Pretrained | None = None
    """Pretrained model that training starts from."""
    tokenizer: Annotated[TextTokenizer, AsOneWord] = field(
        default_factory=Characters, metadata={"parse": tokenizer_named}
    )
    """What a token is: characters, bytes, bpe (learned from the text; bpe:4000 for so many pieces),
    or another's: a tokenizer.json, its folder, or a name on the Hugging Face hub (gpt2)."""


@dataclass(frozen=True)
class ClassifierExperiment(BaseExperiment):
    """Train a classifier to predict the labels of texts."""

    data_needs: ClassVar[tuple[str, ...]] = ("classes", "examples")

    data: LabelledText | SyntheticReviews = field(default_factory=LabelledText)
    """Where the texts and their labels come from: a class of `tlite.data`, or a frozen dataclass of
    your own with `classes`, their names, and `examples(part)`, a list of `tlite.data.Example`s."""
    tokenizer: Words | Subwords = field(default_factory=Words)
    """What a token is."""
    model: ClassifierConfig | LogisticConfig = field(default_factory=ClassifierConfig)
    """The sizes and parts of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""
    pretraining: Pretraining | None = None
    """Stage before: a generator of the same texts, whose blocks the classifier takes over."""
    init_from: Pretrained | None = None
    """Pretrained model that training starts from."""
    padding: Literal["mask", "unknown"] = "mask"
    """Short texts are filled up with nothing that is attended to, or with unknown words."""
    sentences: int = 0
    """Score each sentence alone, at most so many of a text, and join the scores; 0: the text."""
    ngram_l2: float = 1e-5
    """Penalty l2 / 2 |w|^2 of the linear model of n-grams, beside its mean loss."""

    def __post_init__(self):
        super().__post_init__()
        validate_fields(self, counts="sentences", positive="ngram_l2")
        if self.pretraining and self.init_from:
            raise ValueError("pretraining and init_from exclude each other: leave one out")

    def with_paths(self, moved: bool = False) -> "BaseExperiment":
        experiment, stage = super().with_paths(moved), self.pretraining
        if stage is None or getattr(self.data, "hub", ""):
            return experiment
        unlabelled = tuple(map(locate, stage.unlabelled))
        stage = dataclasses.replace(stage, unlabelled=unlabelled)
        return dataclasses.replace(experiment, pretraining=stage)

    def further_inputs(self) -> list[str]:
        stage, paths = self.pretraining, super().further_inputs()
        if stage and stage.pretraining_steps and stage.unlabelled:
            return [*paths, *self.data.reads("training", stage.unlabelled)]
        return paths


@dataclass(frozen=True)
class PairSubwords:
    """Byte-pair encoding of sources and targets, learned from the training part."""

    pieces: int = 8000
    """How many pieces, single characters among them; of each side if not joint."""
    joint: bool = True
    """Sources and targets share their pieces."""
    lowercase: bool = False
    """Read and write lower case only."""

    def __post_init__(self):
        check_size("pieces", self.pieces, MOST_PIECES)


@dataclass(frozen=True)
class TranslatorExperiment(BaseExperiment):
    """Train a `Seq2Seq` to translate sentences."""

    data_needs: ClassVar[tuple[str, ...]] = ("pairs",)

    data: ParallelText | CopyTask | NumberWords = field(default_factory=ParallelText)
    """Where the pairs of sentences come from: a class of `tlite.data`, or a frozen dataclass of
    your own with `pairs(part)`, a list of `tlite.data.Pair`s."""
    tokenizer: PairSubwords = field(default_factory=PairSubwords)
    """What a token is."""
    model: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    """The sizes and parts of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""
    buckets: int = 6
    """Different lengths that batches are padded to; each has a program of its own."""
    truncate: bool = False
    """Cut sentences that are longer than the model's context, instead of refusing them."""
    beam: int = 5
    """Beams of the search that is reported beside the greedy one."""
    length_penalty: float = 0.6
    """Its exponent: above 0 longer translations are preferred."""
    bleu_sentences: int = 1000
    """Validation sentences that are translated greedily at each validation, for the BLEU curve."""

    def __post_init__(self):
        super().__post_init__()
        validate_fields(self, sizes="beam", counts="bleu_sentences")
        check_size("buckets", self.buckets, 1000)  # each is compiled by itself
        if self.training.per_device_batch_size:
            raise ValueError(
                "per_device_batch_size must be 0: a translator's batches are of tokens"
            )
        if not self.bleu_sentences and self.training.best_metric in ("bleu", "exact_match"):
            raise ValueError(f"{self.training.best_metric} needs bleu_sentences: at least 1")


Experiment = GeneratorExperiment | ClassifierExperiment | TranslatorExperiment
