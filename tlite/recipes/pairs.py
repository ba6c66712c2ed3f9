"""Sentences as a translator reads them: their tokens, and how translations are searched for."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tlite.data import Pair
from tlite.decoding.translate import check_search
from tlite.errors import UserError
from tlite.experiment import TranslatorExperiment
from tlite.recipes.options import Search
from tlite.text import PairTokenizer, Tokenizer


def with_search(
    experiment: TranslatorExperiment, search: Search, max_length: int | None = None
) -> TranslatorExperiment:
    """The experiment with other settings of its search, where they are given.

    Raises:
        UserError: they make no sense.
    """
    given = {field.name: getattr(search, field.name) for field in dataclasses.fields(Search)}
    given = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    try:
        experiment = dataclasses.replace(experiment, **given)
        check_search(experiment.model, experiment.beam, experiment.length_penalty, max_length)
    except ValueError as error:
        raise UserError(str(error)) from error
    return experiment


def encode_pairs(
    experiment: TranslatorExperiment, tokenizer: PairTokenizer, pairs: list[Pair]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sources with their end, targets with start and end.

    Raises:
        UserError: one is longer than the model's context, and is not to be cut.
    """
    places = [pair.where for pair in pairs]
    sources = encode_sources(experiment, tokenizer, [pair.source for pair in pairs], places)
    targets = tokenizer.encode_targets(pair.target for pair in pairs)
    return sources, fit_context(experiment, targets, places, experiment.model.context + 1)


def encode_sources(
    experiment: TranslatorExperiment,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    places: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Tokens of each sentence and its end."""
    places = places or [f"line {number}" for number in range(1, len(texts) + 1)]
    sources = [np.asarray(ids, np.int32) for ids in tokenizer.encode_ids(texts)]
    return fit_context(experiment, sources, places, experiment.model.context)


def fit_context(
    experiment: TranslatorExperiment, rows: list[np.ndarray], places: Sequence[str], length: int
) -> list[np.ndarray]:
    """The rows, cut to `length` tokens (the end symbol stays) if the experiment says `truncate`."""
    for row, place in zip(rows, places, strict=True):
        if len(row) > length and not experiment.truncate:
            raise UserError(
                f"{place} has {len(row)} tokens, which is more than the context of "
                f"{experiment.model.context}: cut it (--truncate of tlite train and translate), or "
                "train with a larger --context"
            )
    return [row if len(row) <= length else np.r_[row[: length - 1], row[-1:]] for row in rows]
