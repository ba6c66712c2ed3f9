"""The experiment of a translator and its tokenizer."""

from dataclasses import dataclass, field
from typing import ClassVar

from tlite.config import check_size
from tlite.data.examples import ParallelText
from tlite.data.synthetic import CopyTask, NumberWords
from tlite.experiment import MAX_SUBWORDS, BaseExperiment
from tlite.models.seq2seq import Seq2SeqConfig
from tlite.training.config import TrainingConfig


@dataclass(frozen=True)
class PairSubwords:
    """Byte-pair encoding of sources and targets, learned from the training split."""

    num_subwords: int = 8000
    """Size of the vocabulary, characters and special tokens included; of each side if not joint."""
    joint: bool = True
    """Learn one vocabulary for sources and targets together."""
    lowercase: bool = False
    """Convert sources and targets to lower case."""

    def __post_init__(self):
        check_size("num_subwords", self.num_subwords, MAX_SUBWORDS)


@dataclass(frozen=True)
class TranslatorExperiment(BaseExperiment, sizes="beam", counts="bleu_sentences"):
    """Train a `Seq2Seq` to translate sentences."""

    data_needs: ClassVar[tuple[str, ...]] = ("pairs",)

    data: ParallelText | CopyTask | NumberWords = field(default_factory=ParallelText)
    """Source of the pairs: a class of `tlite.data`, or your frozen dataclass with `pairs(split)`,
    a list of `tlite.data.Pair`."""
    tokenizer: PairSubwords = field(default_factory=PairSubwords)
    """Subwords of both sides."""
    model: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    """Sizes and components of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Optimizer, schedule, batches, precision and checkpoints."""
    buckets: int = 6
    """Number of different lengths to which batches are padded; each is compiled separately."""
    truncate: bool = False
    """Cut sentences that are longer than the model's context; else they are an error."""
    beam: int = 5
    """Number of beams of beam search, whose BLEU is reported beside that of greedy search."""
    length_penalty: float = 0.6
    """Exponent of the length penalty: above 0 longer translations are preferred."""
    bleu_sentences: int = 1000
    """Number of sentences that each validation translates greedily, for the BLEU curve."""

    def __post_init__(self):
        super().__post_init__()
        check_size("buckets", self.buckets, 1000)  # each is compiled separately
        if self.training.per_device_batch_size:
            raise ValueError("per_device_batch_size must be 0: batches are counted in tokens")
        if not self.bleu_sentences and self.training.best_metric.endswith(("bleu", "exact_match")):
            raise ValueError(f"{self.training.best_metric} needs bleu_sentences of at least 1")
