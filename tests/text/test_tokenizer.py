"""What all tokenizers have: one protocol, words that are not known, files."""

import pytest
from tokenizers import Tokenizer as Content
from tokenizers import models, pre_tokenizers

from tlite.errors import UserError
from tlite.pretrained import PretrainedTokenizer
from tlite.text import (
    ByteTokenizer,
    CharTokenizer,
    IndexTokenizer,
    NgramTokenizer,
    NumberTokenizer,
    PairTokenizer,
    SubwordTokenizer,
    Tokenizer,
)

TEXT = "2 10 3"


def pretrained():
    content = Content(models.WordLevel({"2": 0, "10": 1, "3": 2, "?": 3}, unk_token="?"))
    content.pre_tokenizer = pre_tokenizers.Whitespace()
    return PretrainedTokenizer(content, {"unk": "?"})


EACH = {
    "characters": CharTokenizer(TEXT),
    "bytes": ByteTokenizer(),
    "numbers": NumberTokenizer(12),
    "words": IndexTokenizer(["2", "10", "3"], marks=True),
    "n-grams": NgramTokenizer(["2", "10", "3"], ["2\t10"], 2, 0, marks=True),
    "subwords": SubwordTokenizer.train([TEXT], 20),
    "pairs": PairTokenizer.train([TEXT], ["zwei"], 20),
    "pretrained": pretrained(),
}
each = pytest.mark.parametrize("tokenizer", EACH.values(), ids=EACH)


@each
def test_all_are_tokenizers(tokenizer, tmp_path):
    assert isinstance(tokenizer, Tokenizer)
    (ids,) = tokenizer.encode_ids([TEXT])
    assert tokenizer.encode_texts([TEXT])[0].tolist() == list(ids)
    assert max(ids) <= tokenizer.largest_id
    assert tokenizer.pieces(TEXT, 2) == tokenizer.pieces(TEXT)[:2] != []
    assert isinstance(tokenizer.piece_of(1), str)
    assert tokenizer.unknown_in(TEXT) == []
    tokenizer.save(tmp_path / tokenizer.file_name)
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["words", "n-grams", "subwords", "pairs", "pretrained"])
def test_unknown_words_are_named_once_and_in_order(kind):
    assert EACH[kind].unknown_in("y 10 x 2 y") == ["y", "x"]


def test_the_mark_between_texts_is_no_unknown_word():
    content = pretrained().to_hugging_face().content
    tokenizer = PretrainedTokenizer(content, {"unk": "?", "eos": "?"})
    assert tokenizer.unknown_in("2 ?") == []


@pytest.mark.parametrize("kind", ["characters", "bytes", "subwords", "pairs", "pretrained"])
def test_those_of_transformers_have_the_same_ids(kind):
    theirs = PretrainedTokenizer(*EACH[kind].to_hugging_face())
    assert theirs.encode(TEXT).tolist() == EACH[kind].encode(TEXT).tolist()


@pytest.mark.parametrize("kind", ["numbers", "words", "n-grams"])
def test_without_counterpart(kind):
    with pytest.raises(UserError, match="Tokenizer has no counterpart in transformers"):
        EACH[kind].to_hugging_face()


JSON = pytest.mark.parametrize("kind", ["characters", "bytes", "numbers", "subwords", "pairs"])
DAMAGED = ["", "{", "[]", "3", "null", "text", "{}", '{"kind": []}', '{"source": {}}', "[" * 10**5]
OF_OTHERS = [
    '{"characters": "a", "unknown": ""}',
    '{"kind": "numbers", "size": []}',
    '{"model": 3}',
]


@JSON
@pytest.mark.parametrize("content", [*DAMAGED, *OF_OTHERS, b"\xff\xfe"], ids=lambda c: str(c[:20]))
def test_a_damaged_file_is_named(kind, content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=f"{path} is not a tokenizer that tlite has saved"):
        EACH[kind].load(path)


@JSON
def test_half_a_file_a_file_of_another_kind_and_none_are_told(kind, tmp_path):
    path = tmp_path / "tokenizer.json"
    EACH[kind].save(path)
    path.write_text(path.read_text()[:-2])
    with pytest.raises(UserError, match="is not a tokenizer"):
        EACH[kind].load(path)
    EACH["pairs" if kind != "pairs" else "subwords"].save(path)
    with pytest.raises(UserError, match="is not a tokenizer"):
        EACH[kind].load(path)
    with pytest.raises(UserError, match=r"can't read .*missing\.json: No such file"):
        EACH[kind].load(tmp_path / "missing.json")
