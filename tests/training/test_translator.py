"""The task of a translator: its buckets, batches, loss and scores."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arrays import host_copy
from tlite.models import FeedForward, Seq2SeqConfig
from tlite.text.subwords import END_ID, START_ID, pad_tokens
from tlite.training import CrossEntropy, Trainer, TrainingConfig
from tlite.training.loop import validate
from tlite.training.tasks import (
    best_lengths,
    in_batches,
    make_buckets,
    padding_share,
    translator_task,
)

V = 9
SIZES = {"context": 8, "width": 8, "num_heads": 2, "num_blocks": 1, "bias": False}
MODEL = Seq2SeqConfig(vocabulary_size=V, source_vocabulary_size=V, **SIZES)
HIDDEN_DROPOUT = dataclasses.replace(MODEL, dropout=0.0)
NO_DROPOUT = dataclasses.replace(HIDDEN_DROPOUT, feed_forward=FeedForward(dropout=0.0))
# Adam would turn the rounding of a gradient near 0 into a step as large as the learning rate.
TRAINING = TrainingConfig(batch_size=16, learning_rate=0.1, optimizer="sgd", precision="float32")


def pairs(number, longest=8, seed=0):
    """Return sources with [END] and targets with [START] and [END], all different."""
    random = np.random.default_rng(seed)
    sources, targets = [], []
    for index in range(number):
        text = random.integers(4, V, random.integers(1, longest))
        sources.append(np.r_[text, END_ID].astype(np.int32))
        text = [4 + index % 5, *random.integers(4, V, random.integers(0, longest - 1))]
        targets.append(np.r_[START_ID, text, END_ID].astype(np.int32))
    return sources, targets


def rows_of(side):
    """Return each row of an array without its padding."""
    return [tuple(row[row != 0].tolist()) for row in np.asarray(side).reshape(-1, side.shape[-1])]


def padding(lengths, bounds):
    return sum(min(b for b in bounds if b >= length) - length for length in lengths)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4))
def test_bucket_lengths_need_the_least_padding(lengths, number):
    best, longest = best_lengths(np.array(lengths), number), max(lengths)
    others = itertools.combinations_with_replacement(range(1, longest + 1), number - 1)
    least = min(padding(lengths, [*bounds, longest]) for bounds in others)
    assert padding(lengths, best) == least
    assert len(best) <= number
    assert best == sorted(set(best))
    assert best[-1] == longest


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 5))
def test_buckets_hold_every_pair_once_with_padding_after_it(number, buckets, seed):
    sources, targets = pairs(number, seed=seed)
    made = make_buckets(sources, targets, buckets)
    in_buckets = [pair for bucket in made for pair in zip(*map(rows_of, bucket), strict=True)]
    every = [(tuple(s.tolist()), tuple(t.tolist())) for s, t in zip(sources, targets, strict=True)]
    assert sorted(in_buckets) == sorted(every)
    for bucket in made:
        assert len(bucket.source) > 0
        assert bucket.target.shape[1] == bucket.source.shape[1] + 1
        for side in bucket:
            assert (np.diff((side == 0).astype(int), axis=1) >= 0).all()
    share = sum(sum(map(len, pair)) for pair in every) / sum(s.size for b in made for s in b)
    assert padding_share(made, 0) == pytest.approx(1 - share)


def task_of(buckets, batch_tokens=16, **options):
    return translator_task(MODEL, [b.source.shape for b in buckets], batch_tokens, **options)


@pytest.mark.parametrize(("batch_tokens", "num_buckets", "num_pairs"), [(16, 3, 25), (100, 1, 7)])
def test_every_pair_comes_once_an_epoch(batch_tokens, num_buckets, num_pairs):
    """The order depends on the epoch and the seed."""
    data = jax.tree.map(jnp.asarray, make_buckets(*pairs(num_pairs), num_buckets))
    buckets = task_of(data, batch_tokens).buckets
    choose, draws = jax.jit(buckets.choose), [jax.jit(draw) for draw in buckets.draws]
    shapes = [bucket.source.shape for bucket in data]
    total = sum(-(-rows // (batch_tokens // length)) for rows, length in shapes)
    drawn = []
    for seed, index in [*itertools.product([0], range(3 * total)), *((1, i) for i in range(total))]:
        bucket = int(choose(data, jax.random.key(seed), index))
        source, target = draws[bucket](data, jax.random.key(seed), index)
        assert source.shape == (batch_tokens // shapes[bucket][1], shapes[bucket][1])
        assert target.shape == (source.shape[0], source.shape[1] + 1)
        both = zip(rows_of(source), rows_of(target), strict=True)
        drawn.append([pair for pair in both if pair[1]])
    epochs = [list(itertools.chain(*drawn[i : i + total])) for i in range(0, 4 * total, total)]
    every = [pair for bucket in data for pair in zip(*map(rows_of, bucket), strict=True)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(every)] * 4
    assert len({str(epoch) for epoch in epochs}) == 4


def test_a_batch_that_holds_no_sentence_is_an_error():
    data = make_buckets(*pairs(20), 2)
    with pytest.raises(ValueError, match="7 tokens does not hold a sentence of 8"):
        task_of(data, 7)
    assert task_of(data, 8, num_devices=4)


logits_of = jax.jit(lambda model, source, target: model(source, target))


def losses_by_hand(model, sources, targets, smoothing=0.0):
    """Return loss and accuracy of every target token, each pair alone."""
    values, hits = [], []
    for source, target in zip(sources, targets, strict=True):
        padded = np.pad(source, (0, 8 - len(source))), np.pad(target, (0, 9 - len(target)))
        logits = np.asarray(logits_of(model, padded[0], padded[1][:-1]), np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for row, token in zip(log_p, target[1:], strict=False):
            values.append(-(1 - smoothing) * row[token] - smoothing * row.mean())
            hits.append(row.argmax() == token)
    return values, hits


@functools.cache
def make_trainer(devices=1, num_buckets=2, model=HIDDEN_DROPOUT, **changes):
    """Return a trainer, compiled once for all of its runs."""
    data = jax.tree.map(jnp.asarray, make_buckets(*pairs(24), num_buckets))
    training = dataclasses.replace(TRAINING, **changes)
    task = translator_task(
        model, [bucket.source.shape for bucket in data], training.batch_size, num_devices=devices
    )
    return Trainer(task, training, data, jax.local_devices()[:devices])


start_of = functools.cache(lambda trainer: host_copy(trainer.init()))


def run(trainer, like=None):
    """Return parameters and losses after eight steps, from the start of `like` or `trainer`."""
    state, losses = trainer.train(trainer.place(start_of(like or trainer)), 0, 8)
    rows = [np.asarray(a).reshape(len(a), -1) for a in state.parameters.values()]
    return np.concatenate(rows, axis=1), losses["loss"]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


TOGETHER = {"devices": 4, "seeds": 2, "loss": CrossEntropy(0.3)}


def test_a_seed_alone_on_one_device_trains_as_among_two_on_four():
    parameters, losses = run(make_trainer(**TOGETHER))
    alone = run(make_trainer(seed=1, loss=CrossEntropy(0.3)))
    assert_same(alone, (parameters[[1]], losses[:, [1]]))
    assert np.abs(parameters[0] - parameters[1]).max() > 0.1


def test_losses_of_training_and_validation_are_those_by_hand():
    """Padding is in neither, label smoothing in the training loss only."""
    every, trainer = pairs(11), make_trainer(**TOGETHER)
    parameters = trainer.place(start_of(trainer)).parameters
    batches = [
        in_batches(tuple(map(pad_tokens, every)), size, trainer.num_shards) for size in (64, 3)
    ]
    means = [validate(trainer, parameters, each) for each in batches]
    for seed, model in enumerate(trainer.models(parameters)):
        losses, hits = losses_by_hand(model, *every)
        for each in means:
            assert each["loss"][seed] == pytest.approx(np.mean(losses), abs=1e-5)
            assert each["accuracy"][seed] == pytest.approx(np.mean(hits))
    (bucket,) = make_buckets(*every, 1)
    batch = tuple(jnp.pad(side, [(0, 2), (0, 0)]) for side in bucket)
    loss = functools.partial(trainer.task.loss, token_loss=CrossEntropy(0.3))
    expected, _ = losses_by_hand(model, *every, 0.3)
    total, count = jax.jit(loss)(model, batch, None)["loss"]
    assert (float(total), int(count)) == (pytest.approx(sum(expected), rel=1e-5), len(expected))


def test_devices_and_micro_batches_change_nothing():
    """Each update sees all 24 pairs: in one batch, or two at a time, padded for three devices."""
    one_batch = make_trainer(num_buckets=1, model=NO_DROPOUT, batch_size=8 * 24)
    settings = {"batch_size": 8 * 2, "gradient_accumulation_steps": 12}
    several = make_trainer(3, num_buckets=1, model=NO_DROPOUT, **settings)
    assert several.num_shards == 3
    assert_same(run(several, one_batch), run(one_batch))
