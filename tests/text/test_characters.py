"""Characters, bytes and pieces of bytes, numbers: every text comes back, also as a stream."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.pretrained import learn_bpe
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer
from tlite.text.subwords import END, split_long_text

pytest.importorskip("tokenizers")
readable = st.text(st.characters(codec="utf-8"))  # what a UTF-8 file can hold: astral too
any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates as well
ids = st.lists(st.integers(0, 256), max_size=30)
TEXT = "It's the theory, then: 12 thes\n\n  the Straße, 漢字 and the 🎉.\n" * 5
BYTES, PIECES, NUMBERS = ByteTokenizer(), learn_bpe([TEXT], 280), NumberTokenizer(70)
both = pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "bpe"])


# Characters


@given(any_text, any_text)
def test_unknown_characters_become_the_unknown_symbol_and_known_ones_come_back(known, text):
    tokenizer = CharTokenizer(known)
    expected = [c if c in known else tokenizer.unknown for c in text]
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(expected)
    assert tokenizer.decode(tokenizer.encode(known)) == known
    unknown = set(text) - (set(known) - {tokenizer.unknown})
    assert tokenizer.unknown_in(text) == [c for c in dict.fromkeys(text) if c in unknown]


@given(st.lists(st.characters(exclude_categories=())), st.randoms())
def test_ids_follow_code_points_whatever_the_order(characters, random):
    shuffled = random.sample(characters, len(characters))
    tokenizer = CharTokenizer("".join(shuffled) * 2)
    known = tokenizer.characters[:-1]
    assert tokenizer.characters == CharTokenizer("".join(characters)).characters
    assert known == "".join(sorted(known))
    assert tokenizer.encode(known).tolist() == list(range(len(tokenizer) - 1))
    assert tokenizer.characters[tokenizer.unknown_id] == tokenizer.unknown


@pytest.mark.parametrize("unknown", ["", "[UNK]"])
def test_the_unknown_symbol_is_one_character(unknown):
    with pytest.raises(ValueError, match="one character"):
        CharTokenizer("abc", unknown)


# Bytes, and pieces of bytes


@both
@given(text=readable)
def test_every_text_comes_back(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == text
    assert tokenizer.eos_id not in tokens.tolist()
    assert bytes(BYTES.encode(text).tolist()) == text.encode()


@both
@pytest.mark.parametrize("text", ["", END, f"a{END}b {END}", "\0\r\n\x85\ufeff", " \n\n  a  "])
def test_marks_that_are_typed_and_odd_spaces_come_back_too(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id not in tokenizer.encode(text).tolist()


@both
@given(ids=ids, part=st.integers(1, 4))
def test_pieces_of_a_stream_are_the_text_and_end_with_a_character(tokenizer, ids, part):
    stream = tokenizer.stream()
    pieces = [stream.push(ids[i : i + part]) for i in range(0, len(ids), part)]
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids)
    assert BYTES.decode(ids) == bytes(i for i in ids if i < 256).decode("utf-8", "replace")


def test_a_stream_waits_for_the_whole_character():
    stream = BYTES.stream(BYTES.encode("a"))
    told = [stream.push([byte]) for byte in "é漢".encode()]
    assert told == ["", "é", "", "", "漢"]
    assert stream.push([0xE6]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_pieces_of_bytes_are_shown_as_letters_or_numbers():
    shown = [BYTES.piece_of(index) for index in (65, 10, 7, 0xE4, 256, 300)]
    assert shown == ["A", "\n", "<0x07>", "<0xE4>", END, ""]


def test_pieces_are_as_many_as_asked_for_and_shorten_the_text():
    assert (len(BYTES), len(PIECES)) == (257, 280)
    assert len(PIECES.encode(TEXT)) < 0.6 * len(BYTES.encode(TEXT))
    assert PIECES.piece_of(PIECES.eos_id) == END
    assert PIECES.bos_id == PIECES.eos_id
    assert len(learn_bpe(["ab"], 1000)) == 258  # bytes, the mark, and "ab"
    assert len(learn_bpe([], 1000)) == 257


def test_pieces_are_the_same_in_every_process():
    code = "from tlite.pretrained import learn_bpe; import sys; t = sys.stdin.read()"
    code += "; print(learn_bpe([t, t[:99]], 300)._tokenizer.to_str())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=TEXT, capture_output=True, text=True, check=True)
    here = json.loads(learn_bpe([TEXT, TEXT[:99]], 300)._tokenizer.to_str())
    assert json.loads(done.stdout) == here


@given(st.lists(st.sampled_from(["a", "'s", " ", "\n", "\r", "\t", "\u2009", "12", "!", "漢"])))
def test_parts_of_a_long_text_have_the_pieces_of_the_whole(words):
    text = "".join(words)
    cut = list(split_long_text(text, 5))
    assert "".join(cut) == text
    found = [PIECES.encode(part) for part in cut]
    assert np.concatenate(found).tolist() == PIECES.encode(text).tolist()


def test_a_text_is_cut_where_it_can_be():
    assert list(split_long_text("abc\ndef\n\nghi", 2)) == ["abc", "\ndef", "\n\nghi"]
    assert list(split_long_text("a" * 9, 2)) == ["a" * 9]


# Numbers


@given(st.lists(st.integers(0, 69)))
def test_numbers_come_back(ids):
    assert NUMBERS.encode(NUMBERS.decode(ids)).tolist() == ids
    stream = NUMBERS.stream([1, 2])
    streamed = stream.push(ids[:3]) + stream.push(ids[3:]) + stream.finish()
    assert streamed.strip() == NUMBERS.decode(ids)


@pytest.mark.parametrize("text", ["a", "1 x", "70", "-1", "1.5", "9" * 6000, "²"])
def test_what_is_no_number_of_a_token_is_refused(text):
    with pytest.raises(UserError, match="only the numbers are known: give numbers below 70"):
        NUMBERS.encode(text)
