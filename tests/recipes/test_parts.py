"""Parts of a generator's data: what is fed, what is scored, and for how many bytes."""

import jax
import numpy as np
import pytest

from tests.helpers.corpora import DOCUMENTS, write_corpus
from tlite.data.corpus import Corpus
from tlite.errors import UserError
from tlite.pretrained import learn_bpe
from tlite.recipes.tokens import TextPart, check_same, end_of_documents, open_parts, tokenizer_of
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer
from tlite.training import TrainingConfig
from tlite.training.placement import make_mesh

pytest.importorskip("tokenizers")
CONTEXT = 16
TEXT = "".join(DOCUMENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpora") / "corpus")


def open_both(folder, most=2**20, context=CONTEXT):
    corpus = Corpus(str(folder), validation_tokens=most)
    return open_parts(corpus, tokenizer_of(corpus), context, 257)


def text_part(tokenizer, text=TEXT):
    return TextPart(tokenizer, CONTEXT, tokenizer.encode(text), text)


@pytest.mark.parametrize(
    "tokenizer", [CharTokenizer(TEXT), ByteTokenizer(), learn_bpe([TEXT], 300)]
)
def test_targets_of_a_text_are_divided_by_their_bytes(tokenizer):
    part = text_part(tokenizer)
    tokens = tokenizer.encode(TEXT)
    size = len(TEXT.encode()) - len(tokenizer.decode(tokens[:1]).encode())
    assert part.targets_per_byte == pytest.approx((len(tokens) - 1) / size, rel=1e-12)
    assert part.bytes_without_sizes() == size


@pytest.mark.parametrize("most", [2**20, 200])
def test_a_text_and_a_corpus_of_the_same_tokens_have_the_same_batches(folder, most):
    part = open_both(folder, most)["training"]
    tokens = part.tokens.read(0, len(part)).astype(np.int32)
    text = TextPart(part.tokenizer, CONTEXT, tokens, "")
    if most > len(tokens):
        for ours, theirs in zip(part.batches(8), text.batches(8), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert part.targets_per_byte == text.targets_per_byte
    inputs, targets, weights = part.batches(8)
    np.testing.assert_array_equal(inputs[..., 1:], targets[..., :-1])
    assert weights.sum() == min(len(tokens) - 1, most // CONTEXT * CONTEXT)


def test_windows_of_a_large_part_lie_all_over_it_without_overlap(folder):
    part = open_both(folder, 10 * CONTEXT)["training"]
    tokens = part.tokens.read(0, len(part)).tolist()
    inputs, targets, weights = part.scored()
    assert weights.all()
    assert inputs.shape == (10, CONTEXT)
    windows = np.c_[inputs, targets[:, -1]].tolist()
    starts = [i * (len(tokens) - CONTEXT - 1) // 9 for i in range(10)]
    assert windows == [tokens[start : start + CONTEXT + 1] for start in starts]
    assert min(np.diff(starts)) >= CONTEXT


def test_one_window_at_least_is_scored(folder):
    assert open_both(folder, 1)["validation"].scored()[0].shape == (1, CONTEXT)


def test_bytes_of_a_corpus_are_those_of_the_manifest(folder):
    part = open_both(folder)["validation"]
    size = sum(len(document.encode()) for document in DOCUMENTS[-8:])
    assert part.files.bytes == size
    assert part.targets_per_byte == pytest.approx((len(part) - 1) / (size - 1), rel=1e-12)
    assert part.bytes_without_sizes() == pytest.approx(size, rel=0.01)


def test_without_a_tokenizer_nobody_knows_the_bytes(folder, tmp_path):
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    corpus = Corpus(str(tmp_path), corpus_vocabulary=257)
    tokenizer = tokenizer_of(corpus)
    assert isinstance(tokenizer, NumberTokenizer)
    parts = open_parts(corpus, tokenizer, CONTEXT, 257)
    assert parts["validation"].targets_per_byte is None


@pytest.mark.parametrize("kind", ["text", "corpus"])
def test_drawn_windows_are_of_the_part_and_always_the_same(kind, folder):
    part = open_both(folder)["training"] if kind == "corpus" else text_part(ByteTokenizer())
    windows = part.drawn(50)
    np.testing.assert_array_equal(windows, part.drawn(50))
    whole = part.tokens.read(0, len(part)) if kind == "corpus" else part.tokens
    whole = whole.astype(np.int32).tobytes()
    assert all(window.astype(np.int32).tobytes() in whole for window in windows)
    inputs, targets, weights = part.sampled_batches(50, 16)
    assert inputs.shape == targets.shape == weights.shape == (4, 16, CONTEXT)


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


def test_ends_are_the_manifests_or_the_tokenizers(folder, tmp_path):
    apart = Corpus(str(folder), separate_documents=True)
    assert end_of_documents(apart, ByteTokenizer()) == 256
    assert end_of_documents(Corpus(str(folder)), ByteTokenizer()) is None
    (tmp_path / "train.bin").write_bytes((folder / "train.bin").read_bytes())
    numbers = Corpus(str(tmp_path), corpus_vocabulary=257, separate_documents=True)
    assert end_of_documents(numbers, ByteTokenizer()) == 256
    with pytest.raises(UserError, match=r"nothing says which token of .* ends a document"):
        end_of_documents(numbers, NumberTokenizer(257))


def test_tokenizers_of_corpora_are_opened_and_known_again(tmp_path):
    for number, tokenizer in enumerate([CharTokenizer(TEXT), learn_bpe([TEXT], 300)]):
        folder = write_corpus(tmp_path / str(number), tokenizer)
        found = tokenizer_of(Corpus(str(folder)))
        assert found.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
        path = folder / "tokenizer.json"
        path.write_text(path.read_text() + " ")
        with pytest.raises(UserError, match="has changed"):
            tokenizer_of(Corpus(str(folder)))


def test_a_pretrained_model_needs_its_own_tokens():
    ours, theirs = learn_bpe([TEXT], 300), learn_bpe([TEXT], 290)
    check_same(ours, None)
    check_same(ours, NumberTokenizer(9))
    check_same(ours, learn_bpe([TEXT], 300))
    for other in (theirs, ByteTokenizer()):
        with pytest.raises(UserError, match="other tokens than the pre-trained model"):
            check_same(ours, other)
