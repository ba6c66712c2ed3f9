"""Values by name: what observes sees every value once, and its answer is what is gone on with."""

import functools

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.arrays import (
    assert_close,
    assert_same,
    attention_parameters,
    block_parameters,
    decoder_block_parameters,
    feed_forward_parameters,
    normal,
)
from tlite import functional as F

T, S, D, HEADS = 5, 3, 8, 2
X, MEMORY = normal(T, D), normal(S, D, seed=1)
ATTENTION = ["key", "value", "query", "weights", "heads", "output"]
FEED_FORWARD = ["hidden", "output"]
ENCODER_BLOCK = [
    *(f"attention.{name}" for name in ATTENTION),
    "attention_residual",
    *(f"feed_forward.{name}" for name in FEED_FORWARD),
    "residual",
]
DECODER_BLOCK = [  # keys and values of the memory are made first, once for all of its steps
    *(f"cross_attention.{name}" for name in ATTENTION[:2]),
    *ENCODER_BLOCK[:7],
    *(f"cross_attention.{name}" for name in ATTENTION[2:]),
    "cross_attention_residual",
    *ENCODER_BLOCK[7:],
]


def attention(observe=F.unobserved):
    params = attention_parameters(D, D)
    return F.multi_head_attention(params, X, MEMORY, MEMORY, num_heads=HEADS, observe=observe)[0]


def feed_forward(observe=F.unobserved):
    return F.feed_forward(feed_forward_parameters(D, 6), X, observe=observe)


def encoder_block(observe=F.unobserved):
    settings = {"num_heads": HEADS, "observe": observe}
    return F.encoder_block(block_parameters(D, 6), X, F.causal_mask(T), **settings)


def decoder_block(observe=F.unobserved):
    return F.decoder_block(
        decoder_block_parameters(D, 6), X, MEMORY, num_heads=HEADS, observe=observe
    )


FUNCTIONS = {
    "attention": (attention, ATTENTION),
    "feed_forward": (feed_forward, FEED_FORWARD),
    "encoder_block": (encoder_block, ENCODER_BLOCK),
    "decoder_block": (decoder_block, DECODER_BLOCK),
}
each_function = pytest.mark.parametrize(("function", "names"), FUNCTIONS.values(), ids=FUNCTIONS)


class Recorder:
    """Keeps what it sees, and goes on with `change` of the values called `name`."""

    def __init__(self, name=None, change=None):
        self.seen, self.name, self.change = {}, name, change

    def __call__(self, name, value):
        assert name not in self.seen
        self.seen[name] = value
        return self.change(value) if name == self.name else value


def test_unobserved_gives_back_the_very_value():
    assert F.unobserved("anything", X) is X
    assert F.within(F.unobserved, "blocks.0") is F.unobserved


def test_taking_gives_a_function_what_it_takes_and_nothing_else():
    def some(x, *, a, b=2):
        return x, a, b

    assert F.taking(some, a=1, c=3)(0) == (0, 1, 2)
    assert F.taking(some, a=1, b=5, c=3)(0) == (0, 1, 5)
    assert F.taking(lambda x: x, a=1)(0) == 0
    assert F.taking(functools.partial(some, a=7), b=5)(0) == (0, 7, 5)


@each_function
def test_every_value_is_seen_once_in_the_order_of_computation_and_the_result_last(function, names):
    recorder = Recorder()
    result = function(recorder)
    assert_close(jax.jit(function)(), result)
    assert list(recorder.seen) == names
    assert_same(result, recorder.seen[names[-1]])


@each_function
def test_a_change_shows_in_the_result_and_not_before(function, names):
    plain = Recorder()
    before = function(plain)
    for place, name in enumerate(names):
        changed = Recorder(name, lambda value: value + normal(*value.shape))
        assert jnp.abs(function(changed) - before).max() > 1e-3, name
        for earlier in names[: place + 1]:
            assert_same(changed.seen[earlier], plain.seen[earlier])
