"""Tokenizers of folders: their marks, their ends, their streams."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.tokenizers import TEXT, byte_level
from tlite.errors import UserError
from tlite.pretrained.tokenizers import PretrainedTokenizer

tokenizers = pytest.importorskip("tokenizers")


def bert(tmp_path):
    """A folder of a BERT with vocab.txt only."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "##llo", "w", "##o", "cafe"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "config.json").write_text('{"model_type": "bert", "pad_token_id": 0}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}, "mask_token": "[MASK]"}'
    )
    return PretrainedTokenizer.load(tmp_path)


def test_vocabulary_of_bert(tmp_path):
    tokenizer = bert(tmp_path)
    assert tokenizer.encode("Hello CAFÉ wo!").tolist() == [2, 5, 6, 9, 7, 8, 1, 3]
    assert tokenizer.encode("hello", marks=False).tolist() == [5, 6]
    assert tokenizer.decode([2, 5, 6, 9, 3, -1]) == "hello cafe"
    ids = tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.bos_id
    assert ids == (0, 2, 3, 4, None)
    assert len(tokenizer) == 10


def test_truncation_keeps_the_last_mark(tmp_path):
    tokenizer = bert(tmp_path)
    texts = ["hello hello hello", "cafe"]
    found = tokenizer.encode_texts(texts, 5)
    np.testing.assert_array_equal(found, [[2, 5, 6, 5, 3], [2, 9, 3, -1, -1]])
    assert tokenizer.encode_texts(texts).shape == (2, 8)
    assert tokenizer.encode_texts(["hello hello"], 2).tolist() == [[2, 3]]
    assert tokenizer.encode_texts(["hello"], 1).shape == (1, 1)
    assert tokenizer.encode_texts([], 4).shape == (0, 4)


def test_saved_and_opened(tmp_path):
    marks = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    whole = byte_level()
    whole.enable_truncation(3)
    whole.enable_padding(length=9)
    tokenizer = PretrainedTokenizer(whole, marks, {"chat_template": "x", "model_max_length": 7})
    tokenizer.save(tmp_path)
    opened = PretrainedTokenizer.load(tmp_path)
    assert opened.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert opened.decode(opened.encode(TEXT)) == TEXT
    assert (opened.bos_id, opened.eos_id, opened.pad_id) == (0, 1, 2)
    assert opened.settings["chat_template"] == "x"
    assert PretrainedTokenizer.load(tmp_path / "tokenizer.json").eos_id == 1
    assert opened.decode([0, *opened.encode("hello"), 1]) == "hello"
    assert opened.piece_of(0) == "<s>"


@given(ids=st.lists(st.integers(0, 280), max_size=30), part=st.integers(1, 4))
def test_streams(ids, part):
    """All pieces together are the text, and no piece ends within a character."""
    tokenizer = PretrainedTokenizer(_BYTES, {})
    ids = [i for i in ids if i < len(tokenizer)]
    stream = tokenizer.stream()
    pieces = [stream.push(np.array(ids[i : i + part])) for i in range(0, len(ids), part)]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


_BYTES = byte_level("a")


def test_a_stream_never_splits_a_character():
    tokenizer = PretrainedTokenizer(_BYTES, {})
    stream, text = tokenizer.stream(), "a漢字🎉ü"
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert [piece for piece in pieces if piece] == list(text)
    assert stream.finish() == ""
    cut = tokenizer.stream()
    assert cut.push(tokenizer.encode("字")[:2]) == ""
    assert cut.finish() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "x"}}', "\0"])
def test_damaged(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        PretrainedTokenizer.load(tmp_path)


def test_missing(tmp_path):
    with pytest.raises(UserError, match="make one with transformers"):
        PretrainedTokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (tmp_path / "spiece.model").write_bytes(b"x")
    with pytest.raises(UserError, match="make one with transformers"):
        PretrainedTokenizer.load(tmp_path)


def test_marian_has_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    for name in ("vocab.json", "source.spm", "target.spm"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="with transformers' MarianTokenizer"):
        PretrainedTokenizer.load(tmp_path)


def words(vocabulary, unknown="[UNK]"):
    model = tokenizers.models.WordLevel(vocabulary, unk_token=unknown)
    return PretrainedTokenizer(tokenizers.Tokenizer(model), {})


def test_what_has_no_token():
    tokenizer = words({"a": 0, "b": 4_000_000_000})
    assert tokenizer.largest_id == 4_000_000_000
    for text, says in [("c", r"can't encode this text: .*\[UNK\]"), ("b", "the id 4000000000")]:
        with pytest.raises(UserError, match=says):
            tokenizer.encode(text)
        with pytest.raises(UserError, match=says):
            tokenizer.encode_texts(["a", text])


def test_an_empty_text():
    tokenizer = words({"a": 0})
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.encode("").dtype == np.int32
    np.testing.assert_array_equal(tokenizer.encode_texts(["", ""]), [[-1], [-1]])
    np.testing.assert_array_equal(tokenizer.encode_texts(["", "a"]), [[-1], [0]])


def sentence_pieces():
    """A tokenizer whose decoder takes away a text's first space, as those of Llama 2 do."""
    from tokenizers import Tokenizer, decoders, models

    pieces = ["<s>", "<0xE6>", "<0xBC>", "<0xA2>", "▁", "▁a", "▁bc", "d", "▁▁", "e"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.add_special_tokens(["<s>"])
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PretrainedTokenizer(tokenizer, {"bos": "<s>"})


def test_a_stream_after_a_prompt():
    """The first word that is generated keeps its space."""
    tokenizer = sentence_pieces()
    assert tokenizer.decode([0, 5, 6]) == "a bc"
    stream = tokenizer.stream([0, 5])
    assert stream.push([6]) + stream.push([1, 2]) == " bc"
    assert stream.push([3]) == "漢"
    assert stream.finish() == ""
    assert tokenizer.stream([0]).push([5]) == "a"


@given(ids=st.lists(st.integers(0, 9), max_size=12), first=st.integers(0, 12))
def test_streams_of_sentence_pieces(ids, first):
    """Of bytes that are no character, ever more of them are told as such: that comes too late."""
    tokenizer = _PIECES
    stream, whole = tokenizer.stream(), tokenizer.decode(ids)
    told = stream.push(ids[:first])
    after = tokenizer.stream(ids[:first])
    pieces = [after.push([token]) for token in ids[first:]]
    text = told + "".join(pieces) + after.finish()
    assert text == whole or "\N{REPLACEMENT CHARACTER}" in whole
    assert len(text) >= len(whole)


_PIECES = sentence_pieces()
