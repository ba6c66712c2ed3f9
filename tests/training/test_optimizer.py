import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from tlite.models import GeneratorConfig, TransformerGenerator
from tlite.training import TrainingConfig
from tlite.training.optimizer import make_optimizer, schedule

CONFIG = TrainingConfig(
    steps=100, schedule="cosine", warmup_steps=10, final_learning_rate=0.1, beta2=0.99
)


def rate(step, config=CONFIG):
    return float(schedule(config, jnp.int32(step)))


def test_the_warm_up_rises_in_equal_steps_to_the_peak():
    assert [rate(step) for step in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])


def test_the_cosine_falls_from_the_peak_to_its_end():
    half = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))
    assert [rate(10), rate(55), rate(100), rate(1000)] == pytest.approx([1, half, 0.1, 0.1])


def test_a_constant_schedule_is_constant_after_its_warm_up():
    config = dataclasses.replace(CONFIG, schedule="constant")
    assert [rate(step, config) for step in (4, 9, 10, 99)] == pytest.approx([0.5, 1, 1, 1])


@pytest.mark.parametrize("warmup", [1, 10, 400])
def test_the_inverse_square_root_is_that_of_2017_as_a_fraction_of_its_peak(warmup):
    config = dataclasses.replace(CONFIG, schedule="inverse_sqrt", warmup_steps=warmup)

    def original(number):  # "Attention is all you need", eq. 3; updates are counted from 1
        return min(number**-0.5, number * warmup**-1.5)

    # The peak is met twice: at the warm-up's last update and at the one after it.
    for step in (0, warmup - 1, warmup, 2 * warmup, 3 * warmup, 16 * warmup):
        number = step + 1 if step < warmup else step
        assert rate(step, config) == pytest.approx(original(number) / original(warmup), rel=1e-5)


def test_the_inverse_square_root_without_a_warm_up_begins_at_its_peak():
    config = dataclasses.replace(CONFIG, schedule="inverse_sqrt", warmup_steps=0)
    assert [rate(step, config) for step in (0, 3, 99)] == pytest.approx([1, 0.5, 0.1])


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_updates_of_the_flat_vector_equal_adamw_on_the_tree(clip_norm):
    config = dataclasses.replace(CONFIG, weight_decay=0.1, clip_norm=clip_norm)
    model = TransformerGenerator(
        GeneratorConfig(vocabulary_size=7, context=4, width=8, num_heads=2), key=jax.random.key(0)
    )
    flat, unravel = ravel_pytree(model)
    ours, our_state = make_optimizer(config, model), None
    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    decays = jax.tree.map(lambda leaf: leaf.ndim > 1, model)
    theirs = optax.chain(clip, optax.adamw(1.0, 0.9, 0.99, weight_decay=0.1, mask=decays))
    our_state, their_state = ours.init(flat), theirs.init(model)
    for step in range(3):
        gradient = jax.random.normal(jax.random.key(step), flat.shape)
        update, our_state = ours.update(gradient, our_state, flat)
        expected, their_state = theirs.update(unravel(gradient), their_state, unravel(flat))
        np.testing.assert_allclose(-update, ravel_pytree(expected)[0], atol=1e-5)
        flat = flat - 0.1 * update
