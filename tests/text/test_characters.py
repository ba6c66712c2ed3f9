"""CharTokenizer: text to ids and back, for all of Unicode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.text import CharTokenizer

readable = st.text(st.characters(codec="utf-8"))  # what a UTF-8 file can hold: astral too
any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates as well


@given(any_text, any_text)
def test_decoding_gives_known_text_back(text, more):
    tokenizer = CharTokenizer(text + more)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(any_text, any_text)
def test_unknown_characters_become_the_unknown_symbol(known, text):
    tokenizer = CharTokenizer(known)
    expected = [c if c in known else tokenizer.unknown for c in text]
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(expected)
    assert set(tokenizer.unknown_in(text)) == set(text) - (set(known) - {tokenizer.unknown})


@given(st.lists(st.characters(exclude_categories=())), st.randoms())
def test_ids_follow_code_points_whatever_the_order(characters, random):
    shuffled = random.sample(characters, len(characters))
    tokenizer = CharTokenizer("".join(shuffled) * 2)
    known = tokenizer.characters[:-1]
    assert tokenizer.characters == CharTokenizer("".join(characters)).characters
    assert known == "".join(sorted(known))
    assert tokenizer.encode(known).tolist() == list(range(len(tokenizer) - 1))
    assert tokenizer.characters[tokenizer.unknown_id] == tokenizer.unknown


def test_unknown_characters_are_named_once_and_in_order():
    assert CharTokenizer("abc").unknown_in("zaybz𝄞") == ["z", "y", "𝄞"]


@pytest.mark.parametrize("unknown", ["", "[UNK]"])
def test_the_unknown_symbol_is_one_character(unknown):
    with pytest.raises(ValueError, match="one character"):
        CharTokenizer("abc", unknown)


@given(readable, st.characters(codec="utf-8"))
def test_a_saved_tokenizer_comes_back(tmp_path_factory, text, unknown):
    path = tmp_path_factory.getbasetemp() / "tokenizer.json"
    tokenizer = CharTokenizer(text, unknown)
    tokenizer.save(path)
    loaded = CharTokenizer.load(path)
    assert (loaded.characters, loaded.unknown) == (tokenizer.characters, tokenizer.unknown)
