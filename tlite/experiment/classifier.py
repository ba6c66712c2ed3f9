"""The experiment of a classifier, its tokenizers, and its pretraining."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tlite.config import Config, check_size
from tlite.data.examples import LabelledText
from tlite.data.reading import locate
from tlite.data.synthetic import SyntheticReviews
from tlite.experiment import MAX_SUBWORDS, BaseExperiment, Pretrained
from tlite.models.classifier import ClassifierConfig, LogisticConfig
from tlite.training.config import TrainingConfig


@dataclass(frozen=True)
class Words:
    """One token for each word of the simplified text."""

    min_document_frequency: int = 4
    """Number of training texts in which a word must occur to be in the vocabulary."""
    marks: bool = False
    """Make tokens of punctuation marks and one-letter words too; else they are left out."""
    word_ngrams: int = 0
    """Largest n of word n-grams. A linear model of n-grams, fitted first by naive Bayes and L-BFGS
    (Wang and Manning 2012), is added to the transformer's logits. 0: no word n-grams."""
    character_ngrams: int = 0
    """Largest n of character n-grams, of the same linear model. 0: none."""

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
    """Subwords, learned from the training split by byte-pair encoding."""

    num_subwords: int = 8000
    """Size of the vocabulary, characters and special tokens included."""

    def __post_init__(self):
        check_size("num_subwords", self.num_subwords, MAX_SUBWORDS)


@dataclass(frozen=True)
class Pretraining(
    Config,
    counts="pretraining_steps",
    sizes="pretraining_batch_size",
    positive="pretraining_learning_rate",
    rates="pretraining_dropout",
):
    """Pretrain the embedding and the blocks of a classifier as a generator of its texts."""

    pretraining_steps: int = 2000
    """Number of steps of the generator's training; 0: no pretraining."""
    pretraining_batch_size: int = 32
    """Batch size, in windows of the model's context."""
    pretraining_learning_rate: float = 3e-3
    """Peak learning rate of the generator's training, which has a cosine schedule."""
    pretraining_dropout: float = 0.1
    """Dropout rate of the generator."""
    unlabelled: tuple[str, ...] = ()
    """Files of further texts, whose labels are ignored."""


@dataclass(frozen=True)
class ClassifierExperiment(BaseExperiment, counts="sentences", positive="ngram_l2"):
    """Train a classifier to predict the labels of texts."""

    data_needs: ClassVar[tuple[str, ...]] = ("classes", "examples")

    data: LabelledText | SyntheticReviews = field(default_factory=LabelledText)
    """Source of texts and labels: a class of `tlite.data`, or your frozen dataclass with
    `classes`, their names, and `examples(split)`, a list of `tlite.data.Example`."""
    tokenizer: Words | Subwords = field(default_factory=Words)
    """Words or subwords."""
    model: ClassifierConfig | LogisticConfig = field(default_factory=ClassifierConfig)
    """Sizes and components of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Optimizer, schedule, batches, precision and checkpoints."""
    pretraining: Pretraining | None = None
    """Pretraining of the blocks as a generator of the same texts."""
    init_from: Pretrained | None = None
    """Hugging Face folder or hub name of the model that training starts from. Its config sets the
    model's sizes: do not set them here, except a smaller context."""
    padding: Literal["mask", "unknown"] = "mask"
    """Pad short texts with masked positions, or with unknown words."""
    sentences: int = 0
    """Maximum number of sentences that are scored separately; 0: score the text at once."""
    ngram_l2: float = 1e-5
    """L2 penalty l2 / 2 |w|^2 of the linear model of n-grams, added to its mean loss."""

    def __post_init__(self):
        super().__post_init__()
        if self.pretraining and self.init_from:
            raise ValueError("pretraining and init_from exclude each other: leave one out")

    def with_paths(self, moved: bool = False) -> "BaseExperiment":
        experiment, stage = super().with_paths(moved), self.pretraining
        if stage is None or getattr(self.data, "hub", ""):
            return experiment
        unlabelled = tuple(locate(name, moved=moved) for name in stage.unlabelled)
        stage = dataclasses.replace(stage, unlabelled=unlabelled)
        return dataclasses.replace(experiment, pretraining=stage)

    def further_inputs(self) -> list[str]:
        paths = super().further_inputs()
        if self.unlabelled:
            return [*paths, *self.data.input_paths("training", self.unlabelled)]
        return paths

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """Files of further texts that pretraining reads."""
        stage = self.pretraining
        return stage.unlabelled if stage and stage.pretraining_steps else ()
