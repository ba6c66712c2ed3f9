"""Tokenizers of characters, bytes, byte pairs and numbers: round trips and streams."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.pretrained import learn_bpe
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer
from tlite.text.tokenizer import END

pytest.importorskip("tokenizers")
utf8_text = st.text(st.characters(codec="utf-8"))
any_text = st.text(st.characters(exclude_categories=()))  # with lone surrogates
ids = st.lists(st.integers(0, 256), max_size=30)
TEXT = "It's the theory, then: 12 thes\n\n  the Straße, 漢字 and the 🎉.\n" * 5
BYTES, BYTE_PAIRS, NUMBERS = ByteTokenizer(), learn_bpe([TEXT], 280), NumberTokenizer(70)
both = pytest.mark.parametrize("tokenizer", [BYTES, BYTE_PAIRS], ids=["bytes", "bpe"])


@given(any_text, any_text)
def test_unknown_characters_become_the_unknown_symbol(known, text):
    tokenizer = CharTokenizer(known)
    expected = [c if c in known else tokenizer.unknown for c in text]
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(expected)
    assert tokenizer.decode(tokenizer.encode(known)) == known
    unknown = set(text) - (set(known) - {tokenizer.unknown})
    assert tokenizer.unknown_in(text) == [c for c in dict.fromkeys(text) if c in unknown]


def test_ids_follow_code_points():
    tokenizer = CharTokenizer("caba")
    assert tokenizer.characters == f"abc{tokenizer.unknown}"
    assert tokenizer.encode("abc?").tolist() == [0, 1, 2, tokenizer.unknown_id]


@both
@given(text=utf8_text)
@example(text=f"a{END}b {END}")  # in a text it is ordinary characters
@example(text="\0\r\n\x85\ufeff \n\n  a  ")
def test_decode_inverts_encode(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == text
    assert tokenizer.eos_id not in tokens.tolist()
    assert bytes(BYTES.encode(text).tolist()) == text.encode()


@both
@given(ids=ids, size=st.integers(1, 4))
def test_stream_gives_the_text_in_complete_characters(tokenizer, ids, size):
    stream = tokenizer.stream()
    chunks = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join([*chunks, stream.finish()]) == tokenizer.decode(ids)
    assert BYTES.decode(ids) == bytes(i for i in ids if i < 256).decode("utf-8", "replace")


def test_stream_waits_for_a_complete_character():
    stream = BYTES.stream(BYTES.encode("a"))
    assert [stream.push([byte]) for byte in "é漢".encode()] == ["", "é", "", "", "漢"]
    assert stream.push([0xE6]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_bytes_are_shown_as_characters_or_numbers():
    shown = [BYTES.id_to_token(index) for index in (65, 10, 7, 0xE4, 256, 300)]
    assert shown == ["A", "\n", "<0x07>", "<0xE4>", END, ""]


def test_learned_byte_pairs_have_the_requested_number():
    assert (len(BYTES), len(BYTE_PAIRS)) == (257, 280)
    assert len(BYTE_PAIRS.encode(TEXT)) < 0.6 * len(BYTES.encode(TEXT))
    assert BYTE_PAIRS.id_to_token(BYTE_PAIRS.eos_id) == END
    assert BYTE_PAIRS.bos_id == BYTE_PAIRS.eos_id
    assert len(learn_bpe(["ab"], 1000)) == 258  # bytes, the end token, and "ab"
    assert len(learn_bpe([], 1000)) == 257


def test_learned_byte_pairs_are_equal_in_every_process():
    code = "from tlite.pretrained import learn_bpe; import sys; t = sys.stdin.read()"
    code += "; print(learn_bpe([t, t[:99]], 300)._tokenizer.to_str())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=TEXT, capture_output=True, text=True, check=True)
    here = json.loads(learn_bpe([TEXT, TEXT[:99]], 300)._tokenizer.to_str())
    assert json.loads(done.stdout) == here


@given(st.lists(st.integers(0, 69)))
def test_decode_of_numbers_inverts_encode(ids):
    assert NUMBERS.encode(NUMBERS.decode(ids)).tolist() == ids
    stream = NUMBERS.stream([1, 2])
    streamed = stream.push(ids[:3]) + stream.push(ids[3:]) + stream.finish()
    assert streamed.strip() == NUMBERS.decode(ids)


@pytest.mark.parametrize("text", ["a", "1 x", "70", "-1", "1.5", "9" * 6000, "²"])
def test_text_other_than_numbers_of_tokens_is_an_error(text):
    with pytest.raises(UserError, match="is not a number below 70"):
        NUMBERS.encode(text)
