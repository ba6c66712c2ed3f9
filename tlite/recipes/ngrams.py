"""The linear model of n-grams beside a classifier's transformer: found before it is trained."""

from collections.abc import Iterable

import numpy as np

from tlite.errors import UserError
from tlite.experiment import ClassifierExperiment, Words
from tlite.models import ClassifierConfig
from tlite.recipes.finetuning import start_from
from tlite.recipes.recipe import Recipe
from tlite.text import IndexTokenizer, NgramTokenizer, select_vocabulary
from tlite.text.ngrams import is_of_words
from tlite.training import TrainState

ROWS = "wide.word_rows", "wide.character_rows"


def learn_words(settings: Words, texts: Iterable[str]) -> IndexTokenizer:
    """The words of the texts, and their n-grams where they are asked for."""
    frequency, marks = settings.min_document_frequency, settings.marks
    if not settings.has_ngrams:
        return IndexTokenizer(select_vocabulary(texts, frequency, marks), marks=marks)
    sizes = settings.word_ngrams, settings.character_ngrams
    return NgramTokenizer.learn(texts, frequency, *sizes, marks)


def rows_of_ngrams(experiment: ClassifierExperiment, tokenizer) -> dict[str, int]:
    """How many n-grams of words and of characters the model has.

    Raises:
        UserError: it can't have them.
    """
    is_transformer = isinstance(experiment.model, ClassifierConfig)
    if not isinstance(tokenizer, NgramTokenizer):
        if experiment.ngram_l2 != ClassifierExperiment.ngram_l2:
            print("warning: --ngram-l2 has no effect without --word-ngrams or --character-ngrams")
        return dict.fromkeys(ROWS, 0) if is_transformer else {}
    if not is_transformer:
        raise UserError("n-grams stand beside a transformer: use --bigrams of this model instead")
    if experiment.sentences or experiment.model.wide.bigrams:
        other = "--sentences" if experiment.sentences else "--wide.bigrams"
        raise UserError(f"n-grams are of whole texts and take the place of bigrams: no {other}")
    if not tokenizer.ngrams:
        raise UserError("no n-gram is in so many texts: lower --min-document-frequency")
    of_words = sum(is_of_words(ngram) for ngram in tokenizer.ngrams)
    return dict(zip(ROWS, (of_words, len(tokenizer.ngrams) - of_words), strict=True))


def with_ngrams(
    recipe: Recipe, members: TrainState, tokens: np.ndarray, labels: np.ndarray
) -> TrainState:
    """A classifier run's members, all with the linear model that fits the training texts."""
    from tlite.baselines.convex import fit_bags_of_words  # SciPy is slow to import

    experiment, model = recipe.experiment, recipe.experiment.model
    first = model.vocabulary_size + model.wide.word_rows
    sizes = [size for size in (first, model.wide.character_rows) if size]
    features = tokens[:, model.context :]
    weights, bias = fit_bags_of_words(
        features, labels, sizes, model.num_classes, experiment.ngram_l2
    )
    found = {"word_ngrams.weights": weights[:first], "word_ngrams.bias": bias}
    found |= {"character_ngrams.weights": weights[first:]} if len(sizes) > 1 else {}
    print(f"a linear model of {sum(sizes):,} words and n-grams stands beside the transformer")
    return start_from(recipe.trainer, found, members)
