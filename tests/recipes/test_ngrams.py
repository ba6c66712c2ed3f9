"""A classifier with n-grams: what it starts from, keeps, adds to the logits, and gives back."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite
from tests.helpers.recipes import TRANSFORMER, train, varied
from tlite.experiment import Pretraining, Words
from tlite.models import Wide
from tlite.recipes import open_recipe, start
from tlite.recipes.classifier import encode_texts
from tlite.text import NgramTokenizer

pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")

WORDS = Words(min_document_frequency=2, word_ngrams=2, character_ngrams=3)
NGRAMS = varied(TRANSFORMER, tokenizer=WORDS, weight_decay=0.1, clip_norm=1.0, ngram_l2=1e-3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(NGRAMS, tmp_path_factory.mktemp("runs") / "ngrams")


def linear(parameters):
    return {name: np.asarray(a) for name, a in parameters.items() if "_ngrams." in name}


def test_the_members_start_from_one_linear_model_and_keep_it(run):
    first, (last, _) = run.start_members().parameters, run.parameters("last")
    for name, array in linear(first).items():
        assert abs(array).max() > 0 or name == "character_ngrams.bias"
        np.testing.assert_array_equal(array[0], array[1])
        np.testing.assert_array_equal(array, linear(last)[name])
    tables = first["embedding.table"], last["embedding.table"]
    assert not np.array_equal(*map(np.asarray, tables))


def test_the_linear_model_knows_its_texts_and_is_added_where_there_is_no_noise(run, capsys):
    model, tokenizer = tlite.load(run.run.folder)
    assert isinstance(tokenizer, NgramTokenizer)
    examples, context = list(run.data.training), run.experiment.model.context
    tokens = encode_texts(run.experiment, tokenizer, [example.text for example in examples])
    with pytest.raises(ValueError, match="features are missing"):
        model(jnp.asarray(tokens[:, :context]))

    @jax.jit
    def logits(model, tokens):
        added = model.feature_logits(tokens[:, context:])
        return model(tokens), model.read(tokens[:, :context]), added

    both, alone, added = map(np.asarray, logits(model, tokens))
    np.testing.assert_allclose(both, alone + added, rtol=1e-5, atol=1e-5)
    right = added.argmax(-1) == np.array([example.label for example in examples])
    assert right.mean() > 0.9
    open_recipe(run.run.folder).evaluate("training")
    told = f"the linear model of n-grams alone: training accuracy {100 * right.mean():.1f} %"
    assert told in capsys.readouterr().out


def test_the_transformer_is_trained_as_without_them(run, tmp_path):
    words = dataclasses.replace(WORDS, word_ngrams=0, character_ngrams=0)
    plain = train(dataclasses.replace(NGRAMS, tokenizer=words), tmp_path / "run")
    of_plain = plain.parameters("last")[0]
    of_both = run.parameters("last")[0]
    kinds = "word_ngrams", "character_ngrams"
    added = {f"{kind}.{name}" for kind in kinds for name in ("weights", "bias")}
    assert set(of_both) - set(of_plain) == added
    for name, array in of_plain.items():
        np.testing.assert_allclose(of_both[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Words, {"min_document_frequency": 0}),
        (Words, {"word_ngrams": -1}),
        (Words, {"word_ngrams": 1}),
        (Words, {"character_ngrams": 17}),
        (Wide, {"word_rows": -1}),
        (partial(varied, NGRAMS), {"ngram_l2": float("inf")}),
        (partial(varied, NGRAMS), {"sentences": -1}),
    ],
)
def test_numbers_that_can_not_be_are_told(kind, fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        kind(**fields)


def test_pretraining_reads_the_words_alone(tmp_path):
    pretraining = Pretraining(pretraining_steps=2, pretraining_batch_size=2)
    run = start(dataclasses.replace(NGRAMS, pretraining=pretraining), tmp_path / "run")
    members = run.start_members()
    assert abs(linear(members.parameters)["word_ngrams.weights"]).max() > 0
