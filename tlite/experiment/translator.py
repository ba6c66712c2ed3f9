"""The experiment of a translator and its tokenizer."""

from dataclasses import dataclass, field
from typing import ClassVar

from tlite.config import check_size, validate_fields
from tlite.data.examples import ParallelText
from tlite.data.synthetic import CopyTask, NumberWords
from tlite.experiment import MOST_PIECES, BaseExperiment
from tlite.models.seq2seq import Seq2SeqConfig
from tlite.training.config import TrainingConfig


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
