import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import host_copy
from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches
from tlite.training.loop import validate

TOKENS = np.random.default_rng(9).integers(0, 11, 500)
MODEL = GeneratorConfig(vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=1)
# With so large an epsilon Adam's steps are 0.1 of the gradient. As it is used it would not notice a
# gradient that is a sum in place of a mean; and what is clipped hides that, too.
TRAINING = TrainingConfig(batch_size=8, learning_rate=1e2, adam_epsilon=1e3, weight_decay=1e-4)
SEVERAL = {"seeds": 2, "clip_norm": 0.5}


@functools.cache
def make_trainer(num_devices=1, **changes):
    """Compiled once for all of its runs."""
    training = dataclasses.replace(TRAINING, **changes)
    devices = jax.local_devices()[:num_devices]
    return Trainer(generator_task(MODEL), training, jnp.asarray(TOKENS), devices)


@functools.cache
def start_of(trainer):
    return host_copy(trainer.init())


def begin(trainer, alike=None):
    """The members before their first step; or those of one that starts alike: compiled once."""
    return trainer.place(start_of(alike or trainer))


def run(trainer, *parts, alike=None):
    members, step, losses = begin(trainer, alike), 0, []
    for num_steps in parts:
        members, history = trainer.train(members, step, num_steps)
        losses.append(history["loss"])
        step += num_steps
    return flat(members.parameters), np.concatenate(losses)


@functools.cache
def run_alone(**changes):
    """Ten steps on one device."""
    return run(make_trainer(**changes), 10)


def flat(parameters):
    """All parameters of each member as one row."""
    return np.concatenate([np.asarray(a).reshape(len(a), -1) for a in parameters.values()], axis=1)


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_devices_do_not_change_the_numbers():
    assert_same(run(make_trainer(4), 10), run_alone())


def test_devices_do_not_change_the_numbers_of_several_seeds():
    trainer = make_trainer(4, **SEVERAL)
    assert tuple(trainer.mesh.shape.values()) == (2, 2, 1)
    assert_same(run(trainer, 10, alike=make_trainer(**SEVERAL)), run_alone(**SEVERAL))


def test_accumulated_batches_train_as_one_large_batch():
    accumulated = make_trainer(2, examples_per_device=1)
    assert (accumulated.config.batch_size, accumulated.config.accumulate) == (2, 4)
    assert_same(run(accumulated, 10, alike=make_trainer()), run_alone())


@pytest.mark.parametrize(("num_devices", "at_a_time"), [(1, 3), (2, 2), (2, 100)])
def test_batches_are_cut_to_fit_the_devices(num_devices, at_a_time):
    config = make_trainer(num_devices, examples_per_device=at_a_time).config
    parts = config.batch_size // num_devices, config.accumulate
    assert parts == {(1, 3): (2, 4), (2, 2): (2, 2), (2, 100): (4, 1)}[num_devices, at_a_time]


def test_where_calls_are_cut_changes_no_bit():
    whole, parts = run_alone(), run(make_trainer(), 1, 6, 3)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


def test_a_seed_alone_trains_as_among_five():
    together = run(make_trainer(seeds=5), 10)
    for index, alone in ((0, run_alone()), (4, run_alone(seed=4))):
        assert_same(alone, (together[0][[index]], together[1][:, [index]]))
    assert len({row.tobytes() for row in together[0]}) == 5


@pytest.mark.parametrize("several", [{}, SEVERAL])
def test_each_example_is_found_alone_and_adds_up_on_any_devices(several):
    """In its place, whatever device scored it; by the program that validates."""
    found = []
    for number in (1, 4):
        trainer = make_trainer(number, **several)
        parameters = begin(trainer, make_trainer(**several)).parameters
        batches = validation_batches(TOKENS, MODEL.context, 8, 4)
        each = trainer.evaluate(parameters, batches, each=True)
        for name, sums in trainer.evaluate(parameters, batches).items():
            np.testing.assert_allclose(each[name].sum(1), sums.sum(1), rtol=1e-5)
        np.testing.assert_array_equal(each["count"][0], np.ravel(batches[2].sum(-1)))
        found.append(each["loss"])
    np.testing.assert_allclose(*found, atol=1e-5)
    assert np.unique(found[0]).size > found[0].size // 2


def test_everything_is_compiled_once():
    trainer = make_trainer(4)
    members = begin(trainer)
    batches = validation_batches(TOKENS, MODEL.context, 4, 4)
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


@functools.cache
def standing_still():
    """Ten steps with a learning rate of 0."""
    trainer = make_trainer(**SEVERAL)
    members = begin(trainer)._replace(learning_rate=jnp.zeros(2))
    members, history = trainer.train(members, 0, 10)
    return flat(members.parameters), history["loss"]


def test_noise_and_batches_differ_by_step_and_seed():
    _, losses = standing_still()
    assert len(np.unique(losses)) == losses.size


def test_without_a_learning_rate_nothing_moves():
    start = flat(start_of(make_trainer(**SEVERAL)).parameters)
    np.testing.assert_array_equal(standing_still()[0], start)


def test_validation_does_not_depend_on_the_batch_size():
    log_softmax = jax.jit(lambda model, tokens: jax.nn.log_softmax(model(tokens)))
    padded = np.pad(TOKENS, (0, 5))  # to whole windows
    windows, targets = (a.reshape(-1, MODEL.context) for a in (padded[:-1], padded[1:]))
    for num_devices, batch_size in ((4, 3), (1, 64)):
        trainer = make_trainer(num_devices, **SEVERAL)
        members = begin(trainer, make_trainer(**SEVERAL))
        batches = validation_batches(TOKENS, MODEL.context, batch_size, trainer.num_shards)
        assert batches[2].sum() == len(TOKENS) - 1
        means = validate(trainer, members.parameters, batches)
        for member, model in enumerate(trainer.models(members.parameters)):
            log_p = np.asarray(log_softmax(model, windows))
            losses = -np.take_along_axis(log_p, targets[..., None], -1).ravel()
            expected = losses[: len(TOKENS) - 1].mean()
            assert means["loss"][member] == pytest.approx(expected, abs=1e-5)
