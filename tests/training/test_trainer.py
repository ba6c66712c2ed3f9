import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches
from tlite.training.loop import validate

TOKENS = np.random.default_rng(9).integers(0, 11, 500)
MODEL = GeneratorConfig(vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=1)
# With so large an epsilon Adam's steps are 0.1 of the gradient. As it is used it would not notice a
# gradient that is a sum in place of a mean; and what is clipped hides that, too.
TRAINING = TrainingConfig(batch_size=8, learning_rate=1e2, adam_epsilon=1e3, weight_decay=1e-4)


def make_trainer(num_devices=1, model=MODEL, **changes):
    training = dataclasses.replace(TRAINING, **changes)
    devices = jax.local_devices()[:num_devices]
    return Trainer(generator_task(model), training, jnp.asarray(TOKENS), devices)


def run(trainer, *parts):
    members, step, losses = trainer.init(), 0, []
    for num_steps in parts:
        members, history = trainer.train(members, step, num_steps)
        losses.append(history["loss"])
        step += num_steps
    return flat(members.parameters), np.concatenate(losses)


@functools.cache
def trainer_alone(**changes):
    """On one device, compiled once for all of its runs."""
    return make_trainer(**changes)


@functools.cache
def run_alone(**changes):
    """Ten steps on one device."""
    return run(trainer_alone(**changes), 10)


def flat(parameters):
    """All parameters of each member as one row."""
    return np.concatenate([np.asarray(a).reshape(len(a), -1) for a in parameters.values()], axis=1)


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_training_lowers_the_loss():
    text = np.tile(np.arange(5), 100)
    training = dataclasses.replace(TRAINING, learning_rate=1e-2, adam_epsilon=1e-8)
    _, losses = run(Trainer(generator_task(MODEL), training, jnp.asarray(text)), 60)
    assert losses[-1] < 0.5 * losses[0]


def test_devices_do_not_change_the_numbers():
    assert_same(run(make_trainer(4), 10), run_alone())


def test_devices_do_not_change_the_numbers_of_several_seeds():
    trainer = make_trainer(4, seeds=2, clip_norm=0.5)
    assert trainer.mesh.shape["member"] == 2
    assert_same(run(trainer, 10), run_alone(seeds=2, clip_norm=0.5))


def test_accumulated_batches_train_as_one_large_batch():
    accumulated = make_trainer(2, batch_size=2, accumulate=4)
    assert_same(run(accumulated, 10), run_alone())


@pytest.mark.parametrize("changes", [{}, {"precision": "mixed"}])
def test_where_calls_are_cut_changes_no_bit(changes):
    whole = run_alone(**changes)
    parts = run(trainer_alone(**changes), 1, 6, 3)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


def test_a_seed_alone_trains_as_among_five():
    together = run(make_trainer(seeds=5), 10)
    for index, alone in ((0, run_alone()), (4, run_alone(seed=4))):
        assert_same(alone, (together[0][[index]], together[1][:, [index]]))
    assert len({row.tobytes() for row in together[0]}) == 5


def test_a_learning_rate_alone_trains_as_among_several():
    rates = (TRAINING.learning_rate, 3e2)
    together = run(make_trainer(learning_rates=rates), 10)
    for index, alone in enumerate((run_alone(), run_alone(learning_rate=rates[1]))):
        assert_same(alone, (together[0][[index]], together[1][:, [index]]))


def test_members_are_every_seed_with_every_learning_rate():
    config = dataclasses.replace(TRAINING, seed=5, seeds=2, learning_rates=(0.1, 0.2))
    assert config.members == [(5, 0.1), (6, 0.1), (5, 0.2), (6, 0.2)]


def test_everything_is_compiled_once():
    trainer = make_trainer(2)
    members = trainer.init()
    batches = validation_batches(TOKENS, MODEL.context, 4, 2)
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
    )

    def rounds(step, lengths):
        nonlocal members
        for num_steps in lengths:
            members, _ = trainer.train(members, step, num_steps)
            trainer.evaluate(members.parameters, batches)
            step += num_steps
        return len(compilations)

    first = rounds(0, [3])
    assert first > 0
    assert rounds(3, [5, 1, 7, 2]) == first


def test_noise_and_batches_differ_by_step_and_seed():
    _, losses = run_alone(seeds=2, learning_rate=0.0)
    assert len(np.unique(losses)) == losses.size


def test_without_a_learning_rate_nothing_moves():
    still = {"seeds": 2, "learning_rate": 0.0}
    start = flat(trainer_alone(**still).init().parameters)
    np.testing.assert_array_equal(run_alone(**still)[0], start)


@pytest.mark.parametrize(("batch_size", "num_devices"), [(3, 2), (64, 1)])
def test_validation_does_not_depend_on_the_batch_size(batch_size, num_devices):
    trainer = make_trainer(num_devices, seeds=2)
    members = trainer.init()
    shards = trainer.num_shards
    batches = validation_batches(TOKENS, MODEL.context, batch_size, shards)
    assert batches[2].sum() == len(TOKENS) - 1
    means = validate(trainer, members, batches)
    log_softmax = jax.jit(lambda model, tokens: jax.nn.log_softmax(model(tokens)))
    for member, model in enumerate(trainer.models(members.parameters)):
        starts = range(0, len(TOKENS) - 1, MODEL.context)
        losses = []
        for start in starts:
            window = TOKENS[start : start + MODEL.context + 1]
            log_p = np.asarray(log_softmax(model, window[:-1]))
            losses += [-log_p[t, target] for t, target in enumerate(window[1:])]
        assert means["loss"][member] == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize(("num_devices", "at_a_time"), [(1, 3), (2, 2), (2, 100)])
def test_batches_are_cut_to_fit_the_devices(num_devices, at_a_time):
    trainer = make_trainer(num_devices, examples_per_device=at_a_time)
    parts = trainer.config.batch_size // num_devices, trainer.config.accumulate
    assert parts == {(1, 3): (2, 4), (2, 2): (2, 2), (2, 100): (4, 1)}[num_devices, at_a_time]
    if parts != (4, 1):  # where it was cut
        assert_same(run(trainer, 10), run_alone())
