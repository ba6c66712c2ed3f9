"""Tokenizers by their name alone: opened, known again, without marks."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained import tokenizers as of_folders
from tlite.pretrained.tokenizer_files import open_tokenizer, plain
from tlite.text import ByteTokenizer, byte_level

tokenizers = pytest.importorskip("tokenizers")
TEXT = "the theory of the Straße\n\nand the 漢字, the end\n" * 4
PIECES = learn_bpe([TEXT], 290)
readable = st.text(st.characters(codec="utf-8"))


@pytest.fixture
def folder(tmp_path):
    PIECES.save(tmp_path)
    return tmp_path


def with_marks() -> PretrainedTokenizer:
    """A text is <s> ... </s>, as Llama's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    content = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "?": 3}, unk_token="?"))
    content.pre_tokenizer = pre_tokenizers.Whitespace()
    content.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    content.add_special_tokens(["<s>", "</s>"])
    return PretrainedTokenizer(content, {"bos": "<s>"})


def test_a_folder_its_file_and_a_file_of_another_name_are_the_same(folder):
    other = folder / "mine.json"
    other.write_bytes((folder / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").unlink()  # as where a tokenizer.json alone was fetched
    opened = [open_tokenizer(place) for place in (folder, folder / "tokenizer.json", other)]
    assert len({digest for _, digest in opened}) == 1
    for tokenizer, digest in opened:
        assert tokenizer.encode(TEXT).tolist() == PIECES.encode(TEXT).tolist()
        assert tokenizer.eos_id == tokenizer.bos_id == PIECES.eos_id
        assert open_tokenizer(folder, digest)[1] == digest


def test_one_that_has_changed_is_told(folder):
    with pytest.raises(UserError, match=r"has changed: its SHA-256 is \w+, not 00"):
        open_tokenizer(folder, "00")


def test_vocabulary_and_merges_of_gpt2(folder):
    PIECES._tokenizer.model.save(str(folder))
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer, digest = open_tokenizer(folder)
    assert tokenizer.encode(TEXT).tolist() == PIECES.encode(TEXT).tolist()
    assert digest != open_tokenizer_after_a_change(folder)


def open_tokenizer_after_a_change(folder):
    merges = (folder / "merges.txt").read_text().splitlines()
    (folder / "merges.txt").write_text("\n".join(merges[:-1]))
    return open_tokenizer(folder)[1]


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
        ("empty", "has no tokenizer.json"),
        ("a\0b", "can't be the name of a file"),
    ],
)
def test_what_is_none_is_told_in_one_sentence(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text("{")
    for folder, content in (("damaged", "{}"), ("empty", None)):
        (tmp_path / folder).mkdir()
        if content:
            (tmp_path / folder / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=message):
        open_tokenizer(name)


def test_no_marks_are_put_around_a_text_and_typed_ones_are_letters():
    assert with_marks().encode("a").tolist() == [0, 2, 1]
    tokenizer = plain(with_marks())
    assert tokenizer.encode("a").tolist() == [2]
    assert 1 not in tokenizer.encode("a </s>").tolist()
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 1)  # a text begins where one has ended


def test_tokenizers_are_the_same_where_their_pieces_are():
    assert PIECES.has_pieces_of(learn_bpe([TEXT], 290))
    assert not PIECES.has_pieces_of(learn_bpe([TEXT], 280))
    assert not PIECES.has_pieces_of(ByteTokenizer())


@given(st.text(st.sampled_from("a \n.漢")))
def test_a_long_text_is_encoded_in_parts_as_if_it_were_whole(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_folders, "parts", lambda text: byte_level.parts(text, 3))
        assert PIECES.encode_long(text).tolist() == PIECES.encode(text).tolist()
    assert with_marks().encode_long("a a").tolist() == [2, 2]


@given(readable)
def test_sizes_of_pieces_add_up_to_the_bytes_of_the_text(text):
    assert PIECES.byte_sizes()[PIECES.encode(text)].sum() == len(text.encode())
    assert PIECES.byte_sizes()[PIECES.eos_id] == 0
    assert with_marks().byte_sizes() is None


@given(readable)
def test_bytes_have_the_same_ids_for_transformers(text):
    ours = ByteTokenizer()
    theirs = PretrainedTokenizer(*ours.to_hugging_face())
    np.testing.assert_array_equal(plain(theirs).encode(text), ours.encode(text))
    assert theirs.decode(ours.encode(text)) == text
    assert (len(theirs), theirs.eos_id) == (len(ours), ours.eos_id)
    assert json.loads(theirs._tokenizer.to_str())["model"]["type"] == "BPE"
