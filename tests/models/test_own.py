"""Functions of one's own in a config: the same in training, validation, generation, inspection."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import (
    assert_pieces_give,
    assert_slopes_reach,
    begun,
    call,
    difference,
    drawn,
    extend,
)
from tlite import functional as F
from tlite import inspection
from tlite.decoding import generate
from tlite.models import (
    ClassifierConfig,
    GeneratorConfig,
    Seq2SeqConfig,
    TransformerClassifier,
    TransformerGenerator,
    TransformerSeq2Seq,
)
from tlite.training.named import parameter_names
from tlite.training.precision import with_precision

SIZES = {"context": 6, "width": 8, "num_heads": 2, "num_blocks": 2, "hidden_width": 6}
SIZES |= {"vocabulary_size": 7, "dropout": 0.0, "hidden_dropout": 0.0}
GENERATOR = GeneratorConfig(**SIZES, norm_first=True)
CLASSIFIER = ClassifierConfig(**SIZES, num_classes=3, aggregation="mean")
SEQ2SEQ = Seq2SeqConfig(**SIZES, source_vocabulary_size=7)
TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])


def with_parameters(function, parameters):
    function.parameters = parameters
    return function


# Without parameters of their own


def squared_attention(query, key, value, mask):
    """Weights are squares of scores, where they are seen, over their sum."""
    scores = jnp.einsum("...tk,...sk->...ts", query, key)
    weights = jnp.where(True if mask is None else mask, scores**2 + 0.1, 0.0)
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("...ts,...sv->...tv", weights, value), weights


def shifted_tanh(x):
    return jnp.tanh(x - 0.5)


def mean_norm(params, x):
    return x / (jnp.abs(x).mean(-1, keepdims=True) + 0.1) * params.scale + params.bias


def bare_feed_forward(params, x):
    return F.linear(params.output, F.linear(params.hidden, x) ** 2)


def triangle(positions, width):
    return jnp.abs(positions[..., None] % 4 - 2.0) * jnp.linspace(-1, 1, width)


PLAIN = {
    "attention": squared_attention,
    "activation": shifted_tanh,
    "norm": mean_norm,
    "feed_forward": bare_feed_forward,
    "positions": triangle,
}


# With them


@functools.partial(with_parameters, parameters=lambda config, key: {"heat": jnp.ones(())})
def tempered(own, query, key, value, mask, *, observe=F.unobserved):
    return F.scaled_dot_product_attention(own.heat * query, key, value, mask, observe=observe)


@functools.partial(with_parameters, parameters=lambda config, key: {"slope": jnp.ones(6)})
def sloped(own, x):
    return jnp.where(x > 0, x, own.slope * x)


@functools.partial(
    with_parameters, parameters=lambda config, key: {"power": jnp.ones(config.width)}
)
def powered(own, x):
    return x * jnp.abs(own.power)


@functools.partial(
    with_parameters,
    parameters=lambda config, key: {
        "into": jax.random.normal(key, (config.width, 5)),
        "back": jax.random.normal(key, (5, config.width)),
    },
)
def small_feed_forward(own, x, *, observe):
    return observe("output", jnp.tanh(x @ own.into[...]) @ own.back[...])


@functools.partial(
    with_parameters,
    parameters=lambda config, key: {"waves": jax.random.normal(key, (config.width,))},
)
def waves(own, positions, width):
    return jnp.sin(positions[..., None] * own.waves)


LEARNED = {
    "attention": (tempered, ["attention.own.heat"]),
    "activation": (sloped, ["feed_forward.own.slope"]),
    "norm": (powered, ["attention_norm.power", "feed_forward_norm.power"]),
    "feed_forward": (small_feed_forward, ["feed_forward.into", "feed_forward.back"]),
    "positions": (waves, []),
}
LEARNED_ONES = {name: function for name, (function, _) in LEARNED.items()}
TOGETHER = {"plain": PLAIN, "learned": LEARNED_ONES}
FUNCTIONS = PLAIN | {f"learned {name}": function for name, function in LEARNED_ONES.items()}
each_function = pytest.mark.parametrize("name", FUNCTIONS)
all_together = pytest.mark.parametrize("functions", TOGETHER.values(), ids=TOGETHER)


@functools.cache
def make(kind, config):
    return drawn(kind, config)


ONE_BLOCK = dataclasses.replace(GENERATOR, num_blocks=1)


def own(name, base=GENERATOR):
    field = name.removeprefix("learned ")
    return dataclasses.replace(base, **{field: FUNCTIONS[name]})


def plain_and_changed(kind, config, functions):
    return (drawn(kind, c) for c in (config, dataclasses.replace(config, **functions)))


@jax.jit
@functools.partial(jax.grad, has_aux=True)
def gradient_and_logits(model, *inputs):
    """The gradient is that of the sum of the squares of the logits."""
    logits = model(*inputs)
    return (logits**2).sum(), logits


@each_function
def test_a_generator_with_a_function_of_ones_own_is_another_and_learns_all_of_it(name):
    plain, changed = (make(TransformerGenerator, c) for c in (ONE_BLOCK, own(name, ONE_BLOCK)))
    gradient, logits = gradient_and_logits(changed, TOKENS)
    assert difference(call(plain, TOKENS), logits) > 1e-2
    assert_slopes_reach(gradient)


@pytest.mark.parametrize("name", [name for name, (_, arrays) in LEARNED.items() if arrays])
def test_parameters_are_in_every_block_under_the_place_of_the_function(name):
    config = own(f"learned {name}")
    names = parameter_names(make(TransformerGenerator, config))
    for index in range(2):
        for array in LEARNED[name][1]:
            assert f"blocks.{index}.{array}" in names
    if name == "feed_forward":
        assert not any("hidden" in name for name in names)
        blocks = begun(TransformerGenerator, config).blocks
        one, other = (block.feed_forward.into[...] for block in blocks)
        assert difference(one, other) > 1e-2  # drawn for each block


def test_parameters_of_positions_are_the_stacks():
    model = drawn(TransformerGenerator, own("learned positions"))
    assert "own.waves" in parameter_names(model)
    assert not any(name.startswith("positions") for name in parameter_names(model))


@all_together
def test_cached_generation_uses_the_functions_too(functions):
    model = drawn(TransformerGenerator, dataclasses.replace(GENERATOR, **functions))
    extended = functools.partial(extend, model)
    assert_pieces_give(call(model, TOKENS), TOKENS, extended, model.empty_caches(2))


@all_together
def test_a_classifier_with_functions_of_ones_own_is_another_and_blind_to_padding(functions):
    plain, changed = plain_and_changed(TransformerClassifier, CLASSIFIER, functions)
    padded = np.where(np.arange(5) < 3, TOKENS, -1)
    logits = call(changed, padded)
    assert difference(call(plain, padded), logits) > 1e-4
    assert_close(logits, call(changed, np.asarray(TOKENS)[:, :3]), 3e-5)


@all_together
def test_an_encoder_decoder_with_functions_of_ones_own_is_another_and_learns_all(functions):
    inputs = np.asarray(TOKENS)[:, ::-1], TOKENS
    plain, changed = plain_and_changed(TransformerSeq2Seq, SEQ2SEQ, functions)
    gradient, logits = gradient_and_logits(changed, *inputs)
    assert difference(call(plain, *inputs), logits) > 1e-2
    assert_slopes_reach(gradient)


def test_attention_on_a_source_has_parameters_of_its_own():
    model = jax.eval_shape(
        lambda: TransformerSeq2Seq(own("learned attention", SEQ2SEQ), key=jax.random.key(0))
    )
    names = parameter_names(model)
    for place in ("encoder.blocks.0.attention", "decoder.blocks.1.cross_attention"):
        assert f"{place}.own.heat" in names


@pytest.mark.parametrize("key_heads", [None, 1])
def test_captured_weights_are_those_of_ones_own_attention_and_cannot_be_edited(key_heads):
    config = dataclasses.replace(own("attention"), key_heads=key_heads)
    model, name = make(TransformerGenerator, config), "blocks.0.attention.weights"
    capture = jax.jit(functools.partial(inspection.run, capture=["blocks.0.attention.*"]))
    logits, seen = capture(model, TOKENS)
    place = "blocks.0.attention"
    keys = np.repeat(seen[f"{place}.key"], 2 if key_heads else 1, axis=1)
    inputs = seen[f"{place}.query"], keys, keys, np.tri(5, dtype=bool)
    assert_close(seen[name], jax.jit(squared_attention)(*inputs)[1])
    assert_close(logits, call(model, TOKENS))
    with pytest.raises(ValueError, match="takes no `observe`"):
        inspection.run(model, TOKENS, edit={name: lambda weights: 0 * weights})


def test_weights_of_an_attention_that_takes_observe_can_be_edited():
    model, name = make(TransformerGenerator, own("learned attention")), "blocks.1.attention.weights"
    edit = {name: lambda weights: 0 * weights}
    changed = jax.jit(lambda model: inspection.run(model, TOKENS, edit=edit)[0])(model)
    assert difference(changed, call(model, TOKENS)) > 1e-2


def test_what_a_function_takes_is_what_it_gets():
    """An attention with a scale, a soft cap and a bias is handed them."""
    given = {}

    def curious(query, key, value, mask, *, scale, softcap, bias):
        given.update(scale=scale, softcap=softcap, bias=bias.shape)
        return squared_attention(query, key, value, mask)

    switches = {"attention_scale": 0.3, "softcap": 5.0, "positions": "alibi"}
    config = dataclasses.replace(GENERATOR, attention=curious, **switches)
    jax.eval_shape(call, drawn(TransformerGenerator, config), TOKENS)
    assert given == {"scale": 0.3, "softcap": 5.0, "bias": (2, 5, 5)}


def test_a_text_that_is_too_long_is_refused_with_positions_of_ones_own_too():
    model = make(TransformerGenerator, own("positions"))
    with pytest.raises(ValueError, match=r"length 7 .* length 6"):
        call(model, np.zeros(7, int))


# A changed attention is the line that runs


def slowed(query, key, value, mask, *, observe=F.unobserved):
    """The definition with a quarter of its scores, as its only change."""
    return F.scaled_dot_product_attention(query / 4, key, value, mask, observe=observe)


@functools.cache
def of_length(attention, context, precision):
    sizes = {"context": context, "width": 16, "num_blocks": 1, "num_heads": 1, "dropout": 0.0}
    config = GeneratorConfig(vocabulary_size=11, **sizes, attention=attention, positions="rotary")
    return with_precision(drawn(TransformerGenerator, config), precision)


@pytest.mark.parametrize(("context", "precision"), [(32, "float32"), (320, "mixed")])
def test_a_changed_attention_changes_training_validation_generation_and_captures(
    context, precision
):
    drawn_tokens = np.random.default_rng(0).integers(0, 11, (2, context))
    tokens = jnp.asarray(drawn_tokens)
    prompt, following = drawn_tokens[:, :20], drawn_tokens[:, 20:21]

    @jax.jit
    def results(model):
        def loss(model):
            logits, seen = inspection.run(model, tokens, capture="*.attention.weights")
            targets = jnp.roll(tokens, -1, axis=1)
            return F.cross_entropy(logits, targets)[0] / tokens.size, (logits, *seen.values())

        (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(model)
        return value, model(tokens), *seen, gradients.blocks[0].attention.query.kernel[...]

    def extended(model):
        """Logits of generation, token by token in a cache; and greedy text."""
        caches = model.empty_caches(2)
        _, caches = extend(model, prompt, caches, np.zeros(2, int))
        logits, _ = extend(model, following, caches, np.full(2, 20))
        text = generate(model, jnp.asarray(prompt), num_tokens=8, key=jax.random.key(0))
        return np.asarray(logits)[:, 0], text

    plain, changed = (of_length(a, context, precision) for a in ("exact", slowed))
    of_plain, of_changed = results(plain), results(changed)
    for one, other in zip(of_plain, of_changed, strict=True):
        assert difference(one.astype(float), other.astype(float)) > 1e-4
    (one, text), (other, changed_text) = extended(plain), extended(changed)
    assert difference(one, other) > 1e-2
    assert (text != changed_text).any()
    # What is validated and what is generated is what is trained.
    trained = np.asarray(of_changed[1])
    assert_close(other, trained[:, 20], 2e-2 if precision == "mixed" else 1e-4)
    assert_same(of_changed[2], trained)
