"""Tokenizers of others: their marks, their streams; opened by their name alone, and known again."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.tokenizers import TEXT, byte_level, words
from tlite.errors import UserError
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained import tokenizers as ours
from tlite.pretrained.tokenizers import open_tokenizer, plain
from tlite.text import ByteTokenizer, subwords

tokenizers = pytest.importorskip("tokenizers")
PROSE = "the theory of the Straße\n\nand the 漢字, the end\n" * 4
PIECES = learn_bpe([PROSE], 290)
readable = st.text(st.characters(codec="utf-8"))


def with_marks():
    ids = {"<s>": 0, "</s>": 1, "a": 2, "?": 3}
    tokenizer = words(ids, "?", ("<s>", "</s>"), bos="<s>", eos="</s>")
    return PretrainedTokenizer(tokenizer.to_hugging_face()[0], {"bos": "<s>"})


# Texts and ids


def test_truncation_keeps_the_last_mark():
    tokenizer = with_marks()
    found = tokenizer.encode_texts(["a a a a", "a"], 4)
    np.testing.assert_array_equal(found, [[0, 2, 2, 1], [0, 2, 1, -1]])
    assert tokenizer.encode_texts(["a a a a", "a"]).shape == (2, 6)
    assert tokenizer.encode_texts(["a a"], 2).tolist() == [[0, 1]]
    assert tokenizer.encode_texts(["a"], 1).shape == (1, 1)
    assert tokenizer.encode_texts([], 4).shape == (0, 4)
    assert tokenizer.encode("a", marks=False).tolist() == [2]


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


@given(st.text(st.sampled_from("a \n.漢")))
def test_a_long_text_is_encoded_in_parts_as_if_it_were_whole(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "parts", lambda text: subwords.parts(text, 3))
        assert PIECES.encode_long(text).tolist() == PIECES.encode(text).tolist()
    assert with_marks().encode_long("a a").tolist() == [2, 2]


@given(readable)
def test_sizes_of_pieces_add_up_to_the_bytes_of_the_text(text):
    assert PIECES.byte_sizes()[PIECES.encode(text)].sum() == len(text.encode())
    assert PIECES.byte_sizes()[PIECES.eos_id] == 0
    assert with_marks().byte_sizes() is None


@given(readable)
def test_bytes_have_the_same_ids_for_transformers(text):
    tokenizer = ByteTokenizer()
    theirs = PretrainedTokenizer(*tokenizer.to_hugging_face())
    np.testing.assert_array_equal(plain(theirs).encode(text), tokenizer.encode(text))
    assert theirs.decode(tokenizer.encode(text)) == text
    assert (len(theirs), theirs.eos_id) == (len(tokenizer), tokenizer.eos_id)


# Streams


def sentence_pieces():
    """A tokenizer whose decoder takes away a text's first space, as those of Llama 2 do."""
    from tokenizers import Tokenizer, decoders, models

    pieces = ["<s>", "<0xE6>", "<0xBC>", "<0xA2>", "▁", "▁a", "▁bc", "d", "▁▁", "e"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.add_special_tokens(["<s>"])
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PretrainedTokenizer(tokenizer, {"bos": "<s>"})


SENTENCES = sentence_pieces()


def test_a_stream_after_a_prompt():
    """The first word that is generated keeps its space."""
    assert SENTENCES.decode([0, 5, 6]) == "a bc"
    stream = SENTENCES.stream([0, 5])
    assert stream.push([6]) + stream.push([1, 2]) == " bc"
    assert stream.push([3]) == "漢"
    assert stream.finish() == ""
    assert SENTENCES.stream([0]).push([5]) == "a"


@given(ids=st.lists(st.integers(0, 9), max_size=12), first=st.integers(0, 12))
def test_streams_of_sentence_pieces(ids, first):
    """Of bytes that are no character, ever more of them are told as such: that comes too late."""
    stream, whole = SENTENCES.stream(), SENTENCES.decode(ids)
    told = stream.push(ids[:first])
    after = SENTENCES.stream(ids[:first])
    pieces = [after.push([token]) for token in ids[first:]]
    text = told + "".join(pieces) + after.finish()
    assert text == whole or "\N{REPLACEMENT CHARACTER}" in whole
    assert len(text) >= len(whole)


# Files


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


def test_marks_are_those_of_any_file_that_names_them(tmp_path):
    with_marks().save(tmp_path)
    for name, content in {
        "special_tokens_map.json": {"unk_token": "?"},
        "tokenizer_config.json": {"bos_token": {"content": "<s>"}, "add_bos_token": True},
        "config.json": {"eos_token_id": [1, 3], "unk_token_id": 0},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer = PretrainedTokenizer.load(tmp_path)
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (3, 0, 1)
    assert (tokenizer.pad_id, tokenizer.cls_id) == (None, None)


def test_a_folder_its_file_and_a_file_of_another_name_are_the_same(tmp_path):
    PIECES.save(tmp_path)
    other = tmp_path / "mine.json"
    other.write_bytes((tmp_path / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").unlink()  # as where a tokenizer.json alone was fetched
    opened = [open_tokenizer(place) for place in (tmp_path, tmp_path / "tokenizer.json", other)]
    assert len({digest for _, digest in opened}) == 1
    for tokenizer, digest in opened:
        assert tokenizer.encode(PROSE).tolist() == PIECES.encode(PROSE).tolist()
        assert tokenizer.eos_id == tokenizer.bos_id == PIECES.eos_id
        assert open_tokenizer(tmp_path, digest)[1] == digest
    with pytest.raises(UserError, match=r"has changed: its SHA-256 is \w+, not 00"):
        open_tokenizer(tmp_path, "00")


def test_no_marks_are_put_around_a_text_and_typed_ones_are_letters():
    assert with_marks().encode("a").tolist() == [0, 2, 1]
    tokenizer = plain(with_marks())
    assert tokenizer.encode("a").tolist() == [2]
    assert 1 not in tokenizer.encode("a </s>").tolist()
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 1)  # a text begins where one has ended


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "there is no tokenizer ''"),
        ("nowhere/tokenizer.json", "there is no tokenizer 'nowhere/tokenizer.json'"),
        ("a/b/c", "there is no tokenizer 'a/b/c'"),
        ("gpt2", "no file or folder gpt2, and the Hugging Face hub gave no tokenizer"),
        ("some/one", "the Hugging Face hub gave no tokenizer"),
        ("/dev/zero", "it is a device, not a file"),
        ("damaged.json", "the tokenizer damaged.json is damaged"),
        ("damaged", "tokenizer damaged/tokenizer.json is damaged"),
        ("empty", "has no tokenizer.json: make one with transformers.* MarianTokenizer"),
        ("a\0b", "can't be the name of a file"),
    ],
)
def test_what_is_none_is_told_in_one_sentence(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        open_tokenizer(name)
