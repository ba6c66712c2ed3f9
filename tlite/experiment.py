"""An experiment: data, model and training in one frozen dataclass, to be varied and saved."""

from dataclasses import dataclass, field
from typing import Literal

from tlite.data import (
    BuiltinText,
    CopyTask,
    LabelledText,
    NumberWords,
    ParallelText,
    SyntheticReviews,
    TextSource,
)
from tlite.models import ClassifierConfig, GeneratorConfig, LogisticConfig, Seq2SeqConfig
from tlite.text.pairs import PAD_ID
from tlite.training.config import TrainingConfig


@dataclass(frozen=True)
class GeneratorExperiment:
    """Train a `TransformerGenerator` to predict the next character of a text."""

    name: str
    """Names the folder of its runs."""
    data: TextSource = field(default_factory=BuiltinText)
    """Where the text comes from."""
    model: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The switches of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""
    prompt: str = "\n"
    """What the sample at the end of training starts from."""


@dataclass(frozen=True)
class Words:
    """One token for each word of the simplified text."""

    min_document_frequency: int = 4
    """Texts of the training part that a word must occur in."""
    marks: bool = False
    """Punctuation marks and words of one letter are tokens too."""


@dataclass(frozen=True)
class Subwords:
    """Pieces of words, learned from the training part."""

    algorithm: Literal["bpe", "wordpiece"] = "bpe"
    """Byte-pair encoding or WordPiece."""
    pieces: int = 8000
    """How many pieces, single characters among them."""


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
        if self.pretraining_steps < 0 or self.pretraining_batch_size < 1:
            raise ValueError("pretraining_steps must be at least 0, its batch size at least 1")


@dataclass(frozen=True)
class ClassifierExperiment:
    """Train a classifier to predict the labels of texts."""

    name: str
    """Names the folder of its runs."""
    data: LabelledText | SyntheticReviews = field(default_factory=LabelledText)
    """Where the texts and their labels come from."""
    tokenizer: Words | Subwords = field(default_factory=Words)
    """What a token is."""
    model: ClassifierConfig | LogisticConfig = field(default_factory=ClassifierConfig)
    """The switches of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""
    pretraining: Pretraining | None = None
    """What comes before, if anything."""
    padding: Literal["mask", "unknown"] = "mask"
    """Short texts are filled up with nothing that is attended to, or with unknown words."""
    sentences: int = 0
    """Score each sentence alone, at most so many of a text, and join the scores; 0: the text."""

    def __post_init__(self):
        if self.sentences < 0:
            raise ValueError(f"sentences must not be negative, not {self.sentences}")


@dataclass(frozen=True)
class PairSubwords:
    """Byte-pair encoding of sources and targets, learned from the training part."""

    pieces: int = 8000
    """How many pieces, single characters among them; of each side if not joint."""
    joint: bool = True
    """Sources and targets share their pieces."""
    lowercase: bool = False
    """Read and write lower case only."""


@dataclass(frozen=True)
class TranslatorExperiment:
    """Train a `TransformerSeq2Seq` to translate sentences."""

    name: str
    """Names the folder of its runs."""
    data: ParallelText | CopyTask | NumberWords = field(default_factory=ParallelText)
    """Where the pairs of sentences come from."""
    tokenizer: PairSubwords = field(default_factory=PairSubwords)
    """What a token is."""
    model: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    """The switches of the model."""
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
        for name in ("buckets", "beam"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.bleu_sentences < 0:
            raise ValueError("bleu_sentences must not be negative")
        if not self.bleu_sentences and self.training.select in ("bleu", "exact_match"):
            raise ValueError(f"{self.training.select} needs bleu_sentences: at least 1")
        if self.model.pad_id != PAD_ID:
            raise ValueError(f"pad_id is the tokenizer's, {PAD_ID}: leave it out")


Experiment = GeneratorExperiment | ClassifierExperiment | TranslatorExperiment
