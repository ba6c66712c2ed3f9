"""Labels of invisible characters and of tokens, and the tokens of a picture."""

import pytest

from tlite.pictures.labels import (
    escape_controls,
    matplotlib_label,
    select_tokens,
    show_whitespace,
    token_label,
)
from tlite.pretrained import PretrainedTokenizer
from tlite.text import ByteTokenizer, IndexTokenizer

tokenizers = pytest.importorskip("tokenizers")


def byte_level():
    subwords = ["<s>", "a", "b", "Ġa", "Ġthe", "Ċ", "Ã", "the", "Ġcat", "x" * 20]
    ids = {subword: index for index, subword in enumerate(subwords)}
    content = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[]))
    content.decoder = tokenizers.decoders.ByteLevel()
    content.add_special_tokens(["<s>"])
    return PretrainedTokenizer(content, {"bos": "<s>"})


def test_labels_of_byte_level_subwords_are_text():
    tokenizer = byte_level()
    labels = [token_label(tokenizer, token) for token in range(9)]
    assert labels == ["<s>", "a", "b", " a", " the", "\n", "Ã", "the", " cat"]
    assert token_label(tokenizer, 9) == "x" * 11 + "…"  # at most 12 characters
    assert token_label(tokenizer, 12_345) == "<12345>"  # beyond the tokenizer's


@pytest.mark.parametrize(
    ("subwords", "decoder"),
    [(["[UNK]", "##ing", "go"], "WordPiece"), (["<unk>", "▁go", "ing"], "Metaspace")],
)
def test_labels_have_prefixes_of_subwords(subwords, decoder):
    ids = {subword: index for index, subword in enumerate(subwords)}
    content = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=ids, unk_token=subwords[0]))
    content.decoder = getattr(tokenizers.decoders, decoder)()
    tokenizer = PretrainedTokenizer(content, {})
    assert [token_label(tokenizer, token) for token in range(3)] == subwords


def test_tokens_of_the_text_come_first_then_words():
    tokenizer, word_tokenizer = byte_level(), IndexTokenizer([f"w{i}" for i in range(20)])
    assert select_tokens(tokenizer, [6, 2, 6, -1, 999], 5) == [6, 2, 4, 7, 8]
    assert sorted(select_tokens(tokenizer, [6], 99)) == list(range(len(tokenizer)))
    assert select_tokens(tokenizer, [3, 2, 1], 2) == [3, 2]
    assert select_tokens(word_tokenizer, [], 5) == [0, 1, 2, 3, 4]
    assert select_tokens(ByteTokenizer(), [200], 4) == [200, *b"012"]
    assert len(select_tokens(ByteTokenizer(), [], 999)) == 257


def test_invisible_characters_have_symbols():
    assert show_whitespace("a b\n\t\f\x00\x7f\u200bé") == "a␣b↵⇥␌␀␡\\u200bé"
    assert matplotlib_label("\f $a_b$\\") == r"^L␣\$a_b\$" + "\\"
    assert escape_controls("a b\n\t\f") == "a b\n⇥␌"
    every = "".join(map(chr, range(0x3000)))
    assert show_whitespace(every).isprintable()
    assert escape_controls(every).replace("\n", "").isprintable()
    assert show_whitespace(every[33:127]) == every[33:127]
