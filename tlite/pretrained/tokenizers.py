"""The tokenizer of a Hugging Face folder, through the `tokenizers` library; and tlite's as one."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tlite.errors import UserError, disk_errors, needs_extra
from tlite.pretrained.files import read_json
from tlite.text.characters import CharTokenizer
from tlite.text.padding import PADDING, pad
from tlite.text.pairs import END_ID, PairTokenizer
from tlite.text.subwords import SubwordTokenizer

FILE, CONFIG, MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
ROLES = "pad", "bos", "eos", "unk", "mask", "cls", "sep"


class PretrainedTokenizer:
    """Text to tokens and back, with the marks that a model was trained with.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        marks: of the roles pad, bos, eos, unk, mask, cls and sep those that have a token.
        settings: what tokenizer_config.json says besides.
    """

    file_name = FILE
    pad_id: int | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    mask_id: int | None
    cls_id: int | None
    sep_id: int | None

    def __init__(self, tokenizer, marks: dict[str, str], settings: dict[str, Any] | None = None):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self.settings = tokenizer, settings or {}
        self.marks = {role: token for role, token in marks.items() if token and role in ROLES}
        for role in ROLES:
            token = self.marks.get(role)
            setattr(self, f"{role}_id", None if token is None else tokenizer.token_to_id(token))

    @classmethod
    def load(cls, path: str | Path) -> "PretrainedTokenizer":
        """That of a folder, or of a tokenizer.json.

        Raises:
            UserError: it is damaged, missing, or of a kind that has to be converted first.
        """
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        tokenizer = _open(folder)
        found = [read_json(folder / f) for f in (MAP, CONFIG) if (folder / f).is_file()]
        settings, marks = found[-1] if (folder / CONFIG).is_file() else {}, {}
        for role in ROLES:
            for content in found:
                token = content.get(f"{role}_token")
                token = token.get("content") if isinstance(token, dict) else token
                if isinstance(token, str):
                    marks[role] = token
        if (folder / "config.json").is_file():
            theirs = read_json(folder / "config.json")
            for role in ROLES:
                index = theirs.get(f"{role}_token_id")
                index = index[0] if isinstance(index, list) and index else index
                if role not in marks and isinstance(index, int) and index >= 0:
                    marks[role] = tokenizer.id_to_token(index)
        return cls(tokenizer, marks, settings)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, marks: bool = True) -> np.ndarray:
        """Ids (T,) int32, with the marks that belong at its beginning and end unless told."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=marks).ids, np.int32)

    def encode_batch(self, texts: Iterable[str], length: int | None = None) -> np.ndarray:
        """The ids of each text, (B, length) or as long as the longest; past its end -1.

        A text that is too long loses its last pieces, not the marks after them.
        """
        rows = []
        for encoding in self._tokenizer.encode_batch(list(texts)):
            ids, special = encoding.ids, encoding.special_tokens_mask
            if length is not None and len(ids) > length:
                last = next((i for i, mark in enumerate(reversed(special)) if not mark), 0)
                ids = ids[: max(length - last, 0)] + ids[len(ids) - last :]
            rows.append(ids)
        return pad(rows, length, PADDING)

    def decode(self, tokens) -> str:
        """The text of ids (T,), without marks and padding."""
        return self._tokenizer.decode([t for t in np.asarray(tokens).tolist() if t >= 0])

    def piece_of(self, index: int | np.integer) -> str:
        """The piece of an id, as it is shown to a reader."""
        return self._tokenizer.id_to_token(int(index)) or ""

    def stream(self, prompt=()) -> "TextStream":
        """Something that turns ids into text as they come, after those of a prompt."""
        return TextStream(self._tokenizer, prompt)

    def save(self, path: str | Path) -> None:
        """tokenizer.json and tokenizer_config.json in a folder, or tokenizer.json at a path."""
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | self.settings
        settings |= {f"{role}_token": token for role, token in self.marks.items()}
        with disk_errors(folder):
            text = self._tokenizer.to_str(pretty=True)
            (folder / FILE if path.is_dir() else path).write_text(text, encoding="utf-8")
            content = json.dumps(settings, indent=2, ensure_ascii=False)
            (folder / CONFIG).write_text(content, encoding="utf-8")


class TextStream:
    """Ids one after another as text, of which no piece ends within a character."""

    def __init__(self, tokenizer, prompt=()):
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)
        self._ids, self._told = [], 0
        self.push(prompt)  # what follows may begin with a space only because something is before it

    def push(self, tokens) -> str:
        """The text that is certain now; what is missing comes with later ids."""
        text = ""
        for token in np.asarray(tokens).reshape(-1).tolist():
            self._ids.append(token)
            text += self._stream.step(self._tokenizer, token) or ""
        self._told += len(text)
        return text

    def finish(self) -> str:
        """What is left once no id follows."""
        return self._tokenizer.decode(self._ids)[self._told :]


def from_tlite(tokenizer) -> PretrainedTokenizer:
    """A tokenizer of tlite's as one that `transformers.AutoTokenizer` opens, with the same ids.

    Raises:
        UserError: there is no such.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer
    if isinstance(tokenizer, CharTokenizer):
        return from_characters(tokenizer)
    with needs_extra("text"):
        from tokenizers import Tokenizer, processors
    if isinstance(tokenizer, PairTokenizer) and tokenizer.joint:
        content = Tokenizer.from_str(json.dumps(tokenizer.source.to_dict()))
        end = content.id_to_token(END_ID)
        content.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, END_ID)]
        )
        marks = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[START]", "eos": end}
        return PretrainedTokenizer(content, marks)
    if isinstance(tokenizer, SubwordTokenizer):
        content = Tokenizer.from_str(json.dumps(tokenizer.to_dict()))
        return PretrainedTokenizer(content, {"unk": "[UNK]", "pad": "[UNK]"})
    raise UserError(
        f"a {type(tokenizer).__name__} has no counterpart in transformers: train with characters "
        "or subwords (of both languages together) instead"
    )


def from_characters(tokenizer: CharTokenizer) -> PretrainedTokenizer:
    """Byte-pair encoding without merges: each character is a token, with the id it had."""
    with needs_extra("text"):
        from tokenizers import Tokenizer, decoders, models
    ids = {character: index for index, character in enumerate(tokenizer.characters)}
    content = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=tokenizer.unknown))
    content.decoder = decoders.Fuse()
    settings = {"clean_up_tokenization_spaces": False}
    return PretrainedTokenizer(content, {"unk": tokenizer.unknown}, settings)


def _open(folder: Path):
    """The folder's tokenizer.json, or what its older files say."""
    with needs_extra("text"):
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    def file(name: str) -> str:
        return str(folder / name)

    try:
        if (folder / FILE).is_file():
            return Tokenizer.from_file(file(FILE))
        theirs = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        family = theirs.get("model_type")
        if family == "gpt2" and (folder / "merges.txt").is_file():
            tokenizer = Tokenizer(models.BPE.from_file(file("vocab.json"), file("merges.txt")))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.add_special_tokens(["<|endoftext|>"])
            return tokenizer
        if family in ("bert", "distilbert") and (folder / "vocab.txt").is_file():
            settings = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
            lower = settings.get("do_lower_case", True)
            tokenizer = Tokenizer(models.WordPiece.from_file(file("vocab.txt"), unk_token="[UNK]"))
            tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            tokenizer.decoder = decoders.WordPiece()
            marks = [(mark, tokenizer.token_to_id(mark)) for mark in ("[SEP]", "[CLS]")]
            tokenizer.post_processor = processors.BertProcessing(*marks)
            tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
            return tokenizer
    except UserError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the tokenizer in {folder} is damaged: {error}") from error
    raise UserError(
        f"{folder} has no {FILE}: make one with transformers, "
        "AutoTokenizer.from_pretrained(folder, use_fast=True).save_pretrained(folder)"
    )
