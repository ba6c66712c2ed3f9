"""What training costs: parameters, and FLOPs by the usual count."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from tlite.config import to_dict
from tlite.experiment import Experiment
from tlite.models import make_model
from tlite.models.parameters import named_arrays

LOOKED_UP = "wide.", "word_ngrams.", "character_ngrams."  # linear models beside a transformer
GENERATOR, CLASSIFIER, TRANSLATOR = (kind.__name__ for kind in Experiment.__args__)


def flops_per_token(
    model: Mapping[str, Any], sizes: Mapping[str, int], kind: str = GENERATOR
) -> float:
    """Of a training step: 6 N + 12 L H K T, forward once and backward twice.

    (Kaplan et al. 2020; attention as Chowdhery et al. 2022, appendix B, over the whole context.)
    N leaves out tables that are looked up: embeddings, learned positions, words and bigrams of a
    logistic regression; an embedding that is the output layer too counts once. The head of a
    classifier, which is computed once a text, counts 1/T. A translator's attention itself, T of
    which differs from batch to batch, is not counted, nor are validations and pre-training. XLA's
    own count takes the body of a scan once.

    Args:
        model: its config's fields.
        sizes: parameters by name of the array.
        kind: of its experiment.
    """
    tied = kind != CLASSIFIER and not any(name.startswith("head.") for name in sizes)
    table = "encoder.embedding.table" if kind == TRANSLATOR else "embedding.table"
    by_token, by_text = 0, 0
    for name, size in sizes.items():
        if name in ("weights", "bias") or name.startswith(LOOKED_UP):
            continue
        if kind == CLASSIFIER and name.startswith(("head.", "projection")):
            by_text += size
        elif not name.endswith(".table") or (tied and name == table):
            by_token += size
    attention = 0
    if "num_heads" in model and kind != TRANSLATOR:
        part = model["attention"].get("fields", model["attention"])  # of a class of the user's
        width = part.get("head_dim") or model["width"] // model["num_heads"]
        attention = 12 * model["num_blocks"] * model["num_heads"] * width * model["context"]
    return 6 * (by_token + by_text / model["context"]) + attention


def parameter_sizes(config) -> dict[str, int]:
    """Parameters of each array of a model, by name."""
    shapes = named_arrays(jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0))))
    return {name: math.prod(leaf.shape) for name, leaf in shapes.items()}


def flops_of_generator(config) -> float:
    """`flops_per_token` of a generator's config."""
    return flops_per_token(to_dict(config), parameter_sizes(config))
