"""Functions of one's own in a config: the same in training, validation, generation, inspection."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import (
    Shifted,
    assert_pieces_give,
    assert_slopes_reach,
    call,
    difference,
    drawn,
    extend,
    replaced,
)
from tlite import functional as F
from tlite import inspection
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.models import (
    ALiBi,
    Attention,
    Block,
    ClassifierConfig,
    FeedForward,
    GeneratorConfig,
    Layer,
    NoPositions,
    Pool,
    Seq2SeqConfig,
    make_model,
)
from tlite.models.custom import probe
from tlite.models.parameters import parameter_names
from tlite.training.precision import choose_products, with_precision

SIZES = {"context": 6, "width": 8, "num_heads": 2, "num_blocks": 2, "vocabulary_size": 7}
SIZES |= {"dropout": 0.0, "feed_forward": FeedForward(6)}
GENERATOR = GeneratorConfig(**SIZES, block=Block(pre_norm=True))
CLASSIFIER = ClassifierConfig(**SIZES, num_classes=3, pool=Pool("mean"))
SEQ2SEQ = Seq2SeqConfig(**SIZES, source_vocabulary_size=7)
TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])


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
    "feed_forward.activation": shifted_tanh,
    "norm": mean_norm,
    "positions": triangle,
}


# With them


def learning(**shapes):
    """A function that learns arrays of these shapes."""

    def parameters(config, rng):
        return {name: jax.random.normal(rng, shape) for name, shape in shapes.items()}

    def give(function):
        function.parameters = parameters
        return function

    return give


@learning(heat=())
def tempered(own, query, key, value, mask, *, tap=F.no_tap):
    return F.scaled_dot_product_attention(own.heat * query, key, value, mask, tap=tap)


@learning(slope=(6,))
def sloped(own, x):
    return jnp.where(x > 0, x, own.slope * x)


@learning(power=(8,))
def powered(own, x):
    return x * jnp.abs(own.power)


@learning(into=(8, 5), back=(5, 8))
def small_feed_forward(own, x, *, tap):
    return tap("output", jnp.tanh(x @ own.into[...]) @ own.back[...])


@learning(waves=(8,))
def waves(own, positions, width):
    return jnp.sin(positions[..., None] * own.waves)


LEARNED = {
    "attention": tempered,
    "feed_forward.activation": sloped,
    "norm": powered,
    "feed_forward": small_feed_forward,
    "positions": waves,
}
TOGETHER = {
    "plain": PLAIN,
    "learned": {n: f for n, f in LEARNED.items() if n != "feed_forward.activation"},
    "layer": {"feed_forward": Shifted(), "positions": waves},
}
FUNCTIONS = PLAIN | {"feed_forward": bare_feed_forward, "feed_forward layer": Shifted()}
FUNCTIONS["attention layer"] = Attention(squared_attention, num_kv_heads=1)
FUNCTIONS |= {f"learned {name}": function for name, function in LEARNED.items()}
each_function = pytest.mark.parametrize("name", FUNCTIONS)
all_together = pytest.mark.parametrize("functions", TOGETHER.values(), ids=TOGETHER)


@functools.cache
def make(config):
    return drawn(make_model, config)


ONE_BLOCK = dataclasses.replace(GENERATOR, num_blocks=1)


def own(name, base=GENERATOR):
    return replaced(base, {name.removeprefix("learned ").removesuffix(" layer"): FUNCTIONS[name]})


def plain_and_changed(config, functions):
    return (make(c) for c in (config, replaced(config, functions)))


@jax.jit
@functools.partial(jax.grad, has_aux=True)
def gradient_and_logits(model, *inputs):
    """The gradient is that of the sum of the squares of the logits."""
    logits = model(*inputs)
    return (logits**2).sum(), logits


@each_function
def test_a_generator_with_a_function_of_ones_own_is_another_and_learns_all_of_it(name):
    plain, changed = (make(c) for c in (ONE_BLOCK, own(name, ONE_BLOCK)))
    gradient, logits = gradient_and_logits(changed, TOKENS)
    assert difference(call(plain, TOKENS), logits) > 1e-2
    assert_slopes_reach(gradient)


def test_parameters_are_in_every_block_under_the_place_of_the_function():
    config = replaced(SEQ2SEQ, TOGETHER["learned"])
    names = parameter_names(jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0))))
    inside = ["attention.own.heat", "attention_norm.power", "feed_forward_norm.power"]
    inside += ["feed_forward.into", "feed_forward.back"]
    across = [f"cross_{name}" for name in inside[:2]]
    expected = {f"{stack}.own.waves" for stack in ("encoder", "decoder")}
    expected |= {f"encoder.blocks.{i}.{name}" for i in range(2) for name in inside}
    expected |= {f"decoder.blocks.{i}.{name}" for i in range(2) for name in inside + across}
    assert {n for n in names if n.split(".")[-1] not in ("kernel", "bias", "table")} == expected


@all_together
def test_cached_generation_uses_the_functions_too(functions):
    model = drawn(make_model, replaced(GENERATOR, functions))
    extended = functools.partial(extend, model)
    assert_pieces_give(call(model, TOKENS), TOKENS, extended, model.empty_caches(2))


@all_together
def test_a_classifier_with_functions_of_ones_own_is_another_and_blind_to_padding(functions):
    plain, changed = plain_and_changed(CLASSIFIER, functions)
    padded = np.where(np.arange(5) < 3, TOKENS, -1)
    logits = call(changed, padded)
    assert difference(call(plain, padded), logits) > 1e-4
    assert_close(logits, call(changed, np.asarray(TOKENS)[:, :3]), 3e-5)


@all_together
def test_an_encoder_decoder_with_functions_of_ones_own_is_another_and_learns_all(functions):
    inputs = np.asarray(TOKENS)[:, ::-1], TOKENS
    plain, changed = plain_and_changed(SEQ2SEQ, functions)
    gradient, logits = gradient_and_logits(changed, *inputs)
    assert difference(call(plain, *inputs), logits) > 1e-2
    assert_slopes_reach(gradient)


def test_what_a_function_takes_is_what_it_gets():
    """An attention with a scale, a soft cap and a bias, a feed-forward layer with noise."""
    given = {}

    def curious(query, key, value, mask, *, scale, softcap, bias):
        given.update(scale=scale, softcap=softcap, bias=bias.shape)
        return squared_attention(query, key, value, mask)

    def noisy(params, x, *, rng, tap):
        given.update(noise=rng.shape, tap=tap is F.no_tap)
        return F.feed_forward(params, x)

    parts = {"attention": Attention(curious, scale=0.3, softcap=5.0), "positions": ALiBi()}
    model = make(replaced(GENERATOR, parts | {"feed_forward": noisy}))
    jax.eval_shape(call, model, TOKENS, rng=jax.random.split(jax.random.key(0), 2))
    expected = {"scale": 0.3, "softcap": 5.0, "bias": (2, 5, 5), "noise": (2,), "tap": True}
    assert given == expected


@dataclasses.dataclass(frozen=True)
class Tilted(NoPositions):
    """A bias of scores by the distance, of a user's own."""

    def attention_inputs(self, params, look, config, *, causal):
        return {"bias": 1.0 * (look.key_positions - look.positions[:, None])}


def test_a_bias_of_custom_positions_reaches_every_attention_or_is_an_error():
    config = replaced(GENERATOR, {"positions": Tilted(), "context": 1024})
    for word in ("mixed", "fused", squared_attention):
        with pytest.raises(ValueError, match="bias"):
            replaced(config, {"attention": word})
    decided = choose_products(config, "mixed")
    assert decided.attention == Attention("exact", query_chunk_size=64)
    tokens = jnp.arange(200) % 7
    plain, by_rows = (drawn(make_model, c) for c in (config, decided))
    assert_close(call(by_rows, tokens), call(plain, tokens), 3e-5)
    bare = drawn(make_model, replaced(config, {"positions": "none"}))
    assert difference(call(bare, tokens), call(plain, tokens)) > 1e-2


def test_components_need_the_base_class_whose_methods_a_model_calls():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        def init(self, rng, config):
            return {}

        def __call__(self, params, x, look):
            return x, None

    for slot, base in (("attention", "Layer"), ("positions", "Positions")):
        with pytest.raises(ValueError, match=f"{slot}.*{base}.*Plain"):
            replaced(GENERATOR, {slot: Plain()})


@dataclasses.dataclass(frozen=True)
class NoCross(Layer):
    """Attention of one head that caches what keys and values are made of (DeepSeek-V2, 2024)."""

    def init(self, rng, config):
        width, latent = config.width, 4
        shapes = {"query": (width, width), "down": (width, latent), "up": (latent, 2 * width)}
        draw = jax.nn.initializers.glorot_uniform()
        keys = jax.random.split(rng, len(shapes))
        return {n: draw(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)}

    def __call__(self, params, x, look):
        across = look.memory is not None
        rows = look.memory if across else look.remember(x @ params.down[...])
        key, value = jnp.split(rows @ params.up[...], 2, axis=-1)
        heads = [F.split_heads(a, 1) for a in (x @ params.query[...], key, value)]
        y, _ = F.scaled_dot_product_attention(*heads, look.mask)
        return F.merge_heads(y), None if across else rows


class Latent(NoCross):
    def key_values(self, params, memory, look):
        return memory @ params.down[...]


def test_a_layer_s_own_keys_and_values_serve_cross_attention_or_are_an_error():
    config = replaced(SEQ2SEQ, {"attention": Latent()})
    probe(config, make_model)
    model = drawn(make_model, config)
    source, target = jnp.arange(1, 6), jnp.array([2, 4, 5])
    plain, other = (call(model, s, target) for s in (source, source[::-1]))
    assert difference(plain, other) > 1e-3
    with pytest.raises(UserError, match=r"NoCross\.key_values"):
        drawn(make_model, replaced(config, {"attention": NoCross()}))(source, target)


# A changed attention is the line that runs


def slowed(query, key, value, mask, *, tap=F.no_tap):
    """The definition with a quarter of its scores, as its only change."""
    return F.scaled_dot_product_attention(query / 4, key, value, mask, tap=tap)


@functools.cache
def of_length(attention, context, precision):
    sizes = {"context": context, "width": 16, "num_blocks": 1, "num_heads": 1, "dropout": 0.0}
    config = GeneratorConfig(vocabulary_size=11, **sizes, attention=attention, positions="rotary")
    return with_precision(drawn(make_model, config), precision)


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
        text = generate(model, jnp.asarray(prompt), num_tokens=8, rng=jax.random.key(0))
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
