"""The generator on packed documents, and several drawn together; the rest: test_calls.py."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same, integers
from tests.helpers.models import GENERATORS, call, drawn
from tlite import functional as F
from tlite.models import GeneratorConfig, TransformerGenerator

T, V = 6, 7
SMALL = GeneratorConfig(
    vocabulary_size=V, context=T, width=8, num_heads=2, num_blocks=2, dropout=0.5
)
TOKENS = integers(V, 2, T)
END = 0
PACKED = np.array([3, 1, END, 2, 5, 4])  # two documents, the second not ended
NUMBERS = np.asarray(F.documents(jnp.asarray(PACKED), END))


@functools.cache
def small(**parts):
    return drawn(TransformerGenerator, dataclasses.replace(SMALL, **parts))


@pytest.mark.parametrize("name", GENERATORS)
def test_what_a_document_holds_does_not_change_another_by_a_bit(name):
    """A token changes the logits at its place, those after it in its document, and no others."""
    model = small(**GENERATORS[name])
    logits = np.asarray(call(model, PACKED, documents=NUMBERS))
    for t in range(T):
        tokens = np.where(np.arange(T) == t, (PACKED + 1) % V, PACKED)
        changed = np.asarray(call(model, tokens, documents=NUMBERS))
        reached = (np.arange(T) >= t) & (NUMBERS[t] == NUMBERS)
        assert_same((changed != logits).any(-1), reached)


@pytest.mark.parametrize(
    "positions", ["learned", "sinusoidal", "none", "rotary", "alibi", "relative"]
)
def test_a_document_is_as_if_alone_at_its_place(positions):
    """Where only distances count, at any place."""
    model = small(positions=positions)

    @jax.jit
    def second(model, tokens):
        x, places = model.embed(tokens, jnp.arange(2, T)), jnp.arange(2, T)
        return model.logits(model.run_blocks(x, F.causal_mask(T - 2), positions=places)[0])

    logits = np.asarray(call(model, PACKED, documents=NUMBERS))
    assert_close(logits[:2], call(model, PACKED[:2]))
    assert_close(logits[2:], second(model, PACKED[2:]))
    if positions in ("rotary", "alibi", "relative"):
        assert_close(logits[2:], call(model, PACKED[2:]))


def test_one_document_is_a_text():
    model = small()
    assert_same(call(model, TOKENS, documents=np.zeros(T, int)), call(model, TOKENS))
    tokens, batched = np.asarray(TOKENS), np.asarray(F.documents(TOKENS, END))
    alone = call(model, tokens[1], documents=batched[1])
    assert_close(np.asarray(call(model, tokens, documents=batched))[1], alone)


def test_members_of_a_mapped_initialisation_are_those_built_alone():
    config = dataclasses.replace(SMALL, num_blocks=1)
    make = functools.partial(TransformerGenerator, config)
    keys = jax.random.split(jax.random.key(0), 3)
    members = jax.jit(jax.vmap(lambda rng: make(rng=rng)))(keys)
    alone = jax.jit(lambda rng: make(rng=rng))
    for i in range(3):
        member = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], members)
        assert_close(member, alone(keys[i]), 1e-6)
    logits = np.asarray(jax.jit(jax.vmap(lambda model: model(TOKENS)))(members))
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    assert_close(logits[2], call(alone(keys[2]), TOKENS))
