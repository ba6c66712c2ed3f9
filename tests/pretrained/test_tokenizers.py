"""Tokenizers of Hugging Face folders: special tokens, streams, files."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.tokenizers import TEXT, byte_level, words
from tlite.errors import UserError
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained import tokenizers as module
from tlite.pretrained.tokenizers import open_tokenizer, without_special_tokens
from tlite.text import ByteTokenizer, subwords

tokenizers = pytest.importorskip("tokenizers")
PROSE = "the theory of the Straße\n\nand the 漢字, the end\n" * 4
BPE = learn_bpe([PROSE], 290)
readable = st.text(st.characters(codec="utf-8"))


def with_special_tokens():
    ids = {"<s>": 0, "</s>": 1, "a": 2, "?": 3}
    tokenizer = words(ids, "?", ("<s>", "</s>"), bos="<s>", eos="</s>")
    return PretrainedTokenizer(tokenizer.to_hugging_face()[0], {"bos": "<s>"})


def test_truncation_keeps_the_last_special_token():
    tokenizer = with_special_tokens()
    ids = tokenizer.encode_texts(["a a a a", "a"], 4)
    np.testing.assert_array_equal(ids, [[0, 2, 2, 1], [0, 2, 1, -1]])
    assert tokenizer.encode_texts(["a a a a", "a"]).shape == (2, 6)
    assert tokenizer.encode_texts(["a a"], 2).tolist() == [[0, 1]]
    assert tokenizer.encode_texts(["a"], 1).shape == (1, 1)
    assert tokenizer.encode_texts([], 4).shape == (0, 4)
    assert tokenizer.encode("a", add_special_tokens=False).tolist() == [2]
    for texts, rows in ((["", ""], [[-1], [-1]]), (["", "a"], [[-1], [0]])):
        assert words({"a": 0}).encode_texts(texts).tolist() == rows


def test_text_without_a_token_is_an_error():
    tokenizer = words({"a": 0, "b": 4_000_000_000})
    assert tokenizer.max_id == 4_000_000_000
    for text, says in [("c", r"can't encode this text: .*\[UNK\]"), ("b", "the id 4000000000")]:
        with pytest.raises(UserError, match=says):
            tokenizer.encode(text)
        with pytest.raises(UserError, match=says):
            tokenizer.encode_texts(["a", text])


WORDS = ["a", "'s", " ", "\n", "\r", "\t", "\u2009", "12", "!", "漢"]


@given(st.lists(st.sampled_from(WORDS)).map("".join))
def test_chunks_of_a_long_text_have_its_ids(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "split_long_text", lambda text: subwords.split_long_text(text, 3))
        assert BPE.encode_document(text).tolist() == BPE.encode(text).tolist()
    assert with_special_tokens().encode_document("a a").tolist() == [2, 2]


@given(readable)
def test_byte_sizes_sum_to_the_bytes_of_the_text(text):
    assert BPE.byte_sizes()[BPE.encode(text)].sum() == len(text.encode())
    assert BPE.byte_sizes()[BPE.eos_id] == 0
    assert with_special_tokens().byte_sizes() is None


@given(readable)
def test_bytes_have_the_same_ids_in_transformers(text):
    tokenizer = ByteTokenizer()
    hf = PretrainedTokenizer(*tokenizer.to_hugging_face())
    np.testing.assert_array_equal(without_special_tokens(hf).encode(text), tokenizer.encode(text))
    assert hf.decode(tokenizer.encode(text)) == text
    assert (len(hf), hf.eos_id) == (len(tokenizer), tokenizer.eos_id)


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


@given(ids=st.lists(st.integers(0, 9), max_size=12), first=st.integers(0, 12))
@example([0, 5, 6, 1, 2, 3], 2)  # "a", then " bc漢"
def test_streams_of_sentence_pieces(ids, first):
    """The first word after a prompt, `ids[:first]`, keeps its space.

    Bytes that are no character may give more replacement characters than `decode` does.
    """
    stream, expected = SENTENCES.stream(), SENTENCES.decode(ids)
    start = stream.push(ids[:first])
    after = SENTENCES.stream(ids[:first])
    pieces = [after.push([token]) for token in ids[first:]]
    text = start + "".join(pieces) + after.finish()
    assert text == expected or "\N{REPLACEMENT CHARACTER}" in expected
    assert len(text) >= len(expected)


def test_saved_and_opened(tmp_path):
    special_tokens = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=9)
    tokenizer = PretrainedTokenizer(
        library, special_tokens, {"chat_template": "x", "model_max_length": 7}
    )
    tokenizer.save(tmp_path)
    opened = PretrainedTokenizer.load(tmp_path)
    assert opened.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert opened.decode(opened.encode(TEXT)) == TEXT
    assert (opened.bos_id, opened.eos_id, opened.pad_id) == (0, 1, 2)
    assert opened.settings["chat_template"] == "x"
    assert PretrainedTokenizer.load(tmp_path / "tokenizer.json").eos_id == 1
    assert opened.decode([0, *opened.encode("hello"), 1]) == "hello"
    assert opened.id_to_token(0) == "<s>"


def test_special_tokens_are_read_from_every_file(tmp_path):
    with_special_tokens().save(tmp_path)
    for name, content in {
        "special_tokens_map.json": {"unk_token": "?"},
        "tokenizer_config.json": {"bos_token": {"content": "<s>"}, "add_bos_token": True},
        "config.json": {"eos_token_id": [1, 3], "unk_token_id": 0},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer = PretrainedTokenizer.load(tmp_path)
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (3, 0, 1)
    assert (tokenizer.pad_id, tokenizer.cls_id) == (None, None)


def test_a_folder_and_its_file_give_the_same_tokenizer(tmp_path):
    BPE.save(tmp_path)
    other = tmp_path / "mine.json"
    other.write_bytes((tmp_path / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").unlink()  # as where a tokenizer.json alone was fetched
    opened = [open_tokenizer(path) for path in (tmp_path, tmp_path / "tokenizer.json", other)]
    assert len({digest for _, digest in opened}) == 1
    for tokenizer, digest in opened:
        assert tokenizer.encode(PROSE).tolist() == BPE.encode(PROSE).tolist()
        assert tokenizer.eos_id == tokenizer.bos_id == BPE.eos_id
        assert open_tokenizer(tmp_path, digest)[1] == digest
    with pytest.raises(UserError, match=r"has changed: its SHA-256 is \w+, not 00"):
        open_tokenizer(tmp_path, "00")


def test_without_special_tokens():
    assert with_special_tokens().encode("a").tolist() == [0, 2, 1]
    tokenizer = without_special_tokens(with_special_tokens())
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
def test_invalid_names_are_errors(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        open_tokenizer(name)
