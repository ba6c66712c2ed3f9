"""What a generator reads: its tokens, what is fed and scored of them, and for how many bytes."""

import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.corpora import DOCUMENTS, write_corpus
from tlite.data.corpus import Corpus
from tlite.errors import UserError
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TokenizerFile
from tlite.models import GeneratorConfig
from tlite.pretrained import learn_bpe
from tlite.recipes.generator import (
    GeneratorRecipe,
    TextPart,
    end_ids,
    end_of_documents,
    fit_vocabulary,
    make_tokenizer,
    parts_of,
    prompt_tokens,
    text_parts,
    tokenizer_of,
)
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer
from tlite.training import TrainingConfig
from tlite.training.placement import make_mesh
from tlite.training.runs import Run

pytest.importorskip("tokenizers")
CONTEXT = 16
TEXT = "".join(DOCUMENTS)
LEARNED = make_tokenizer(BPE(280), TEXT, 0.1)[1]
OF_TEXT = {"characters": CharTokenizer(TEXT), "bytes": ByteTokenizer(), "bpe": LEARNED}
EACH = OF_TEXT | {"numbers": NumberTokenizer(9)}
each = pytest.mark.parametrize("tokenizer", EACH.values(), ids=EACH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpora") / "corpus")


@pytest.fixture(scope="module")
def numbers(folder, tmp_path_factory):
    """The same tokens as nanoGPT keeps them: nothing says what they are of."""
    copy = tmp_path_factory.mktemp("numbers")
    for name in ("train.bin", "val.bin"):
        (copy / name).write_bytes((folder / name).read_bytes())
    return Corpus(str(copy), corpus_vocabulary=257, separate_documents=True)


def open_both(folder, most=2**20):
    return parts_of_corpus(Corpus(str(folder), validation_tokens=most))


def parts_of_corpus(corpus):
    model = GeneratorConfig(vocabulary_size=257, context=CONTEXT)
    return parts_of(GeneratorExperiment("x", corpus, model), tokenizer_of(corpus), corpus)


def saved_tokenizer(folder):
    return GeneratorRecipe.load_tokenizer(Run(folder, GeneratorExperiment("x"), {}))


# Tokenizers


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
    tokenizer.save(tmp_path / "tokenizer.json")
    again = saved_tokenizer(tmp_path)
    assert (type(again), len(again)) == (type(tokenizer), len(tokenizer))
    text = "1 2 3" if isinstance(tokenizer, NumberTokenizer) else "the <|endoftext|>"
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_a_tokenizer_of_an_older_run_is_one_of_characters(tmp_path):
    saved = json.dumps({"characters": "ab", "unknown": "?"})
    (tmp_path / "tokenizer.json").write_text(saved)
    assert saved_tokenizer(tmp_path).characters == "ab?"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 1}', '{"kind": []}', "[" * 10**5])
def test_a_damaged_file_is_told(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"not a tokenizer|is damaged"):
        saved_tokenizer(tmp_path)


def test_tokenizers_of_corpora_are_opened_and_known_again(tmp_path):
    for number, tokenizer in enumerate([CharTokenizer(TEXT), learn_bpe([TEXT], 300)]):
        folder = write_corpus(tmp_path / str(number), tokenizer)
        found = tokenizer_of(Corpus(str(folder)))
        assert found.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
        path = folder / "tokenizer.json"
        path.write_text(path.read_text() + " ")
        with pytest.raises(UserError, match="has changed"):
            tokenizer_of(Corpus(str(folder)))


def test_a_pretrained_model_has_the_pieces_of_its_own_tokenizer_alone():
    ours = learn_bpe([TEXT], 300)
    assert ours.has_pieces_of(learn_bpe([TEXT], 300))
    assert not any(map(ours.has_pieces_of, (learn_bpe([TEXT], 290), ByteTokenizer())))


def test_an_embedding_may_have_more_rows_than_there_are_subwords():
    assert fit_vocabulary(0, LEARNED) == 280
    assert fit_vocabulary(320, LEARNED) == 320
    assert fit_vocabulary(0, LEARNED, at_least=400) == 400
    for size, tokenizer in ((279, LEARNED), (999, EACH["characters"]), (256, EACH["bytes"])):
        with pytest.raises(UserError, match=f"vocabulary size is {size}, but"):
            fit_vocabulary(size, tokenizer)


@each
def test_without_a_prompt_the_mark_between_texts_starts(tokenizer):
    ends = {ByteTokenizer: [256], type(LEARNED): [LEARNED.eos_id]}.get(type(tokenizer), [])
    assert end_ids(tokenizer) == ends
    assert prompt_tokens(tokenizer, "1").tolist() == tokenizer.encode("1").tolist()
    if ends:
        assert prompt_tokens(tokenizer, "").tolist() == ends
        return
    for prompt, told in (("", "prompt is empty"), (" ", "has no token")):
        if not len(tokenizer.encode(prompt)):
            with pytest.raises(UserError, match=told):
                prompt_tokens(tokenizer, prompt)


def test_ends_of_documents_are_the_manifests_or_the_tokenizers(folder, numbers):
    apart = Corpus(str(folder), separate_documents=True)
    assert end_of_documents(apart, ByteTokenizer()) == 256
    assert end_of_documents(Corpus(str(folder)), ByteTokenizer()) is None
    assert end_of_documents(numbers, ByteTokenizer()) == 256
    with pytest.raises(UserError, match=r"nothing says which token of .* ends a document"):
        end_of_documents(numbers, NumberTokenizer(257))


# Parts


@pytest.mark.parametrize("name", OF_TEXT)
@given(text=st.text(st.sampled_from(sorted(set(TEXT)))), fraction=st.floats(0.01, 0.99))
def test_parts_are_the_text_and_sizes_their_bytes(name, text, fraction):
    tokenizer = EACH[name]
    parts = text_parts(text, tokenizer, CONTEXT, fraction, whole=False)
    texts = [tokenizer.decode(part.tokens) for part in parts.values()]
    assert "".join(texts) == text
    for part, own in zip(parts.values(), texts, strict=True):
        assert tokenizer.byte_sizes()[part.tokens].sum() == len(own.encode())
        np.testing.assert_array_equal(part.tokens, tokenizer.encode(own))
    assert text_parts(text, tokenizer, CONTEXT, fraction, whole=False) is parts  # encoded once


@pytest.mark.parametrize("tokenizer", OF_TEXT.values(), ids=OF_TEXT)
def test_targets_of_a_text_are_divided_by_their_bytes(tokenizer):
    for part in text_parts(TEXT, tokenizer, CONTEXT, 0.1, whole=False).values():
        size = len(tokenizer.decode(part.tokens[1:]).encode())
        assert part.targets_per_byte == part.per_byte == (len(part) - 1) / size


def test_bytes_of_a_corpus_are_those_of_the_manifest(folder, numbers):
    part = open_both(folder)["validation"]
    size = sum(len(document.encode()) for document in DOCUMENTS[-8:])
    assert part.per_byte == len(part) / size
    assert part.targets_per_byte == pytest.approx((len(part) - 1) / (size - 1), rel=1e-12)
    assert parts_of_corpus(numbers)["validation"].targets_per_byte is None


def test_a_text_and_a_corpus_of_the_same_tokens_are_scored_alike(folder):
    part = open_both(folder)["training"]
    tokens = part.tokens.read(0, len(part)).astype(np.int32)
    text = TextPart(part.tokenizer, CONTEXT, tokens, None)
    for ours, theirs in zip(part.scored(), text.scored(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert part.targets_per_byte == text.targets_per_byte


def test_windows_of_a_large_part_lie_all_over_it_without_overlap(folder):
    part = open_both(folder, 10 * CONTEXT)["training"]
    tokens = part.tokens.read(0, len(part)).tolist()
    inputs, targets, weights = part.scored()
    assert weights.all()
    windows = np.c_[inputs, targets[:, -1]].tolist()
    starts = [i * (len(tokens) - CONTEXT - 1) // 9 for i in range(10)]
    assert windows == [tokens[start : start + CONTEXT + 1] for start in starts]
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert min(np.diff(starts)) >= CONTEXT
    assert open_both(folder, 1)["validation"].scored()[0].shape == (1, CONTEXT)


def test_a_feed_gives_windows_by_seed_step_and_row(folder):
    part = open_both(folder)["training"]
    config = TrainingConfig(steps=9, batch_size=4, accumulate=2, seed=5)
    feed = part.fed()(config, make_mesh(jax.devices()[:1], config, 0, config.batch_size))
    batches = np.asarray(feed.at(3, 2).batches)[0]
    again = np.asarray(feed.at(4, 1).batches)[0]
    feed.close()
    assert batches.shape[1:] == (2, 4, CONTEXT + 1)
    np.testing.assert_array_equal(batches[1], again[0])
    assert len({window.tobytes() for window in batches[:2].reshape(-1, CONTEXT + 1)}) > 12
