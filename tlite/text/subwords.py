"""Subwords learned from a text, through the `tokenizers` library: BPE or WordPiece."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tlite.errors import UserError, needs_extra
from tlite.text.padding import PADDING, pad


class SubwordTokenizer:
    """Text to subwords and back. Made by `train` or `load`."""

    file_name = "subwords.json"

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # "[UNK]" typed in a text is no special piece

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        kind: Literal["bpe", "wordpiece"] = "bpe",
        vocabulary_size: int = 8000,
        *,
        lowercase: bool = True,
        specials: tuple[str, ...] = ("[UNK]",),
    ) -> "SubwordTokenizer":
        """Learn the pieces: byte-pair merges (Sennrich et al. 2016) or WordPiece.

        Args:
            texts: what to learn from; the training part only.
            vocabulary_size: pieces, single characters and `specials` among them; all single
                characters are kept, even if they are more.
            specials: get the first ids, in this order; the unknown piece "[UNK]" is one of them.
        """
        with needs_extra("text"):
            from tokenizers import (
                Tokenizer,
                decoders,
                models,
                normalizers,
                pre_tokenizers,
                trainers,
            )
        # Both are learned as merges of pieces, with "\u2581" where a word begins: the library's own
        # trainer for WordPiece breaks ties by chance.
        splits = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
        if kind == "wordpiece":
            splits = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace()]
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
        tokenizer.decoder = decoders.Metaspace()
        steps = [normalizers.NFC()] + [normalizers.Lowercase()] * lowercase
        tokenizer.normalizer = normalizers.Sequence(steps)
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary_size, special_tokens=list(specials), show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        if kind == "wordpiece":
            pieces = _as_wordpieces(tokenizer.get_vocab(), specials, vocabulary_size)
            tokenizer.model = models.WordPiece(pieces, unk_token="[UNK]")
            tokenizer.pre_tokenizer = splits[0]
            tokenizer.decoder = decoders.WordPiece()
        return cls(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def unknown_id(self) -> int:
        return self._tokenizer.token_to_id("[UNK]")

    def id_of(self, piece: str) -> int:
        """The id of a piece, a special one say.

        Raises:
            KeyError: there is no such piece.
        """
        if (index := self._tokenizer.token_to_id(piece)) is None:
            raise KeyError(piece)
        return index

    def piece_of(self, index: int | np.integer) -> str:
        """The piece of an id, as it is shown to a reader."""
        return self._tokenizer.id_to_token(int(index))

    def encode(self, text: str) -> np.ndarray:
        """Ids (T,) of the pieces of a text."""
        return np.array(self._tokenizer.encode(text).ids, np.int32)

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """The pieces of each text as ids (B, T); what is past a text's end is `pad_id`."""
        rows = [ids[:max_length] for ids in self.encode_ids(texts)]
        return pad(rows, max_length, pad_id)

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """The pieces of each text as ids, as many as there are."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def decode(self, tokens) -> str:
        """The text of the ids (T,), without special pieces, padding and spaces in front."""
        pieces = [t for t in np.asarray(tokens).tolist() if t >= 0]
        return self._tokenizer.decode(pieces).lstrip(" ")  # it takes away one space only

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text as they are shown to a reader."""
        return self._tokenizer.encode(text).tokens

    def to_dict(self) -> dict:
        return json.loads(self._tokenizer.to_str())

    @classmethod
    def from_dict(cls, content: Any) -> "SubwordTokenizer":
        """The inverse of `to_dict`.

        Raises:
            ValueError: the content is none of it.
        """
        with needs_extra("text"):
            from tokenizers import Tokenizer
        try:
            return cls(Tokenizer.from_str(json.dumps(content)))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(str(error)) from error

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "SubwordTokenizer":
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not a tokenizer that tlite has saved") from error


def _as_wordpieces(pieces: dict[str, int], specials: tuple[str, ...], size: int) -> dict[str, int]:
    """Pieces in the notation of WordPiece: "##" before those that go on with a word."""
    learned = [piece for piece in sorted(pieces, key=pieces.get) if piece not in specials]
    letters = [piece for piece in learned if len(piece) == 1 and piece != "\u2581"]
    both = [*letters, *("\u2581" + letter for letter in letters)]  # a word may begin with any
    merged = [piece for piece in learned if piece not in {*both, "\u2581"}]
    chosen = both + merged[: max(size - len(specials) - len(both), 0)]
    marked = [piece[1:] if piece[0] == "\u2581" else "##" + piece for piece in chosen]
    return {piece: index for index, piece in enumerate([*specials, *marked])}
