"""Tokenizers of folders: their marks, their ends, their streams."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.pretrained.tokenizers import PretrainedTokenizer, from_tlite

tokenizers = pytest.importorskip("tokenizers")
TEXT = "hello wörld 漢字 🎉🎉 hello"


def byte_level(trained=TEXT):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, show_progress=False,
        special_tokens=["<s>", "</s>", "<pad>"],
    )  # fmt: skip
    tokenizer.train_from_iterator([trained], trainer)
    return tokenizer


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
    found = tokenizer.encode_batch(texts, 5)
    np.testing.assert_array_equal(found, [[2, 5, 6, 5, 3], [2, 9, 3, -1, -1]])
    assert tokenizer.encode_batch(texts).shape == (2, 8)
    assert tokenizer.encode_batch(["hello hello"], 2).tolist() == [[2, 3]]
    assert tokenizer.encode_batch(["hello"], 1).shape == (1, 1)
    assert tokenizer.encode_batch([], 4).shape == (0, 4)


def test_vocabulary_and_merges_of_gpt2(tmp_path):
    whole = byte_level()
    whole.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = PretrainedTokenizer.load(tmp_path)
    assert tokenizer.encode(TEXT).tolist() == whole.encode(TEXT).ids
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


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
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode(TEXT) == opened.encode(TEXT).tolist()
    assert theirs.eos_token == "</s>"


@settings(max_examples=200, deadline=None)
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


def test_without_counterpart():
    with pytest.raises(UserError, match="object has no counterpart"):
        from_tlite(object())
