"""What training costs: parameters, and FLOPs by the usual count."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from tlite.comparison.entries import Entry
from tlite.config import from_dict, to_dict
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.models import make_model
from tlite.models.parameters import by_name
from tlite.training.checkpoints import Checkpoints, saved_arrays

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
    own_head = any(name.startswith("head.") for name in sizes)
    tied = kind != CLASSIFIER and not own_head
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
        width = part.get("head_width") or model["width"] // model["num_heads"]
        attention = 12 * model["num_blocks"] * model["num_heads"] * width * model["context"]
    return 6 * (by_token + by_text / model["context"]) + attention


def parameter_sizes(config) -> dict[str, int]:
    """Parameters of each array of a model, by name."""
    shapes = by_name(jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0))))
    return {name: math.prod(leaf.shape) for name, leaf in shapes.items()}


def flops_of_generator(config) -> float:
    """`flops_per_token` of a generator's config."""
    return flops_per_token(to_dict(config), parameter_sizes(config))


@dataclass(frozen=True)
class Cost:
    """Of one model."""

    parameters: int | None
    """None: not known."""
    tokens_per_step: int
    """Positions that an update is computed of, padding among them."""
    flops_per_step: float | None
    """None: not known, or nothing that is counted."""


def cost(entry: Entry) -> Cost:
    """What a model costs, without running anything of it."""
    model, training = entry.experiment["model"], entry.training
    sizes = sizes_of(entry)
    examples = training.batch_size * training.accumulate
    sentences = max(entry.experiment.get("sentences", 0), 1)
    if entry.experiment["kind"] == TRANSLATOR:
        tokens = examples  # whose batches are counted so
    else:
        tokens = examples * model["context"] * sentences
    if sizes is None:
        return Cost(None, tokens, None)
    flops = flops_per_token(model, sizes, entry.experiment["kind"])
    return Cost(sum(sizes.values()), tokens, flops * tokens if flops else None)


def sizes_of(entry: Entry) -> dict[str, int] | None:
    """Parameters of each array: by the config; with functions of the user's by a checkpoint.

    None where there is none yet.
    """
    try:
        return parameter_sizes(from_dict(Experiment, entry.content["experiment"]).model)
    except (ValueError, UserError):
        return _saved_sizes(entry)


def _saved_sizes(entry: Entry) -> dict[str, int] | None:
    """Of the arrays of the last checkpoint, whose first axis is of the run's models."""
    folder = entry.folder / "checkpoints"
    if not folder.is_dir():
        return None
    with Checkpoints(folder) as checkpoints:
        steps = checkpoints.steps()
    if not steps:
        return None
    try:
        found = saved_arrays(folder.absolute() / str(steps[-1]), ["parameters"])
        return {name: math.prod(leaf.shape[1:]) for name, leaf in found["parameters"].items()}
    except Exception:  # of Orbax's, of many types: a damaged checkpoint is not counted
        return None
