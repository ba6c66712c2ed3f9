"""One program for all blocks, and blocks computed again: the same model as without."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.arrays import assert_close
from tests.helpers.models import call, difference, drawn
from tlite import inspection
from tlite.models import (
    Attention,
    Block,
    FeedForward,
    GeneratorConfig,
    Loop,
    Relative,
    Rotary,
    Seq2SeqConfig,
    TransformerGenerator,
    TransformerSeq2Seq,
)

SIZES = {"context": 6, "width": 8, "num_heads": 2, "num_blocks": 2}
SIZES |= {"vocabulary_size": 7, "dropout": 0.3}
GENERATOR = GeneratorConfig(
    **SIZES,
    block=Block(pre_norm=True),
    feed_forward=FeedForward(6, gated=True, dropout=0.3),
    attention=Attention(key_heads=1, windows=(3,)),
    positions=Rotary(),
)
SEQ2SEQ = Seq2SeqConfig(
    **SIZES,
    source_vocabulary_size=7,
    positions=Relative(),
    feed_forward=FeedForward(6, dropout=0.3),
)
TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])
SOURCE = jnp.array([[3, 1, 4, 1, 5, 2], [2, 6, 1, 0, 0, 0]])
KEYS = jax.jit(lambda: jax.random.split(jax.random.key(1), 2))()
PLAIN, SCAN, REMAT, BOTH = Loop(), Loop(scan=True), Loop(remat=True), Loop(True, True)
MODELS = {
    "generator": (TransformerGenerator, GENERATOR, (TOKENS,)),
    "seq2seq": (TransformerSeq2Seq, SEQ2SEQ, (SOURCE, TOKENS)),
}
each_model = pytest.mark.parametrize("model", MODELS)


@functools.cache
def make(model, loop=PLAIN):
    kind, config, _ = MODELS[model]
    return drawn(kind, dataclasses.replace(config, loop=loop))


@functools.cache
def value_and_gradients(model, loop=PLAIN):
    inputs = MODELS[model][2]

    @jax.jit
    def results(parameters):
        def total(parameters):
            logits = parameters(*inputs, rng=KEYS)
            return (logits**2).sum(), logits

        return jax.value_and_grad(total, has_aux=True)(parameters)

    (_, logits), gradients = results(make(model, loop))
    return logits, jax.tree.leaves(gradients)


@pytest.mark.parametrize(
    ("model", "loop"),
    [("generator", BOTH), ("generator", REMAT), ("seq2seq", SCAN)],
)
def test_logits_and_gradients_with_noise_are_those_of_blocks_one_by_one(model, loop):
    expected = value_and_gradients(model)
    assert difference(expected[0], call(make(model), *MODELS[model][2])) > 1e-2
    assert_close(value_and_gradients(model, loop), expected, 1e-4)


@each_model
def test_values_can_be_captured_and_edited(model):
    inputs = MODELS[model][2]
    place = {"generator": "blocks.1", "seq2seq": "decoder.blocks.1"}[model]
    edit = {f"{place}.residual": lambda x: 2 * x}

    @jax.jit
    def results(model):
        logits, seen = inspection.run(model, *inputs, capture="*", edit=edit)
        names.append(list(seen))
        return logits, seen

    names = []
    plain, other = (results(make(model, loop)) for loop in (PLAIN, BOTH))
    assert names[0] == names[1]
    assert_close(other, plain, 1e-4)


def test_a_deep_model_is_no_longer_a_program_when_its_blocks_are_scanned():
    def size(num_blocks, loop):
        config = dataclasses.replace(GENERATOR, num_blocks=num_blocks, loop=loop)
        model = jax.eval_shape(lambda: TransformerGenerator(config, rng=KEYS[0]))
        return len(str(jax.make_jaxpr(lambda model: model(TOKENS))(model)))

    def growth(loop):
        return size(9, loop) / size(3, loop)

    assert growth(PLAIN) > 2
    assert growth(SCAN) < 1.7  # each block's arrays are named and stacked
