"""Sentences and their translations: subwords of both sides, learned together or apart; BLEU."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tlite.errors import needs_extra
from tlite.text.subwords import SubwordTokenizer
from tlite.text.tokenizer import Tokenizer, pad

SPECIALS = ("[PAD]", "[UNK]", "[START]", "[END]")
PAD_ID, UNKNOWN_ID, START_ID, END_ID = range(4)


class PairTokenizer(Tokenizer):
    """A tokenizer of source sentences and one of targets, which may be the same.

    It encodes sources and decodes targets.
    """

    kind, file_name = "pairs", "subwords.json"
    unknown_id = UNKNOWN_ID

    def __init__(self, source: SubwordTokenizer, target: SubwordTokenizer):
        self.source, self.target = source, target

    @classmethod
    def train(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        pieces: int,
        *,
        joint: bool = True,
        lowercase: bool = False,
    ) -> "PairTokenizer":
        """Byte-pair merges (Sennrich et al. 2016) of the training part.

        Args:
            pieces: of both sides together if `joint` ("joint BPE"), else of each.
        """
        texts = [[*sources, *targets]] if joint else [sources, targets]
        settings = {"vocabulary_size": pieces, "lowercase": lowercase, "specials": SPECIALS}
        sides = [SubwordTokenizer.train(side, **settings) for side in texts]
        return cls(sides[0], sides[-1])

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def __len__(self) -> int:
        return len(self.target)

    def encode(self, text: str) -> np.ndarray:
        """The ids (T,) of a source: its pieces and [END]."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Iterable[str]) -> list[np.ndarray]:
        """For each source its pieces and [END]."""
        return [np.r_[ids, END_ID].astype(np.int32) for ids in self.source.encode_ids(texts)]

    encode_ids = encode_sources

    def encode_targets(self, texts: Iterable[str]) -> list[np.ndarray]:
        """For each target [START], its pieces and [END]."""
        rows = self.target.encode_ids(texts)
        return [np.r_[START_ID, ids, END_ID].astype(np.int32) for ids in rows]

    def decode(self, tokens) -> str:
        """The target sentence (T,) up to its end, without special pieces."""
        ids = np.asarray(tokens)
        ends = np.flatnonzero(ids == END_ID)
        return self.target.decode(ids[: ends[0]] if len(ends) else ids)

    def piece_of(self, index: int | np.integer) -> str:
        """The piece of a target's id."""
        return self.target.piece_of(index)

    def pieces(self, text: str, max_length: int | None = None) -> list[str]:
        """The pieces of a source."""
        return self.source.pieces(text, max_length)

    def to_hugging_face(self) -> tuple[Any, ...]:
        """The subwords of both sides, with [END] after each text."""
        if not self.joint:
            return super().to_hugging_face()
        with needs_extra("text"):
            from tokenizers.processors import TemplateProcessing
        content, _ = self.source.to_hugging_face()
        end = [("[END]", END_ID)]
        content.post_processor = TemplateProcessing(single="$A [END]", special_tokens=end)
        return content, dict(zip(("pad", "unk", "bos", "eos"), SPECIALS, strict=True))

    def to_dict(self) -> dict[str, Any]:
        sides = {"source": self.source.to_dict()}
        return sides if self.joint else sides | {"target": self.target.to_dict()}

    @classmethod
    def from_dict(cls, content: Any) -> "PairTokenizer":
        source = SubwordTokenizer.from_dict(content["source"])
        joint = "target" not in content
        return cls(source, source if joint else SubwordTokenizer.from_dict(content["target"]))


def pad_tokens(rows: Sequence[np.ndarray], length: int | None = None) -> np.ndarray:
    """The rows, filled up with [PAD]: int32 (B, T)."""
    return pad(rows, length, PAD_ID)


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> tuple[float, str]:
    """Corpus BLEU (0 to 100) of whole, untokenised sentences, and sacrebleu's signature.

    sacrebleu tokenises both sides itself (13a), and names in its signature how BLEU was computed.
    With `lowercase` it is the figure that papers on Multi30k call lower-cased and tokenised.
    """
    with needs_extra("text"):
        from sacrebleu.metrics import BLEU
    metric = BLEU(lowercase=lowercase, tokenize="13a")
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of the hypotheses that are the reference, to the letter."""
    pairs = list(zip(hypotheses, references, strict=True))
    return sum(hypothesis == reference for hypothesis, reference in pairs) / len(pairs)
