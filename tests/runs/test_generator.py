"""Runs of generators: tokenizers, splits and windows, training on texts and corpora."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tests.helpers.corpora import DOCUMENTS, write_corpus
from tests.helpers.runs import (
    GENERATOR,
    assert_has_examples,
    assert_same_state,
    interrupted,
    on_text,
    resume,
    train,
    varied,
)
from tests.helpers.tokenizers import words
from tlite import functional as F
from tlite.data import TextFile, split_tokens
from tlite.data.corpus import Corpus
from tlite.experiment import BPE, Characters, GeneratorExperiment, Pretrained, TokenizerFile
from tlite.pretrained import PretrainedTokenizer
from tlite.runs import GeneratorRun, Run, generator
from tlite.runs.generator import (
    TextSplit,
    corpus_splits,
    document_end_id,
    end_ids,
    fit_vocabulary,
    open_corpus_tokenizer,
    prompt_tokens,
    text_splits,
)
from tlite.runs.models import load
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer
from tlite.training import Trainer
from tlite.training.metrics import read_metrics
from tlite.training.run_dir import RunDir

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")

TEXT = "".join(DOCUMENTS)
TRAIN_TEXT, VALIDATION_TEXT = split_tokens(TEXT, 0.1)

TOKENIZERS = {"characters": Characters(), "bpe": BPE(280)}
CONTEXT = 16  # of splits that no model is trained on


def make_tokenizer(settings, text=TEXT, fraction=0.1):
    """Return settings and tokenizer of a text and its training split."""
    training, _ = split_tokens(text, fraction)
    return generator.make_tokenizer(settings, lambda limit: [training if limit else text])


LEARNED = make_tokenizer(BPE(280))[1]
TEXT_TOKENIZERS = {"characters": CharTokenizer(TEXT), "bytes": ByteTokenizer(), "bpe": LEARNED}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    return on_text(path, TEXT, validation_fraction=0.1).data


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(str(write_corpus(tmp_path_factory.mktemp("corpora") / "corpus")))


@pytest.fixture(scope="module")
def numbers(corpus, tmp_path_factory):
    """The same tokens as nanoGPT stores them, without a manifest."""
    copy = tmp_path_factory.mktemp("numbers")
    for name in ("train.bin", "val.bin"):
        (copy / name).write_bytes(Path(corpus.folder, name).read_bytes())
    return Corpus(str(copy), corpus_vocabulary=257)


def experiment(data, **changes):
    return varied(GENERATOR, **{"data": data, "prompt": "12 bottles", "dropout": 0.0} | changes)


def split_corpus(corpus, **changes):
    corpus = dataclasses.replace(corpus, **changes)
    sizes = {"vocabulary_size": 257, "context": CONTEXT}
    splits = corpus_splits(experiment(corpus, **sizes), open_corpus_tokenizer(corpus), corpus)
    return dict(zip(("training", "validation"), splits, strict=True))


def split_text(text, tokenizer, context, fraction, **changes):
    source = TextFile("-", validation_fraction=fraction)
    return text_splits(experiment(source, context=context, **changes), tokenizer, text)


# Tokenizers


@pytest.mark.parametrize("tokenizer", [*TEXT_TOKENIZERS.values(), NumberTokenizer(9)])
def test_saved_tokenizer_is_recognised_by_its_file(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = GeneratorRun.load_tokenizer(RunDir(tmp_path, GeneratorExperiment("x"), {}))
    assert (type(again), len(again)) == (type(tokenizer), len(tokenizer))
    text = "1 2 3" if isinstance(tokenizer, NumberTokenizer) else "the <|endoftext|>"
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
    # An empty prompt is the end token.
    if ends := end_ids(tokenizer):
        assert prompt_tokens(tokenizer, "").tolist() == ends == [tokenizer.eos_id]
    else:
        assert "prompt '' has no token" in complaint(prompt_tokens, tokenizer, "")


def test_changed_tokenizer_is_an_error(tmp_path):
    LEARNED.save(tmp_path)
    resolved, tokenizer = make_tokenizer(TokenizerFile(str(tmp_path)))
    assert tokenizer.encode(TEXT).tolist() == LEARNED.encode(TEXT).tolist()
    assert make_tokenizer(resolved)[0] == resolved
    assert "has changed" in complaint(make_tokenizer, TokenizerFile(str(tmp_path), "0"))
    for number, tokenizer in enumerate([CharTokenizer(TEXT), LEARNED]):
        folder = write_corpus(tmp_path / str(number), tokenizer)
        opened = open_corpus_tokenizer(Corpus(str(folder)))
        assert opened.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
        path = folder / "tokenizer.json"
        path.write_text(path.read_text() + " ")
        assert "has changed" in complaint(open_corpus_tokenizer, Corpus(str(folder)))


def test_files_of_a_large_vocabulary_are_not_read_as_uint16(tmp_path):
    words({"[UNK]": 0} | {f"w{i}": i for i in range(1, 70_000)}).save(tmp_path / "tokenizer.json")
    tokens = np.uint32([1, 69_999, 5, 66_000])
    for name in ("train", "val"):
        tokens.tofile(tmp_path / f"{name}.bin")
    corpus = Corpus(str(tmp_path), corpus_tokenizer=str(tmp_path / "tokenizer.json"))
    assert "--corpus-vocabulary 70000" in complaint(open_corpus_tokenizer, corpus)
    corpus = dataclasses.replace(corpus, corpus_vocabulary=70_000)
    assert len(open_corpus_tokenizer(corpus)) == 70_000
    assert corpus.open("training").read(0, 4).tolist() == tokens.tolist()


def test_pieces_are_learned_from_the_training_split():
    text = "the cat " * 90 + "zzzzzzzz" * 10
    full, learned = (make_tokenizer(BPE(300), text, fraction)[1] for fraction in (0.001, 0.1))
    assert len(full.encode("zzzzzzzz")) < 8 == len(learned.encode("zzzzzzzz"))


def test_embedding_may_have_more_rows_than_subwords():
    assert [fit_vocabulary(size, LEARNED) for size in (0, 320)] == [280, 320]
    assert fit_vocabulary(0, LEARNED, at_least=400) == 400
    for size, name in ((279, "bpe"), (999, "characters"), (256, "bytes")):
        message = complaint(fit_vocabulary, size, TEXT_TOKENIZERS[name])
        assert f"vocabulary_size is {size}, but" in message


def test_characters_unknown_to_a_pretrained_model_warn(capsys):
    tokenizer = PretrainedTokenizer(*CharTokenizer("ab ").to_hugging_face())
    split_text("a☃ b☃ " * 10, tokenizer, 4, 0.2, init_from=Pretrained("x"))
    assert "20 of 60" in capsys.readouterr().err


# Splits of texts and corpora


def test_document_end_is_that_of_manifest_or_tokenizer(corpus, numbers):
    assert document_end_id(corpus, ByteTokenizer()) is None
    separate = [dataclasses.replace(c, separate_documents=True) for c in (corpus, numbers)]
    assert [document_end_id(c, ByteTokenizer()) for c in separate] == [256, 256]
    message = complaint(document_end_id, separate[1], NumberTokenizer(257))
    assert "separate_documents" in message


@pytest.mark.parametrize("name", TEXT_TOKENIZERS)
@given(text=st.text(st.sampled_from(sorted(set(TEXT)))), fraction=st.floats(0.01, 0.99))
def test_splits_of_a_text_have_its_characters_and_bytes(name, text, fraction):
    tokenizer = TEXT_TOKENIZERS[name]
    splits = split_text(text, tokenizer, CONTEXT, fraction)
    texts = [tokenizer.decode(split.tokens) for split in splits]
    assert "".join(texts) == text
    for split, content in zip(splits, texts, strict=True):
        assert tokenizer.byte_sizes()[split.tokens].sum() == len(content.encode())
        np.testing.assert_array_equal(split.tokens, tokenizer.encode(content))


def test_targets_per_byte_of_a_corpus_are_exact(corpus, numbers):
    split = split_corpus(corpus)["validation"]
    size = sum(len(document.encode()) for document in DOCUMENTS[-8:])
    assert split.tokens_per_byte == len(split.tokens) / size
    assert split.targets_per_byte == pytest.approx((len(split.tokens) - 1) / (size - 1), rel=1e-12)
    assert split_corpus(numbers)["validation"].targets_per_byte is None


def test_corpus_has_the_windows_of_a_text(corpus):
    split = split_corpus(corpus)["training"]
    tokens = split.tokens.read(0, len(split.tokens)).astype(np.int32)
    text = TextSplit(split.tokenizer, CONTEXT, tokens, None)
    for actual, expected in zip(split.windows(), text.windows(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert split.targets_per_byte == text.targets_per_byte


def test_validation_windows_are_spread_without_overlap(corpus):
    split = split_corpus(corpus, validation_tokens=10 * CONTEXT)["training"]
    tokens = split.tokens.read(0, len(split.tokens)).tolist()
    inputs, targets, weights = split.windows()
    assert weights.all()
    windows = np.c_[inputs, targets[:, -1]].tolist()
    starts = [i * (len(tokens) - CONTEXT - 1) // 9 for i in range(10)]
    assert windows == [tokens[start : start + CONTEXT + 1] for start in starts]
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert min(np.diff(starts)) >= CONTEXT
    (one,) = split_corpus(corpus, validation_tokens=1)["validation"].windows()[0]
    assert len(one) == CONTEXT


# Runs


@pytest.fixture(scope="module")
def trained(text, corpus, numbers, tmp_path_factory):
    """Return a trained run by name: a tokenizer on the text, or a corpus; each trains once."""
    runs, folder = {}, tmp_path_factory.mktemp("runs")
    separate = dataclasses.replace(corpus, separate_documents=True)
    experiments = {"separate": experiment(separate), "together": experiment(numbers, prompt="1 2")}
    experiments |= {n: experiment(text, tokenizer=t) for n, t in TOKENIZERS.items()}

    def trained(name):
        if name not in runs:
            runs[name] = train(experiments[name], folder / name)
        return runs[name]

    return trained


@jax.jit
def nats(model, inputs, targets):
    return F.token_cross_entropy(model(inputs), targets)


def total_nats(run, tokens):
    """Of every token but the first, in windows that follow each other."""
    parameters, _ = run.parameters("last")
    model, context, total = run.trainer.models(parameters)[0], GENERATOR.model.context, 0.0
    for at in range(0, len(tokens) - 1, context):
        inputs, targets = tokens[at : at + context], tokens[at + 1 : at + context + 1]
        total += float(np.asarray(nats(model, inputs[: len(targets)], targets)).sum())
    return total


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_bits_per_byte_equal_those_by_hand(tokenizer, trained, capsys):
    run = trained(tokenizer)
    tokens = run.tokenizer.encode(VALIDATION_TEXT)
    assert run.tokenizer.decode(tokens) == VALIDATION_TEXT
    first = len(run.tokenizer.decode(tokens[:1]).encode())
    bits = total_nats(run, tokens) / math.log(2) / (len(VALIDATION_TEXT.encode()) - first)
    line = read_metrics(run.dir.metrics)[-1]
    assert line["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert_has_examples(run)
    Run.open(run.dir.path).evaluate(checkpoint="last")
    out = capsys.readouterr().out
    match = re.search(r", ([\d.]+) bits per byte,", out)
    assert float(match[1]) == pytest.approx(bits, abs=1e-4)
    assert re.search(
        r"\n95 % for new stretches of text like this one, with this seed: ± 0\.\d{4}\n", out
    )


def test_external_tokenizer_is_saved_with_the_run(text, tmp_path):
    (tmp_path / "other").mkdir()
    LEARNED.save(tmp_path / "other")
    file = TokenizerFile(str(tmp_path / "other"))
    saved = Run.create(experiment(text, tokenizer=file), tmp_path / "run").experiment.tokenizer
    assert (saved.path, len(saved.sha256)) == (file.path, 64)
    (tmp_path / "other" / "tokenizer.json").unlink()
    run = Run.open(tmp_path / "run")
    assert run.experiment.model.vocabulary_size == len(run.tokenizer) == 280


def test_model_is_loaded_without_a_cpu_backend(trained, monkeypatch):
    run, devices = trained("bpe"), jax.local_devices

    def without_cpu(*_, backend=None):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return devices()

    monkeypatch.setattr(jax, "local_devices", without_cpu)
    model, _ = load(run.dir.path)
    assert np.isfinite(model.embedding.table[...]).all()


def test_report_does_not_validate_again_or_need_memory(text, tmp_path, monkeypatch, capsys):
    run, evaluate, steps = Run.create(experiment(text), tmp_path / "run"), Trainer.evaluate, []

    def without_memory(*_):
        raise MemoryError

    counted = lambda *words, **options: steps.append(0) or evaluate(*words, **options)  # noqa: E731
    monkeypatch.setattr(Trainer, "evaluate", counted)
    monkeypatch.setattr(Trainer, "models", without_memory)
    run.train()
    assert len(steps) == 2 + 1  # two scheduled ones, and one by example for `compare`
    out = capsys.readouterr().out
    loss = read_metrics(run.dir.metrics)[-1]["loss"]
    assert re.search(rf"validation loss {loss:.4f} nats", out)
    assert "no sample: " in out
    assert (run.dir.path / "plots").is_dir()


# Corpora


def test_resume_on_a_corpus_is_bitwise_identical(trained, tmp_path):
    run = trained("separate")
    interrupted(run, tmp_path / "cut", 3, pretraining=True)
    assert_same_state(resume(tmp_path / "cut"), run)


def test_separate_documents_are_masked(trained):
    runs = [trained(name) for name in ("together", "separate")]
    losses = [read_metrics(run.dir.metrics)[-1]["loss"] for run in runs]
    assert losses[0] != losses[1]
    # The validation loss is that of the model with the mask.
    model = runs[1].trainer.models(runs[1].parameters("last")[0])[0]
    inputs, targets, weights = runs[1].built.validation.windows()

    @jax.jit
    def masked(model, inputs, targets):
        logits = model(inputs, segment_ids=F.segment_ids(inputs, 256))
        return F.token_cross_entropy(logits, targets)

    expected = np.asarray(masked(model, inputs, targets)) * weights
    assert losses[1] == pytest.approx(float(expected.sum() / weights.sum()), rel=1e-5)


def test_files_of_nanogpt_have_the_windows_of_the_corpus(corpus, numbers, trained):
    one, other = split_corpus(corpus), split_corpus(numbers)
    for name in one:
        for actual, expected in zip(other[name].windows(), one[name].windows(), strict=True):
            np.testing.assert_array_equal(actual, expected)
    run = trained("together")
    assert "bits_per_byte" not in read_metrics(run.dir.metrics)[-1]

    assert run.tokenizer.decode([3, 200]) == "3 200"
