"""The tokenizer of a Hugging Face folder, through the `tokenizers` library; and tlite's as one."""

import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tlite.data.reading import is_there
from tlite.errors import UserError, disk_errors, needs_extra
from tlite.pretrained.files import HUB_NAME, download, json_of
from tlite.text.subwords import END, byte_pairs, parts
from tlite.text.tokenizer import PADDING, Tokenizer, encoding_by_library, pad, read_by_library

FILE, CONFIG, MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
ROLES = "pad", "bos", "eos", "unk", "mask", "cls", "sep"
AT_ONCE = 16  # parts of a long text
ENDS = END, "</s>", "<eos>", "<|end_of_text|>"  # marks that end a text, where nothing says which


class PretrainedTokenizer(Tokenizer):
    """Text to tokens and back, with the marks that a model was trained with.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        marks: of the roles pad, bos, eos, unk, mask, cls and sep those that have a token.
        settings: what tokenizer_config.json says besides.
    """

    kind = "pretrained"
    limit: int = 2**31
    """Above all ids that may be given: the rows of the embedding, where it is known."""
    pad_id: int | None
    unk_id: int | None
    mask_id: int | None
    cls_id: int | None
    sep_id: int | None

    def __init__(self, tokenizer, marks: dict[str, str], settings: dict[str, Any] | None = None):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.settings = {"clean_up_tokenization_spaces": False} if settings is None else settings
        self.marks = marks
        for role in ROLES:
            token = self.marks.get(role)
            setattr(self, f"{role}_id", None if token is None else tokenizer.token_to_id(token))
        # GPT-2's mark between texts stands for what is unknown, too.
        self.unknown_id = None if self.unk_id == self.eos_id else self.unk_id

    @classmethod
    def load(cls, path: str | Path) -> "PretrainedTokenizer":
        """That of a folder, or of a tokenizer.json.

        Raises:
            UserError: it is damaged, or missing.
        """
        path = Path(path)
        if path.is_file() and path.name != FILE:  # of another model's folder, for all we know
            return cls(read_by_library(path), {}, {})
        folder = path if path.is_dir() else path.parent
        if not (folder / FILE).is_file():
            raise UserError(
                f"{folder} has no {FILE}: make one with transformers, "
                "AutoTokenizer.from_pretrained(folder, use_fast=True).save_pretrained(folder); "
                "of Marian, which can't have one, encode texts with transformers' MarianTokenizer"
            )
        tokenizer = read_by_library(folder / FILE)
        settings, theirs, marks = json_of(folder, CONFIG), json_of(folder, "config.json"), {}
        for content, role in itertools.product((json_of(folder, MAP), settings), ROLES):
            token = content.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            marks |= {role: token} if token else {}
        for role in ROLES:
            index = theirs.get(f"{role}_token_id")
            index = index[0] if isinstance(index, list) and index else index
            known = isinstance(index, int) and 0 <= index < 2**31
            if known and (token := tokenizer.id_to_token(index)):
                marks.setdefault(role, token)
        return cls(tokenizer, marks, settings)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def largest_id(self) -> int:
        """The largest id of a token; -1 if there is none."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str, marks: bool = True) -> np.ndarray:
        """Ids (T,) int32, with the marks that belong at its beginning and end unless told.

        Raises:
            UserError: a part of the text has no token, or one that is not below `limit`.
        """
        with encoding_by_library():
            encoding = self._tokenizer.encode(text, add_special_tokens=marks)
        return np.array(self._ids_of(encoding), np.int32)

    def encode_long(self, text: str) -> np.ndarray:
        """Ids (N,) of a text that may have hundreds of megabytes, without marks.

        A text is cut into parts where GPT-2's rule cuts it too, which are encoded side by side;
        with another rule than its it is encoded as a whole.
        """
        from tokenizers import pre_tokenizers

        rule = self._tokenizer.pre_tokenizer
        theirs = isinstance(rule, pre_tokenizers.ByteLevel) and self._tokenizer.normalizer is None
        if not theirs or rule.add_prefix_space or not rule.use_regex:
            return self.encode(text, marks=False)
        rows, left = [], parts(text)
        while some := list(itertools.islice(left, AT_ONCE)):
            found = self._tokenizer.encode_batch_fast(some, add_special_tokens=False)
            rows += [np.array(encoding.ids, np.int32) for encoding in found]
        return np.concatenate(rows)

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text with its marks, as many as there are."""
        return [ids for ids, _ in self._encode_all(texts)]

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """The ids of each text, (B, max_length) or as long as the longest; past its end `pad_id`.

        A text that is too long loses its last pieces, not the marks after them. Of texts without
        any token there is one column, of padding.

        Raises:
            UserError: a part of a text has no token, or one that is not below `limit`.
        """
        rows = []
        for ids, special in self._encode_all(texts):
            if max_length is not None and len(ids) > max_length:
                last = next((i for i, mark in enumerate(reversed(special)) if not mark), 0)
                ids = ids[: max(max_length - last, 0)] + ids[len(ids) - last :]
            rows.append(ids)
        if max_length is None and rows and not any(rows):
            max_length = 1
        return pad(rows, max_length, pad_id)

    def _encode_all(self, texts: Iterable[str]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text, and which of them are marks."""
        with encoding_by_library():
            encodings = self._tokenizer.encode_batch(list(texts))
        return [(self._ids_of(encoding), encoding.special_tokens_mask) for encoding in encodings]

    def _ids_of(self, encoding) -> list[int]:
        """Its ids. Of an id past the embedding's table the vector would be NaN."""
        if (largest := max(encoding.ids, default=0)) >= self.limit:
            piece = encoding.tokens[encoding.ids.index(largest)]
            raise UserError(
                f"the tokenizer gives the token {piece!r} the id {largest}, but the model has "
                f"{self.limit} tokens only"
            )
        return encoding.ids

    def decode(self, tokens) -> str:
        """The text of ids (T,), without marks and padding."""
        return self._tokenizer.decode([t for t in np.asarray(tokens).tolist() if t >= 0])

    def piece_of(self, index: int | np.integer) -> str:
        """The piece of an id, as it is shown to a reader.

        Pieces of bytes are written with letters of their own, which decoding takes back. Where it
        would take away a space (\u2581) or a join (##) as well, the piece is clearer.
        """
        if index < 0:
            return ""
        piece, text = self._tokenizer.id_to_token(int(index)) or "", self.decode([index])
        hidden = not text.replace("\n", "").replace("\t", "").isprintable()  # control characters
        broken = "\N{REPLACEMENT CHARACTER}" in text  # part of a character
        keep = not text or broken or hidden or piece.startswith(("\u2581", "##"))
        return piece if keep else text

    def byte_sizes(self) -> np.ndarray | None:
        """Bytes of text that each token stands for (V,), of a tokenizer of bytes; else None."""
        from tokenizers import decoders

        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            return None
        marks = self._tokenizer.get_added_tokens_decoder()
        sizes = np.zeros(self.largest_id + 1, np.int64)
        for piece, index in self._tokenizer.get_vocab().items():  # each letter of one is a byte
            mark = marks.get(index)
            sizes[index] = (
                len(piece) if mark is None else 0 if mark.special else len(piece.encode())
            )
        return sizes

    def has_pieces_of(self, other: Tokenizer) -> bool:
        """Whether each id stands for the same piece in both."""
        of_library = isinstance(other, PretrainedTokenizer)
        return of_library and self._tokenizer.get_vocab() == other._tokenizer.get_vocab()

    def to_hugging_face(self) -> tuple[Any, ...]:
        return self._tokenizer, self.marks, self.settings

    def save(self, path: str | Path, **changes) -> None:
        """tokenizer.json and tokenizer_config.json in a folder, or tokenizer.json at a path.

        Args:
            changes: settings that tokenizer_config.json says otherwise.
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | self.settings | changes
        settings |= {f"{role}_token": token for role, token in self.marks.items()}
        with disk_errors(folder):
            text = self._tokenizer.to_str(pretty=True)
            (folder / FILE if path.is_dir() else path).write_text(text, encoding="utf-8")
            content = json.dumps(settings, indent=2, ensure_ascii=False)
            (folder / CONFIG).write_text(content, encoding="utf-8")


def learn_bpe(texts: Iterable[str], pieces: int = 8000):
    """Byte-pair merges of bytes, as GPT-2's: a `PretrainedTokenizer` with a mark for the end.

    ("Language models are unsupervised multitask learners", Radford et al. 2019, section 2.2.)

    Args:
        texts: what to learn from; the training part only.
        pieces: how many, the 256 bytes and the mark "<|endoftext|>" (id 0) among them; fewer where
            the texts have no more.
    """
    with needs_extra("text"):
        from tokenizers import pre_tokenizers, trainers

    content = byte_pairs()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    content.train_from_iterator((part for text in texts for part in parts(text)), trainer)
    content.encode_special_tokens = True  # the mark typed in a text is no end of it
    return PretrainedTokenizer(content, {"bos": END, "eos": END})


def open_tokenizer(name: str | Path, sha256: str = "") -> tuple[PretrainedTokenizer, str]:
    """The tokenizer of a tokenizer.json, of its folder or of a name on the hub; and its SHA-256.

    It puts no marks around a text, and takes those that are typed in one as letters: a text
    can't end itself.

    Raises:
        UserError: there is none, it is damaged, or not the one of this SHA-256.
    """
    path, name = Path(name), str(name)
    if not (name and (path.is_dir() or is_there(path))):
        on_hub = HUB_NAME.fullmatch(name) or path.name == name
        if not (name and on_hub) or path.suffix in (".json", ".txt"):
            raise UserError(f"there is no tokenizer {name!r}: name a tokenizer.json, or its folder")
        path = download(name, "tokenizer", [FILE, CONFIG, MAP, "config.json"])
    tokenizer = PretrainedTokenizer.load(path)
    file = path / FILE if path.is_dir() else path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if sha256 not in ("", digest):
        raise UserError(f"the tokenizer {name} has changed: its SHA-256 is {digest}, not {sha256}")
    return plain(tokenizer), digest


def plain(tokenizer: PretrainedTokenizer) -> PretrainedTokenizer:
    """The tokenizer without marks around a text; those typed in one are letters.

    A text begins with the mark that has ended the one before.
    """
    content, marks = tokenizer._tokenizer, dict(tokenizer.marks)
    content.post_processor = None
    content.encode_special_tokens = True  # not kept in a file
    known = (mark for mark in ENDS if content.token_to_id(mark) is not None)
    if "eos" not in marks and (end := next(known, None)):
        marks["eos"] = end
    if "eos" in marks:
        marks["bos"] = marks["eos"]
    return PretrainedTokenizer(content, marks, tokenizer.settings)
