"""All tokenizers: the protocol, padding, unknown words, and files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.tokenizers import words
from tlite.errors import UserError
from tlite.pretrained import PretrainedTokenizer
from tlite.text import (
    PADDING,
    ByteTokenizer,
    CharTokenizer,
    IndexTokenizer,
    NgramTokenizer,
    NumberTokenizer,
    PairTokenizer,
    SubwordTokenizer,
    Tokenizer,
    load_tokenizer,
    pad,
)
from tlite.text.characters import KINDS
from tlite.text.tokenizer import Stream

TEXT = "2 10 3"


VOCABULARY = {"2": 0, "10": 1, "3": 2, "?": 3}
EACH = {
    "characters": CharTokenizer(f"{TEXT}é🎉"),
    "bytes": ByteTokenizer(),
    "numbers": NumberTokenizer(12),
    "words": IndexTokenizer(["2", "10", "3"], marks=True),
    "n-grams": NgramTokenizer(["2", "10", "3"], ["2\t10", " 2"], 2, 2, marks=True),
    "subwords": SubwordTokenizer.train([TEXT], 20),
    "pairs": PairTokenizer.train([TEXT], ["zwei"], 20),
    "separate pairs": PairTokenizer.train([TEXT], ["zwei 10"], 20, joint=False),
    "pretrained": words(VOCABULARY, "?", unk="?"),
}
each = pytest.mark.parametrize("tokenizer", EACH.values(), ids=EACH)


@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=5),
    st.none() | st.integers(0, 8),
    st.sampled_from([PADDING, 0, 7]),
    st.sampled_from([list, iter, lambda rows: map(np.array, rows)]),
)
def test_pad_cuts_or_fills_rows(rows, length, pad_id, kind):
    padded = pad(kind(rows), length, pad_id)
    width = max(map(len, rows), default=0) if length is None else length
    assert padded.shape == (len(rows), width)
    assert padded.dtype == np.int32
    assert padded.tolist() == [(row + [pad_id] * width)[:width] for row in rows]


@each
def test_tokenizers_follow_the_protocol(tokenizer, tmp_path):
    assert isinstance(tokenizer, Tokenizer)
    (ids,) = tokenizer.encode_ids([TEXT])
    assert tokenizer.encode(TEXT).dtype == np.int32
    assert tokenizer.encode(TEXT).tolist() == tokenizer.encode_texts([TEXT])[0].tolist()
    assert tokenizer.encode(TEXT).tolist() == list(ids)
    assert 0 <= min(ids) <= max(ids) <= tokenizer.max_id
    assert tokenizer.tokenize(TEXT, 2) == tokenizer.tokenize(TEXT)[:2] != []
    assert isinstance(tokenizer.id_to_token(1), str)
    assert tokenizer.unknown_in(TEXT) == []
    tokenizer.save(tmp_path / tokenizer.file_name)
    assert list(tmp_path.iterdir())


@each
def test_padding_is_decoded_to_nothing(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode([*ids, PADDING, PADDING]) == tokenizer.decode(ids)
    assert tokenizer.decode([PADDING]) == tokenizer.id_to_token(PADDING) == ""


def test_a_stream_decodes_few_ids_at_a_time():
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return "".join(f" {index}" for index in ids)

    stream = Stream(decode)
    text = "".join(stream.push([index]) for index in range(500))
    assert text == decode(range(500))
    assert max(sizes[:-1]) < 10


@pytest.mark.parametrize("kind", ["words", "n-grams", "subwords", "pairs", "pretrained"])
def test_unknown_words_are_listed_once_in_order(kind):
    assert EACH[kind].unknown_in("y 10 x 2 y") == ["y", "x"]
    assert words(VOCABULARY, "?", unk="?", eos="?").unknown_in("2 ?") == []  # it ends texts


@pytest.mark.parametrize("kind", ["characters", "bytes", "subwords", "pairs", "pretrained"])
def test_exported_tokenizer_has_the_same_ids(kind):
    exported = PretrainedTokenizer(*EACH[kind].to_hugging_face())
    assert exported.encode(TEXT).tolist() == EACH[kind].encode(TEXT).tolist()


@pytest.mark.parametrize("kind", ["numbers", "words", "n-grams"])
def test_export_without_counterpart_is_an_error(kind):
    with pytest.raises(UserError, match="Tokenizer has no counterpart in transformers"):
        EACH[kind].to_hugging_face()


JSON = pytest.mark.parametrize("kind", [kind for kind in EACH if kind != "pretrained"])


@JSON
def test_saved_tokenizer_is_loaded(kind, tmp_path):
    saved, path = EACH[kind], tmp_path / "tokenizer.json"
    saved.save(path)
    loaded = (load_tokenizer if kind in KINDS else saved.load)(path)
    assert type(loaded) is type(saved)
    assert loaded.to_dict() == saved.to_dict()
    encode = lambda tokenizer: tokenizer.encode_texts([TEXT], 5).tolist()  # noqa: E731
    assert encode(loaded) == encode(saved)
    assert loaded.decode(saved.encode(TEXT)) == saved.decode(saved.encode(TEXT))


DAMAGED = ["", "{", "[]", "3", "null", "{}", '{"kind": []}', '{"source": {}}', "[" * 10**5]
DAMAGED += ['{"characters": "a", "unknown": ""}', '{"model": 3}']  # of other formats


@JSON
def test_damaged_other_or_missing_file_is_an_error(kind, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"can't read .*tokenizer\.json: No such file"):
        EACH[kind].load(path)
    EACH["subwords" if "pairs" in kind else "pairs"].save(path)
    other = path.read_bytes()
    EACH[kind].save(path)
    truncated = path.read_bytes()[:-2]
    for content in (*map(str.encode, DAMAGED), b"\xff\xfe", other, truncated):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"{path} is not a tokenizer saved by tlite"):
            EACH[kind].load(path)
