"""One program for all blocks, and blocks computed again: the same model as without."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import assert_pieces_give, begun, call, difference, drawn, extend
from tlite import inspection
from tlite.models import GeneratorConfig, Seq2SeqConfig, TransformerGenerator, TransformerSeq2Seq

SIZES = {"context": 6, "width": 8, "num_heads": 2, "num_blocks": 2, "hidden_width": 6}
SIZES |= {"vocabulary_size": 7, "dropout": 0.3, "hidden_dropout": 0.3}
GENERATOR = GeneratorConfig(
    **SIZES,
    norm_first=True,
    gated=True,
    key_heads=1,
    windows=(3,),
    positions="rotary",
    convolution=2,
)
SEQ2SEQ = Seq2SeqConfig(**SIZES, source_vocabulary_size=7, positions="relative")
TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])
SOURCE = jnp.array([[3, 1, 4, 1, 5, 2], [2, 6, 1, 0, 0, 0]])
KEYS = jax.jit(lambda: jax.random.split(jax.random.key(1), 2))()
BOTH = {"scan": True, "remat": True}
MODELS = {
    "generator": (TransformerGenerator, GENERATOR, (TOKENS,)),
    "seq2seq": (TransformerSeq2Seq, SEQ2SEQ, (SOURCE, TOKENS)),
}
each_model = pytest.mark.parametrize("model", MODELS)


@functools.cache
def make(model, **way):
    kind, config, _ = MODELS[model]
    return drawn(kind, dataclasses.replace(config, **way))


@functools.cache
def value_and_gradients(model, **way):
    inputs = MODELS[model][2]

    @jax.jit
    def results(parameters):
        def total(parameters):
            logits = parameters(*inputs, key=KEYS)
            return (logits**2).sum(), logits

        return jax.value_and_grad(total, has_aux=True)(parameters)

    (_, logits), gradients = results(make(model, **way))
    return logits, jax.tree.leaves(gradients)


@pytest.mark.parametrize(
    ("model", "way"),
    [("generator", BOTH), ("seq2seq", {"scan": True})],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_logits_and_gradients_with_noise_are_those_of_blocks_one_by_one(model, way):
    expected = value_and_gradients(model)
    assert difference(expected[0], call(make(model), *MODELS[model][2])) > 1e-2
    assert_close(value_and_gradients(model, **way), expected, 1e-4)


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
    plain, other = (results(make(model, **switch)) for switch in ({}, BOTH))
    assert names[0] == names[1]
    assert_close(other, plain, 1e-4)


def test_blocks_computed_again_mix_in_the_first_ones_values():
    config = dataclasses.replace(GENERATOR, num_blocks=2, value_residual=True)
    gradients = jax.jit(jax.grad(lambda model: (model(TOKENS, key=KEYS) ** 2).sum()))
    plain, again = (
        gradients(drawn(TransformerGenerator, dataclasses.replace(config, remat=remat)))
        for remat in (False, True)
    )
    assert_close(jax.tree.leaves(again), jax.tree.leaves(plain), 1e-4)


def test_values_can_be_captured_in_a_compiled_program():
    def weights(model):
        return inspection.run(model, TOKENS, capture="blocks.*.attention.weights")[1]

    compiled = jax.jit(weights)
    assert_close(compiled(make("generator", **BOTH)), compiled(make("generator")), 1e-4)


def test_a_generator_extended_piece_by_piece_is_the_whole():
    model, whole = make("generator", **BOTH), call(make("generator"), TOKENS)
    extended = functools.partial(extend, model)
    assert_pieces_give(whole, TOKENS, extended, model.empty_caches(2))


def test_a_deep_model_is_no_longer_a_program_when_its_blocks_are_scanned():
    def size(**switches):
        config = dataclasses.replace(GENERATOR, **switches)
        model = jax.eval_shape(lambda: TransformerGenerator(config, key=KEYS[0]))
        return len(str(jax.make_jaxpr(lambda model: model(TOKENS))(model)))

    def growth(scan):
        return size(num_blocks=9, scan=scan) / size(num_blocks=3, scan=scan)

    assert growth(False) > 2
    assert growth(True) < 1.7  # each block's arrays are named and stacked


def test_scanned_blocks_are_drawn_as_blocks_one_by_one():
    one, other = (
        begun(TransformerGenerator, dataclasses.replace(GENERATOR, scan=scan))
        for scan in (False, True)
    )
    assert_same(jax.tree.leaves(one), jax.tree.leaves(other))
