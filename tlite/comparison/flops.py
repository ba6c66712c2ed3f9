"""What training costs: parameters, and FLOPs by the usual count."""

from collections.abc import Collection, Mapping
from typing import Any

import jax

from tlite.config import to_dict
from tlite.experiment import Experiment
from tlite.models import make_model
from tlite.models.parameters import named_arrays
from tlite.training.config import TrainingConfig
from tlite.training.optimizers import select_trainable
from tlite.training.run_dir import component_fields

LOOKED_UP = "wide.", "word_ngrams.", "character_ngrams."  # linear models beside a transformer
GENERATOR, CLASSIFIER, TRANSLATOR = (kind.__name__ for kind in Experiment.__args__)


def base_kind(experiment: Mapping[str, Any]) -> str:
    """Return the name of the experiment class of tlite that it is, or derives from.

    It follows from the fields, so that no user code runs.

    Args:
        experiment: result of `experiment_fields`.
    """
    if "prompt" in experiment:
        return GENERATOR
    return TRANSLATOR if "bleu_sentences" in experiment else CLASSIFIER


def flops_per_token(
    model: Mapping[str, Any],
    sizes: Mapping[str, int],
    kind: str = GENERATOR,
    no_gradient: Collection[str] = (),
) -> float:
    """Return the FLOPs per token of a training step: 6 N + 12 L H K T, backward twice the forward.

    (Kaplan et al. 2020; attention as Chowdhery et al. 2022, appendix B, over the whole context.)
    Frozen matrices count 4 N: the backward pass needs the gradient of their inputs alone, and XLA
    leaves out that of layers before the first trained one, too. N leaves out tables that are looked
    up: embeddings, learned positions, words and bigrams of a logistic regression; an embedding that
    is the output layer too counts once. The head of a classifier, which is computed once a text,
    counts 1/T. A translator's attention itself, T of which differs from batch to batch, is not
    counted, nor are validations and pre-training. XLA's own count takes the body of a scan once.

    Args:
        model: its config's fields.
        sizes: parameters by name of the array.
        kind: `base_kind` of its experiment.
        no_gradient: names of the frozen arrays (`without_gradient`).
    """
    tied = kind != CLASSIFIER and not any(name.startswith("head.") for name in sizes)
    table = "encoder.embedding.table" if kind == TRANSLATOR else "embedding.table"
    by_token, by_text = 0.0, 0.0
    for name, size in sizes.items():
        if name in ("weights", "bias") or name.startswith(LOOKED_UP):
            continue
        flops = (4 if name in no_gradient else 6) * size
        if kind == CLASSIFIER and name.startswith(("head.", "projection")):
            by_text += flops
        elif not name.endswith(".table") or (tied and name == table):
            by_token += flops
    attention = 0
    if "num_heads" in model and kind != TRANSLATOR:
        part = component_fields(model["attention"])
        width = part.get("head_dim") or model["width"] // model["num_heads"]
        attention = 12 * model["num_blocks"] * model["num_heads"] * width * model["context"]
    return by_token + by_text / model["context"] + attention


def without_gradient(training: TrainingConfig, arrays: Mapping[str, Any]) -> set[str]:
    """Return the names of the arrays (or shapes) that are frozen, and have no low-rank update.

    The gradient of an update is computed from its matrix's.
    """
    low_rank, trained = training.low_rank, select_trainable(training, dict(arrays))
    frozen = {name: a for name, a in arrays.items() if name not in trained}
    return {n for n, a in frozen.items() if low_rank is None or not low_rank.matches(n, a)}


def parameter_shapes(config) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a model's arrays by name."""
    return named_arrays(jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0))))


def parameter_sizes(config) -> dict[str, int]:
    """Return the number of parameters of each array of a model by name."""
    return {name: leaf.size for name, leaf in parameter_shapes(config).items()}


def flops_of_generator(config) -> float:
    """`flops_per_token` of a generator's config."""
    return flops_per_token(to_dict(config), parameter_sizes(config))
