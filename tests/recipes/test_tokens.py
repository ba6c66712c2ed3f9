"""What a token of a generator is, and how many bytes of text it stands for."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TokenizerFile
from tlite.recipes.tokens import (
    encoded_parts,
    end_ids,
    fit_vocabulary,
    make_tokenizer,
    prompt_tokens,
    saved_tokenizer,
)
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer

pytest.importorskip("tokenizers")
TEXT = "the theory of the Straße, the 漢字 and the end of it\n" * 20
LEARNED = make_tokenizer(BPE(280), TEXT, 0.1)[1]
EACH = {
    "characters": CharTokenizer(TEXT),
    "bytes": ByteTokenizer(),
    "bpe": LEARNED,
    "numbers": NumberTokenizer(9),
}
each = pytest.mark.parametrize("tokenizer", EACH.values(), ids=EACH)


def test_settings_make_their_tokenizers(tmp_path):
    kinds = {Characters(): CharTokenizer, Bytes(): ByteTokenizer, BPE(280): type(LEARNED)}
    for chosen, kind in kinds.items():
        same, tokenizer = make_tokenizer(chosen, TEXT, 0.1)
        assert (same, type(tokenizer)) == (chosen, kind)
    LEARNED.save(tmp_path)
    found, tokenizer = make_tokenizer(TokenizerFile(str(tmp_path)), TEXT, 0.1)
    assert found.path == str(tmp_path.resolve())
    assert tokenizer.encode(TEXT).tolist() == LEARNED.encode(TEXT).tolist()
    assert make_tokenizer(found, TEXT, 0.1)[0] == found
    with pytest.raises(UserError, match="has changed"):
        make_tokenizer(TokenizerFile(str(tmp_path), "0"), TEXT, 0.1)


def test_pieces_are_learned_from_the_training_part_only():
    text = "the cat " * 90 + "zzzzzzzz" * 10
    whole, learned = (make_tokenizer(BPE(300), text, part)[1] for part in (0.001, 0.1))
    assert len(whole.encode("zzzzzzzz")) < 8 == len(learned.encode("zzzzzzzz"))


@each
def test_a_saved_tokenizer_is_known_by_its_file(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = saved_tokenizer(GeneratorExperiment("x"), path)
    assert (type(again), len(again)) == (type(tokenizer), len(tokenizer))
    text = "1 2 3" if isinstance(tokenizer, NumberTokenizer) else "the <|endoftext|>"
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_a_tokenizer_of_an_older_run_is_one_of_characters(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"characters": "ab", "unknown": "?"}))
    assert saved_tokenizer(GeneratorExperiment("x"), path).characters == "ab?"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 1}', '{"kind": []}', "[" * 10**5])
def test_a_damaged_file_is_told(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"not a tokenizer|is damaged"):
        saved_tokenizer(GeneratorExperiment("x"), tmp_path / "tokenizer.json")


def test_an_embedding_may_have_more_rows_than_there_are_subwords():
    assert fit_vocabulary(0, LEARNED) == 280
    assert fit_vocabulary(320, LEARNED) == 320
    assert fit_vocabulary(0, LEARNED, at_least=400) == 400
    for size, tokenizer in ((279, LEARNED), (999, EACH["characters"]), (256, EACH["bytes"])):
        with pytest.raises(UserError, match=f"vocabulary size is {size}, but"):
            fit_vocabulary(size, tokenizer)


def test_units_and_ends():
    assert [of.unit for of in EACH.values()] == ["character", "byte", "token", "token"]
    assert list(map(end_ids, EACH.values())) == [[], [256], [LEARNED.eos_id], []]


@each
def test_without_a_prompt_the_mark_between_texts_starts(tokenizer):
    if ends := end_ids(tokenizer):
        assert prompt_tokens(tokenizer, "").tolist() == ends
    else:
        with pytest.raises(UserError, match="prompt is empty"):
            prompt_tokens(tokenizer, "")
    assert prompt_tokens(tokenizer, "1").tolist() == tokenizer.encode("1").tolist()


def test_a_prompt_without_a_token_is_refused():
    with pytest.raises(UserError, match="has no token"):
        prompt_tokens(EACH["numbers"], " ")


@pytest.mark.parametrize("name", ["characters", "bytes", "bpe"])
@given(text=st.text(st.sampled_from(sorted(set(TEXT)))), fraction=st.floats(0.01, 0.99))
def test_parts_are_the_text_and_sizes_their_bytes(name, text, fraction):
    tokenizer = EACH[name]
    tokens, texts = encoded_parts(tokenizer, text, fraction, False)
    assert "".join(texts) == text
    for part, of in zip(tokens, texts, strict=True):
        assert tokenizer.decode(part) == of
        assert tokenizer.byte_sizes()[part].sum() == len(of.encode())
        np.testing.assert_array_equal(part, tokenizer.encode(of))


def test_characters_are_split_as_they_always_were():
    whole, apart = (encoded_parts(EACH["characters"], TEXT, 0.1, False) for _ in range(2))
    tokens = EACH["characters"].encode(TEXT)
    np.testing.assert_array_equal(np.concatenate(whole[0]), tokens)
    assert len(whole[0][1]) == round(0.1 * len(tokens))
    assert whole is apart  # not encoded twice


def test_sizes_of_numbers_are_not_known():
    assert EACH["numbers"].byte_sizes() is None
