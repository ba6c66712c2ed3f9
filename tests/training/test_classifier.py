"""The task of a classifier: its batches, loss and scores."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.reference import parabolic_average
from tlite.models import LogisticConfig, LogisticRegression
from tlite.training import CrossEntropy, Trainer, TrainingConfig
from tlite.training.loop import validate
from tlite.training.tasks import (
    class_logits,
    classifier_task,
    draw_examples,
    epoch_and_index,
    in_batches,
    join_sentences,
)

CONTEXT, WORDS = 6, 9
TRAINING = TrainingConfig(batch_size=8, learning_rate=3e-3, precision="float32")
SMOOTHED = CrossEntropy(label_smoothing=0.2)


def logistic(classes=3):
    """Return a logistic regression with random weights."""
    config = LogisticConfig(vocabulary_size=WORDS, num_classes=classes, context=CONTEXT)
    model = LogisticRegression(config)
    weights = np.random.default_rng(0).normal(size=(WORDS, classes))
    model.weights[...] = weights.astype(np.float32)
    return model


def task_of(classes=3):
    """Return the task of a logistic regression whose bias differs by seed."""

    def init(rng):
        model = logistic(classes)
        model.bias[...] = jax.random.normal(rng, classes)
        return model

    return classifier_task(logistic(classes).config)._replace(init=init)


def texts(number, *, classes=3, sentences=None):
    """Return tokens with padding at the end of each row, and labels."""
    random = np.random.default_rng(0)
    shape = (number,) if sentences is None else (number, sentences)
    lengths = random.integers(1, CONTEXT + 1, shape)
    tokens = random.integers(0, WORDS, (*shape, CONTEXT), dtype=np.int32)
    tokens[np.arange(CONTEXT) >= lengths[..., None]] = -1
    if sentences:  # a text has 0 to `sentences` sentences
        written = random.integers(0, sentences + 1, number)
        tokens[np.arange(sentences) >= written[:, None]] = -1
    return tokens, random.integers(0, classes, number, dtype=np.int32)


logits_of = jax.jit(lambda model, tokens: model(tokens))
joined_of = jax.jit(class_logits)


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize(("number", "size"), [(7, 3), (5, 16)])
def test_every_example_comes_once_an_epoch(number, size):
    """Each epoch has another order."""
    data, epochs = (np.arange(number)[:, None], 100 + np.arange(number)), 3
    draw = jax.jit(draw_examples, static_argnums=3)
    key, steps = jax.random.key(1), range(-(-epochs * number // size))
    batches = [jax.device_get(draw(data, key, step, size)) for step in steps]
    for tokens, labels in batches:
        assert tokens.shape == (size, 1)
        np.testing.assert_array_equal(labels, 100 + tokens[:, 0])
    drawn = np.concatenate([tokens[:, 0] for tokens, _ in batches])
    orders = drawn[: epochs * number].reshape(epochs, number)
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(number), (epochs, 1)))
    assert len(np.unique(orders, axis=0)) == epochs


@given(st.integers(0, 2**31 - 1), st.integers(1, 2**20), st.integers(1, 2**30))
def test_epoch_and_index_do_not_overflow(step, size, num_examples):
    epoch, index = divmod(step * size, num_examples)
    computed = epoch_and_index(jnp.int32(step), size, num_examples)
    assert (int(computed[0]) % 2**32, int(computed[1])) == (epoch % 2**32, index)


@pytest.mark.parametrize(("sentences", "size", "num_devices"), [(None, 7, 4), (3, 1, 1)])
def test_losses_in_batches_are_those_of_one_big_batch(sentences, size, num_devices):
    classes = 2 if sentences else 3
    tokens, labels = texts(21, classes=classes, sentences=sentences)
    training = dataclasses.replace(TRAINING, seeds=2, loss=SMOOTHED)
    task = task_of(classes)
    trainer = Trainer(task, training, (), jax.local_devices()[:num_devices])
    parameters = trainer.init().parameters
    batches = in_batches((tokens, labels, np.ones(21, np.float32)), size, trainer.num_shards)
    means = validate(trainer, parameters, batches)
    models = trainer.models(parameters)
    for seed, model in enumerate(models):
        log_p = log_softmax(joined_of(model, tokens))
        loss = -log_p[np.arange(21), labels].mean()
        assert means["loss"][seed] == pytest.approx(loss, abs=1e-5)
        assert means["accuracy"][seed] == pytest.approx((log_p.argmax(-1) == labels).mean())
    if sentences is None:  # the training loss
        targets = 0.8 * np.eye(3)[labels] + 0.2 / 3
        sums = jax.jit(partial(task.loss, text_loss=SMOOTHED))(models[-1], (tokens, labels), None)
        expected = [(log_p.argmax(-1) == labels).sum(), 21, -(targets * log_p).sum(), 21]
        assert np.ravel([*sums.values()]).tolist() == pytest.approx(expected, rel=1e-5)


def test_sentences_share_the_loss_and_join_in_a_probability():
    """A text counts as one, however many sentences it has."""
    tokens, labels = texts(12, classes=2, sentences=4)
    written = (tokens >= 0).any(-1)
    assert set(written.sum(-1)) >= {0, 1, 4}
    model = logistic(2)
    log_p = log_softmax(logits_of(model, tokens))
    losses = [
        -log_p[text, written[text], label].mean() if written[text].any() else 0.0
        for text, label in enumerate(labels)
    ]
    averages = list(map(parabolic_average, np.exp(log_p)[..., 1], written))
    joined = np.exp(log_softmax(joined_of(model, tokens)))
    np.testing.assert_allclose(joined, np.stack([1 - np.array(averages), averages], 1), atol=1e-5)
    assert np.ptp(averages) > 0.3
    sums = jax.jit(task_of(2).loss)(model, (tokens, labels), None)
    assert [float(a) for a in sums["loss"]] == pytest.approx([sum(losses), 12], rel=1e-5)
    assert float(sums["accuracy"][0]) == (joined.argmax(-1) == labels).sum()


def test_certain_sentences_have_a_finite_loss_and_gradient():
    @jax.jit
    @jax.value_and_grad
    def log_odds(logits):
        joined = join_sentences(logits, jnp.ones(2, bool))
        return joined[1] - joined[0]

    for logit in (100.0, -100.0):
        value, gradient = log_odds(jnp.array([[0.0, logit]] * 2))
        assert np.isfinite(value)
        assert (value > 0) == (logit > 0)
        assert np.isfinite(gradient).all()
