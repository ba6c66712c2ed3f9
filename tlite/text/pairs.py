"""Subwords for both sides of a translation, learned together or apart."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tlite.errors import UserError
from tlite.text.padding import pad
from tlite.text.subwords import SubwordTokenizer

SPECIALS = ("[PAD]", "[UNK]", "[START]", "[END]")
PAD_ID, _, START_ID, END_ID = range(4)


class PairTokenizer:
    """A tokenizer of source sentences and one of targets, which may be the same."""

    file_name = "subwords.json"

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
        settings = {"vocabulary_size": pieces, "lowercase": lowercase, "specials": SPECIALS}
        if joint:
            tokenizer = SubwordTokenizer.train([*sources, *targets], "bpe", **settings)
            return cls(tokenizer, tokenizer)
        return cls(*(SubwordTokenizer.train(t, "bpe", **settings) for t in (sources, targets)))

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def __len__(self) -> int:
        return len(self.target)

    def encode_sources(self, texts: Iterable[str]) -> list[np.ndarray]:
        """For each sentence its pieces and [END]."""
        return [np.r_[ids, END_ID].astype(np.int32) for ids in self.source.encode_ids(texts)]

    def encode_targets(self, texts: Iterable[str]) -> list[np.ndarray]:
        """For each sentence [START], its pieces and [END]."""
        return [
            np.r_[START_ID, ids, END_ID].astype(np.int32) for ids in self.target.encode_ids(texts)
        ]

    def decode(self, tokens) -> str:
        """The target sentence (T,) up to its end, without special pieces."""
        ids = np.asarray(tokens)
        ends = np.flatnonzero(ids == END_ID)
        return self.target.decode(ids[: ends[0]] if len(ends) else ids)

    def save(self, path: str | Path) -> None:
        sides = {"source": self.source.to_dict()}
        if not self.joint:
            sides["target"] = self.target.to_dict()
        Path(path).write_text(json.dumps(sides, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "PairTokenizer":
        try:
            sides = json.loads(Path(path).read_text(encoding="utf-8"))
            source = SubwordTokenizer.from_dict(sides["source"])
            joint = "target" not in sides
            return cls(source, source if joint else SubwordTokenizer.from_dict(sides["target"]))
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is not a tokenizer that tlite has saved") from error


def pad_tokens(rows: Sequence[np.ndarray], length: int | None = None) -> np.ndarray:
    """The rows, filled up with [PAD]: int32 (B, T)."""
    return pad(rows, length, PAD_ID)
