"""Parameters and FLOPs: as the model itself has them, and as its products are counted by hand."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, TRANSLATOR, fake_run, varied
from tlite.comparison.entries import find_entries
from tlite.comparison.flops import cost, flops_of_generator
from tlite.models import (
    Attention,
    Block,
    FeedForward,
    Head,
    LogisticConfig,
    Loop,
    Pool,
    TranslatorHead,
    Wide,
    make_model,
)
from tlite.models.parameters import by_name
from tlite.training.checkpoints import Checkpoints

D, F, T, V = 8, 32, 8, 11
BLOCK = 4 * D * D + D + 2 * D * F + F + D + 4 * D  # without biases of queries, keys and values


def found(tmp_path, experiment):
    (entry,) = find_entries([fake_run(tmp_path / "r", experiment)]).entries
    return cost(entry)


def size(config):
    shapes = jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head": Head(tied=True)},
        {
            "positions": "rotary",
            "attention": Attention(head_width=6),
            "feed_forward": FeedForward(gated=True),
        },
        {"positions": "relative", "attention": Attention(key_heads=1)},
        {"loop": Loop(scan=True), "block": Block(pre_norm=True)},
    ],
    ids=str,
)
def test_a_generator_costs_what_the_plan_says(tmp_path, changes):
    experiment = varied(GENERATOR, changes, accumulate=3)
    told, number = found(tmp_path, experiment), size(experiment.model)
    assert told.parameters == number
    assert told.tokens_per_step == 3 * 4 * T
    assert told.flops_per_step == told.tokens_per_step * flops_of_generator(experiment.model)


def test_a_classifiers_head_is_computed_once_a_text(tmp_path):
    told = found(tmp_path, varied(CLASSIFIER, {"pool": Pool("mean")}))
    by_token = BLOCK + 12 / 6 * D * T  # one block; attention's products beside its weights'
    by_text = 2 * D + 2
    assert told.tokens_per_step == 4 * T
    assert told.flops_per_step == pytest.approx(6 * 4 * (T * by_token + by_text))


def test_words_that_are_looked_up_are_not_counted(tmp_path):
    plain, wide = (
        found(tmp_path / str(pairs), varied(CLASSIFIER, {"wide": Wide(bigrams=pairs)}))
        for pairs in (0, 100)
    )
    assert wide.flops_per_step == plain.flops_per_step
    assert wide.parameters == plain.parameters + 2 * (V + 100) + 2
    rows = {"wide": Wide(word_rows=50, character_rows=70)}
    ngrams = found(tmp_path / "ngrams", varied(CLASSIFIER, rows))
    assert ngrams.flops_per_step == plain.flops_per_step
    logistic = dataclasses.replace(CLASSIFIER, model=LogisticConfig(V, 2))
    told = found(tmp_path / "logistic", logistic)
    assert (told.parameters, told.flops_per_step) == (2 * V + 2, None)
    assert told.tokens_per_step == 4 * 400


def test_each_sentence_of_a_text_is_computed(tmp_path):
    whole = found(tmp_path / "a", CLASSIFIER)
    parts = found(tmp_path / "b", dataclasses.replace(CLASSIFIER, sentences=5))
    assert parts.flops_per_step == 5 * whole.flops_per_step
    assert parts.tokens_per_step == 5 * whole.tokens_per_step


@pytest.mark.parametrize("embeddings", ["tied", "shared", "separate"])
def test_a_translators_batches_are_of_tokens(tmp_path, embeddings):
    experiment = varied(TRANSLATOR, {"head": TranslatorHead(embeddings)}, batch_size=100)
    told, number = found(tmp_path, experiment), size(experiment.model)
    looked_up = {"tied": 0, "shared": V * D, "separate": 2 * V * D}[embeddings]
    assert (told.parameters, told.tokens_per_step) == (number, 100)
    assert told.flops_per_step == 100 * 6 * (number - looked_up)


def test_with_functions_of_the_users_a_checkpoint_is_counted(tmp_path):
    """Nothing of the user's file is run: there is none."""
    folder = fake_run(tmp_path / "own", GENERATOR)
    (entry,) = find_entries([folder]).entries
    expected = cost(entry)
    content = json.loads((folder / "config.json").read_text())
    own = {"kind": "function", "file": "gone.py", "name": "my_norm", "sha256": "0" * 64}
    content["experiment"]["model"]["norm"] = {"kind": "NormFunction", "function": own}
    (folder / "config.json").write_text(json.dumps(content))
    (entry,) = find_entries([folder]).entries
    assert cost(entry).parameters is cost(entry).flops_per_step is None
    shapes = jax.eval_shape(lambda: make_model(GENERATOR.model, rng=jax.random.key(0)))
    arrays = {name: np.zeros((3, *a.shape), a.dtype) for name, a in by_name(shapes).items()}
    with Checkpoints(folder / "checkpoints", writing=True) as checkpoints:
        checkpoints.save(10, {"parameters": arrays, "optimizer": {"0": np.zeros(3)}}, 1.0)
    assert cost(entry) == expected
    for path in (folder / "checkpoints" / "10").rglob("*"):
        if path.is_file() and path.name != "checkpoint.json":
            path.write_bytes(b"{")
    assert cost(entry).parameters is None
