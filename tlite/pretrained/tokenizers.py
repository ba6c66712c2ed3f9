"""Tokenizers of Hugging Face folders, through the `tokenizers` library."""

import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tlite.data.reading import is_regular_file
from tlite.errors import UserError, disk_errors, needs_extra
from tlite.pretrained.files import HUB_NAME, download, read_optional_json
from tlite.text.subwords import byte_pairs, split_long_text
from tlite.text.tokenizer import (
    END,
    PADDING,
    Tokenizer,
    load_hf_tokenizer,
    pad,
    tokenizer_errors,
)

FILE, CONFIG, MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
ROLES = "pad", "bos", "eos", "unk", "mask", "cls", "sep"
BATCH_SIZE = 16  # parts of a long text
END_TOKENS = END, "</s>", "<eos>", "<|end_of_text|>"  # candidates if no file names the end token


class PretrainedTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer` with special tokens by role (`ROLES`) and the other entries of
    tokenizer_config.json (`settings`)."""

    kind = "pretrained"
    num_embeddings: int = 2**31
    """Rows of the model's embedding: larger ids raise an error."""
    pad_id: int | None
    unk_id: int | None
    mask_id: int | None
    cls_id: int | None
    sep_id: int | None

    def __init__(self, tokenizer, special_tokens: dict[str, str], settings: dict | None = None):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.settings = {"clean_up_tokenization_spaces": False} if settings is None else settings
        self.special_tokens = special_tokens
        for role in ROLES:
            token = special_tokens.get(role)
            setattr(self, f"{role}_id", None if token is None else tokenizer.token_to_id(token))
        # GPT-2's unknown token is its end-of-text token, which is a known token.
        self.unknown_id = None if self.unk_id == self.eos_id else self.unk_id

    @classmethod
    def load(cls, path: str | Path) -> "PretrainedTokenizer":
        """Load the tokenizer of a folder, or a file; a damaged or missing one is a UserError."""
        path = Path(path)
        if path.is_file() and path.name != FILE:  # its folder may belong to another model
            return cls(load_hf_tokenizer(path), {}, {})
        folder = path if path.is_dir() else path.parent
        if not (folder / FILE).is_file():
            raise UserError(
                f"{folder} has no {FILE}: make one with transformers, "
                "AutoTokenizer.from_pretrained(folder, use_fast=True).save_pretrained(folder), "
                "or, as Marian has none, encode texts with its MarianTokenizer"
            )
        tokenizer, special_tokens = load_hf_tokenizer(folder / FILE), {}
        files = [read_optional_json(folder, name) for name in (CONFIG, MAP, "config.json")]
        for role in ROLES:
            tokens = [file.get(f"{role}_token") for file in files[:2]]
            tokens = [t.get("content") if isinstance(t, dict) else t for t in tokens]
            ids = files[2].get(f"{role}_token_id")
            ids = ids[:1] if isinstance(ids, list) else [ids]
            ids = [index for index in ids if isinstance(index, int) and 0 <= index < 2**31]
            tokens += map(tokenizer.id_to_token, ids)
            if token := next(filter(None, tokens), None):
                special_tokens[role] = token
        return cls(tokenizer, special_tokens, files[0])

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def max_id(self) -> int:
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """Encode a text as ids (T,) int32; a part without a token or embedding is a UserError."""
        with tokenizer_errors():
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return np.array(self._check_ids(encoding), np.int32)

    def encode_document(self, text: str) -> np.ndarray:
        """Encode a long text as ids (N,), in parallel where GPT-2's pre-tokenizer splits it."""
        from tokenizers import pre_tokenizers

        rule = self._tokenizer.pre_tokenizer
        is_byte_level = isinstance(rule, pre_tokenizers.ByteLevel)
        is_gpt2 = is_byte_level and self._tokenizer.normalizer is None
        if not is_gpt2 or rule.add_prefix_space or not rule.use_regex:
            return self.encode(text, add_special_tokens=False)
        rows, remaining = [], split_long_text(text)
        while batch := list(itertools.islice(remaining, BATCH_SIZE)):
            with tokenizer_errors():
                encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            rows += [np.array(self._check_ids(encoding), np.int32) for encoding in encodings]
        return np.concatenate(rows)

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode texts as ids of any length, with special tokens."""
        return [self._check_ids(encoding) for encoding in self._encode_batch(texts)]

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """Encode texts as ids (B, max_length), or as long as the longest; padded with `pad_id`.

        A longer text is truncated before its final special tokens.
        """
        rows = []
        for encoding in self._encode_batch(texts):
            ids, is_special = self._check_ids(encoding), encoding.special_tokens_mask
            if max_length is not None and len(ids) > max_length:
                last = next((i for i, special in enumerate(reversed(is_special)) if not special), 0)
                ids = ids[: max(max_length - last, 0)] + ids[len(ids) - last :]
            rows.append(ids)
        is_empty = max_length is None and rows and not any(rows)
        return pad(rows, 1 if is_empty else max_length, pad_id)

    def _encode_batch(self, texts: Iterable[str]) -> list[Any]:
        with tokenizer_errors():
            return self._tokenizer.encode_batch(list(texts))

    def _check_ids(self, encoding) -> list[int]:
        """Return the ids; one without an embedding, whose vector would be NaN, is an error."""
        if (largest := max(encoding.ids, default=0)) >= self.num_embeddings:
            token = f"the token {encoding.tokens[encoding.ids.index(largest)]!r} the id {largest}"
            size = f"the model has {self.num_embeddings} tokens only"
            raise UserError(f"the tokenizer gives {token}, but {size}")
        return encoding.ids

    def decode(self, tokens) -> str:
        """Decode ids (T,) to text, without special tokens and padding."""
        return self._tokenizer.decode([t for t in np.asarray(tokens).tolist() if t >= 0])

    def id_to_token(self, index: int | np.integer) -> str:
        """Decode a token, unless that removes a space (\u2581) or ## or can't be printed."""
        if index < 0:
            return ""
        token, text = self._tokenizer.id_to_token(int(index)) or "", self.decode([index])
        is_control = not text.replace("\n", "").replace("\t", "").isprintable()
        is_broken = "\N{REPLACEMENT CHARACTER}" in text  # bytes of a character
        is_marked = token.startswith(("\u2581", "##"))
        return token if not text or is_broken or is_control or is_marked else text

    def byte_sizes(self) -> np.ndarray | None:
        """Return the bytes of text for each token (V,), or None if it is not byte-level."""
        from tokenizers import decoders

        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            return None
        added = self._tokenizer.get_added_tokens_decoder()
        sizes = np.zeros(self.max_id + 1, np.int64)
        for token, index in self._tokenizer.get_vocab().items():
            if index not in added:
                sizes[index] = len(token)  # one character for each byte
            elif not added[index].special:
                sizes[index] = len(token.encode())
        return sizes

    def has_same_vocabulary(self, other: Tokenizer) -> bool:
        """True if every id is the same token in both."""
        is_pretrained = isinstance(other, PretrainedTokenizer)
        return is_pretrained and self._tokenizer.get_vocab() == other._tokenizer.get_vocab()

    def to_hugging_face(self) -> tuple[Any, ...]:
        return self._tokenizer, self.special_tokens, self.settings

    def save(self, path: str | Path, **settings) -> None:
        """Write a folder's tokenizer.json, or a file, and tokenizer_config.json with `settings`."""
        path = Path(path)
        file = path / FILE if path.is_dir() else path
        tokens = {f"{role}_token": token for role, token in self.special_tokens.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | self.settings | settings | tokens
        with disk_errors(file.parent):
            file.write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")
            content = json.dumps(config, indent=2, ensure_ascii=False)
            (file.parent / CONFIG).write_text(content, encoding="utf-8")


def learn_bpe(texts: Iterable[str], vocab_size: int = 8000) -> PretrainedTokenizer:
    """Learn byte-level byte-pair merges (GPT-2, Radford et al. 2019, section 2.2).

    `vocab_size` includes the 256 bytes and END, which is id 0, the bos and the eos token.
    """
    with needs_extra("text"):
        from tokenizers import pre_tokenizers, trainers

    tokenizer = byte_pairs()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    tokenizer.train_from_iterator(
        (part for text in texts for part in split_long_text(text)), trainer
    )
    tokenizer.encode_special_tokens = True  # an end token typed in a text does not end it
    return PretrainedTokenizer(tokenizer, {"bos": END, "eos": END})


def open_tokenizer(name: str | Path, sha256: str = "") -> tuple[PretrainedTokenizer, str]:
    """Load the tokenizer of a file, folder or hub name, `without_special_tokens`, and its SHA-256.

    A SHA-256 other than `sha256` is a UserError.
    """
    path, name = Path(name), str(name)
    if not (name and (path.is_dir() or is_regular_file(path))):
        is_hub_name = HUB_NAME.fullmatch(name) or path.name == name
        if not name or not is_hub_name or path.suffix in (".json", ".txt"):
            raise UserError(f"there is no tokenizer {name!r}: name a tokenizer.json, or its folder")
        path = download(name, "tokenizer", [FILE, CONFIG, MAP, "config.json"])
    tokenizer = PretrainedTokenizer.load(path)
    file = path / FILE if path.is_dir() else path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if sha256 not in ("", digest):
        raise UserError(f"the tokenizer {name} has changed: its SHA-256 is {digest}, not {sha256}")
    return without_special_tokens(tokenizer), digest


def without_special_tokens(tokenizer: PretrainedTokenizer) -> PretrainedTokenizer:
    """Return the tokenizer that adds no special tokens, and encodes typed ones as plain text.

    Its bos token is the eos token: a text begins where the one before has ended.
    """
    library, special_tokens = tokenizer._tokenizer, dict(tokenizer.special_tokens)
    library.post_processor = None
    library.encode_special_tokens = True  # not stored in a file
    candidates = (token for token in END_TOKENS if library.token_to_id(token) is not None)
    if "eos" not in special_tokens and (end := next(candidates, None)):
        special_tokens["eos"] = end
    if "eos" in special_tokens:
        special_tokens["bos"] = special_tokens["eos"]
    return PretrainedTokenizer(library, special_tokens, tokenizer.settings)
