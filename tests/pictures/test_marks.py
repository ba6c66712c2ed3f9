"""What stands for what can't be seen, and for tokens; which are drawn."""

import pytest

from tlite.pictures.marks import chosen_tokens, mark_of, readable, symbols, visible
from tlite.pretrained import PretrainedTokenizer
from tlite.text import ByteTokenizer, IndexTokenizer

tokenizers = pytest.importorskip("tokenizers")


def byte_level():
    pieces = ["<s>", "a", "b", "Ġa", "Ġthe", "Ċ", "Ã", "the", "Ġcat", "x" * 20]
    content = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[])
    )
    content.decoder = tokenizers.decoders.ByteLevel()
    content.add_special_tokens(["<s>"])
    return PretrainedTokenizer(content, {"bos": "<s>"})


def test_pieces_of_bytes_are_shown_as_the_text_that_they_are():
    tokenizer = byte_level()
    marks = [mark_of(tokenizer, token) for token in range(9)]
    assert marks == ["<s>", "a", "b", " a", " the", "\n", "Ã", "the", " cat"]
    assert mark_of(tokenizer, 9) == "x" * 11 + "…"  # at most 12 characters
    assert mark_of(tokenizer, 12_345) == "<12345>"  # a model can have more tokens than pieces


@pytest.mark.parametrize(
    ("pieces", "decoder"),
    [(["[UNK]", "##ing", "go"], "WordPiece"), (["<unk>", "▁go", "ing"], "Metaspace")],
)
def test_marks_of_spaces_and_joins_stay(pieces, decoder):
    ids = {piece: index for index, piece in enumerate(pieces)}
    content = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=ids, unk_token=pieces[0]))
    content.decoder = getattr(tokenizers.decoders, decoder)()
    tokenizer = PretrainedTokenizer(content, {})
    assert [mark_of(tokenizer, token) for token in range(3)] == pieces


def test_words_are_themselves_and_the_first_are_taken():
    tokenizer = IndexTokenizer([f"w{i}" for i in range(20)])
    assert {mark_of(tokenizer, token) for token in range(len(tokenizer))} >= {"w0", "w19"}
    assert chosen_tokens(tokenizer, [], 5) == [0, 1, 2, 3, 4]


def test_tokens_of_the_text_come_first_then_words_then_the_rest():
    tokenizer = byte_level()
    assert chosen_tokens(tokenizer, [6, 2, 6, -1, 999], 5) == [6, 2, 4, 7, 8]
    assert sorted(chosen_tokens(tokenizer, [6], 99)) == list(range(len(tokenizer)))
    assert chosen_tokens(tokenizer, [3, 2, 1], 2) == [3, 2]


def test_bytes_are_letters_or_numbers_and_letters_come_first():
    tokenizer = ByteTokenizer()
    assert [mark_of(tokenizer, byte) for byte in (65, 10, 7, 200, 300)] == [
        "A", "\n", "<0x07>", "<0xC8>", "<300>",
    ]  # fmt: skip
    assert chosen_tokens(tokenizer, [200], 4) == [200, *b"012"]
    assert len(chosen_tokens(tokenizer, [], 999)) == 257


def test_what_can_not_be_seen_has_a_symbol_and_what_can_stays():
    assert symbols("a b\n\t\f\x00\x7f\u200bé") == "a␣b↵⇥␌␀␡\\u200bé"
    assert visible("\f $a_b$\\") == r"^L␣\$a_b\$" + "\\"
    assert readable("a b\n\t\f") == "a b\n⇥␌"
    every = "".join(map(chr, range(0x3000)))
    assert symbols(every).isprintable()
    assert readable(every).replace("\n", "").isprintable()
    assert symbols(every[33:127]) == every[33:127]
