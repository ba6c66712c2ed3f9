"""User functions and layers: in training, evaluation, cached decoding and inspection."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import (
    LeakySum,
    Shifted,
    assert_chunks_give,
    assert_gradients_reach,
    call,
    difference,
    drawn,
    extend,
    replaced,
)
from tlite import functional as F
from tlite import inspection
from tlite import models as M
from tlite.config import from_dict, to_dict
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.models.custom import probe
from tlite.models.parameters import named_arrays
from tlite.models.transformer import list_blocks
from tlite.training.precision import choose_products

SIZES = {"context": 6, "width": 8, "num_heads": 2, "num_blocks": 1, "vocabulary_size": 7}
SIZES |= {"dropout": 0.0, "feed_forward": M.FeedForward(6)}
ONE_BLOCK = M.GeneratorConfig(**SIZES, block=M.Block(pre_norm=True))
GENERATOR = dataclasses.replace(ONE_BLOCK, num_blocks=2)
CLASSIFIER = M.ClassifierConfig(**SIZES, num_classes=3, pool=M.Pool("mean"))
SEQ2SEQ = M.Seq2SeqConfig(**SIZES, source_vocabulary_size=7)
TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])


def squared_attention(query, key, value, mask):
    """Weights are squares of scores, where the mask is True, divided by their sum."""
    scores = jnp.einsum("...tk,...sk->...ts", query, key)
    weights = jnp.where(True if mask is None else mask, scores**2 + 0.1, 0.0)
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("...ts,...sv->...tv", weights, value), weights


def mean_norm(params, x):
    return x / (jnp.abs(x).mean(-1, keepdims=True) + 0.1) * params.scale + params.bias


PLAIN = {
    "attention": squared_attention,
    "feed_forward.activation": lambda x: jnp.tanh(x - 0.5),
    "norm": mean_norm,
    "positions": lambda t, width: jnp.abs(t[..., None] % 4 - 2.0) * jnp.linspace(-1, 1, width),
}


def with_params(function, **shapes):
    """Give a function `init_params` that draws arrays of these shapes."""
    function.init_params = lambda rng, config: {
        name: jax.random.normal(rng, shape) for name, shape in shapes.items()
    }
    return function


def tempered(params, query, key, value, mask, *, tap=F.no_tap):
    return F.scaled_dot_product_attention(params.temperature * query, key, value, mask, tap=tap)


def small_feed_forward(params, x, *, tap):
    return tap("output", jnp.tanh(x @ params.hidden[...]) @ params.output[...])


def waves(params, positions, width):
    return jnp.sin(positions[..., None] * params.waves)


LEARNED = {
    "attention": with_params(tempered, temperature=()),
    "feed_forward.activation": with_params(
        lambda params, x: jnp.where(x > 0, x, params.slope * x), slope=(6,)
    ),
    "norm": with_params(lambda params, x: x * jnp.abs(params.power), power=(8,)),
    "feed_forward": with_params(small_feed_forward, hidden=(8, 5), output=(5, 8)),
    "positions": with_params(waves, waves=(8,)),
}
TOGETHER = {
    "learned": {n: f for n, f in LEARNED.items() if n != "feed_forward.activation"},
    "layer": {"feed_forward": Shifted(), "positions": waves},
}
OTHERS = [
    ("feed_forward", lambda params, x: F.linear(params.output, F.linear(params.hidden, x) ** 2)),
    ("feed_forward", Shifted()),
    ("attention", M.Attention(squared_attention, num_kv_heads=1)),
]
ACTIVATION = "feed_forward.activation"
# That each function with parameters is called is shown by the gradients of its parameters.
CASES = [
    *((ONE_BLOCK, {field: function}) for field, function in [*PLAIN.items(), *OTHERS]),
    (ONE_BLOCK, {ACTIVATION: LEARNED[ACTIVATION]}),
    (CLASSIFIER, TOGETHER["learned"]),
    (SEQ2SEQ, TOGETHER["learned"]),
    (SEQ2SEQ, TOGETHER["layer"]),
]


@functools.cache
def make(config):
    return drawn(M.make_model, config)


@jax.jit
@functools.partial(jax.grad, has_aux=True)
def gradient_and_logits(model, *inputs):
    """Return the gradient of the sum of squared logits, and the logits."""
    logits = model(*inputs)
    return (logits**2).sum(), logits


@pytest.mark.parametrize(("base", "functions"), CASES)
def test_functions_change_every_model_and_have_gradients(base, functions):
    padding = 0 if base is SEQ2SEQ else -1
    tokens = TOKENS if base is ONE_BLOCK else np.where(np.arange(5) < 3, TOKENS, padding)
    inputs = (tokens, TOKENS) if base is SEQ2SEQ else (tokens,)
    plain, changed = (make(c) for c in (base, replaced(base, functions)))
    gradient, logits = gradient_and_logits(changed, *inputs)
    least = 1e-2 if base is ONE_BLOCK else 1e-4
    assert difference(call(plain, *inputs), logits) > least
    assert_gradients_reach(gradient)
    if base is not ONE_BLOCK:
        assert_close(logits, call(changed, tokens[:, :3], *inputs[1:]), 3e-5)


def test_parameters_are_named_by_the_function_s_component():
    config = replaced(SEQ2SEQ, TOGETHER["learned"])
    names = named_arrays(jax.eval_shape(lambda: M.make_model(config, rng=jax.random.key(0))))
    per_block = ["attention.custom.temperature", "attention_norm.power"]
    per_block += ["feed_forward_norm.power", "feed_forward.hidden", "feed_forward.output"]
    cross = [f"cross_{name}" for name in per_block[:2]]
    expected = {f"{stack}.positions.waves" for stack in ("encoder", "decoder")}
    expected |= {f"encoder.blocks.0.{name}" for name in per_block}
    expected |= {f"decoder.blocks.0.{name}" for name in per_block + cross}
    assert {n for n in names if n.split(".")[-1] not in ("kernel", "bias", "table")} == expected


@pytest.mark.parametrize("functions", TOGETHER.values(), ids=TOGETHER)
def test_cached_decoding_uses_the_functions(functions):
    model = drawn(M.make_model, replaced(GENERATOR, functions))
    caches, decode = model.empty_caches(2), functools.partial(extend, model)
    assert_chunks_give(call(model, TOKENS), TOKENS, decode, caches)


def test_a_function_gets_the_keyword_arguments_it_accepts():
    attention_kwargs, feed_forward_kwargs = {}, {}

    def attention(query, key, value, mask, *, scale, softcap, dropout_rate, bias, rng, is_causal):
        attention_kwargs.update(scale=scale, softcap=softcap, rate=dropout_rate, causal=is_causal)
        attention_kwargs.update(bias=bias.shape, rng=rng.shape)
        return squared_attention(query, key, value, mask)

    def feed_forward(params, x, *, rng, tap):
        feed_forward_kwargs.update(rng=rng.shape, tap=tap is F.no_tap)
        return F.feed_forward(params, x)

    component = M.Attention(attention, scale=0.3, softcap=5.0, dropout=0.1)
    fields = {"attention": component, "positions": M.ALiBi(), "feed_forward": feed_forward}
    keys = jax.random.split(jax.random.key(0), 2)
    jax.eval_shape(call, make(replaced(GENERATOR, fields)), TOKENS, rng=keys)
    expected = {"scale": 0.3, "softcap": 5.0, "rate": 0.1, "causal": True}
    assert attention_kwargs == expected | {"bias": (2, 5, 5), "rng": (2,)}
    assert feed_forward_kwargs == {"rng": (2,), "tap": True}
    with pytest.raises(ValueError, match="'squared_attention' does not support dropout_rate"):
        replaced(GENERATOR, {"attention": M.Attention(squared_attention, dropout=0.1)})


@dataclasses.dataclass(frozen=True)
class Tilted(M.Positions):
    """Positions that add the relative position to the scores of attention."""

    adds_bias = True

    def attention_inputs(self, params, inputs, config, *, is_causal):
        return {"bias": 1.0 * (inputs.key_positions - inputs.positions[:, None])}


def test_a_bias_of_positions_reaches_attention_or_is_an_error():
    config = replaced(GENERATOR, {"positions": Tilted(), "context": 1024})
    for function in ("mixed", "fused", squared_attention):
        with pytest.raises(ValueError, match="bias"):
            replaced(config, {"attention": function})
    decided = choose_products(config, "mixed")
    assert decided.attention == M.Attention("exact", query_chunk_size=64)
    tokens = jnp.arange(200) % 7
    plain, chunked = (drawn(M.make_model, c) for c in (config, decided))
    assert_close(call(chunked, tokens), call(plain, tokens), 3e-5)
    bare = drawn(M.make_model, replaced(config, {"positions": "none"}))
    assert difference(call(bare, tokens), call(plain, tokens)) > 1e-2


def test_an_object_that_is_no_component_is_an_error():
    class Plain:
        def init(self, rng, config):
            return {}

        def __call__(self, params, x, inputs):
            return x

    for field, hint in (("attention", "dataclass"), ("positions", "Positions")):
        with pytest.raises(ValueError, match=f"{field} must be .*{hint}.*Plain"):
            replaced(GENERATOR, {field: Plain()})

    @dataclasses.dataclass(frozen=True)
    class Subclass(M.Rotary):
        def add(self, params, x, positions, config):
            return 2 * x

    with pytest.raises(ValueError, match=r"positions: derive Subclass from .*Positions"):
        replaced(GENERATOR, {"positions": Subclass()})


@dataclasses.dataclass(frozen=True)
class Latent:
    """Attention of one head that caches a latent vector for keys and values (DeepSeek-V2, 2024)."""

    def init(self, rng, config):
        width, latent = config.width, 4
        shapes = {"query": (width, width), "down": (width, latent), "up": (latent, 2 * width)}
        draw = jax.nn.initializers.glorot_uniform()
        keys = jax.random.split(rng, len(shapes))
        return {n: draw(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)}

    def __call__(self, params, x, inputs, *, memory=None, cache=None):
        if memory is None and cache is not None and inputs.start is None:
            latents = cache  # those of the memory
        else:
            latents = (x if memory is None else memory) @ params.down[...]
            latents = F.update_cache(cache, latents, inputs.start)
        key, value = jnp.split(latents @ params.up[...], 2, axis=-1)
        heads = [F.split_heads(a, 1) for a in (x @ params.query[...], key, value)]
        y, _ = F.scaled_dot_product_attention(*heads, inputs.mask)
        return F.merge_heads(y), latents, {}


class WithoutMemory(Latent):
    def __call__(self, params, x, inputs, *, cache=None):
        return super().__call__(params, x, inputs, cache=cache)


def test_cross_attention_needs_a_layer_that_accepts_memory():
    config = replaced(SEQ2SEQ, {"attention": Latent()})
    probe(config, M.make_model)
    model, source = drawn(M.make_model, config), jnp.maximum(TOKENS[:, ::-1], 1)
    plain, other = (call(model, s, TOKENS) for s in (source, source[:, ::-1]))
    assert difference(plain, other) > 1e-3
    with pytest.raises(UserError, match=r"WithoutMemory\(\) does not accept .* 'memory'"):
        probe(replaced(config, {"attention": WithoutMemory()}), M.make_model)


class WithoutValid(LeakySum):
    def __call__(self, params, x, inputs, *, cache=None):
        return super().__call__(params, x, dataclasses.replace(inputs, valid=None), cache=cache)


def test_a_recurrent_layer_must_skip_padding():
    config = replaced(GENERATOR, {"attention": LeakySum()})
    probe(config, M.make_model)
    model = drawn(M.make_model, config)
    assert model.empty_caches(3)[0]["attention"].value.shape == (3, 8)
    with pytest.raises(UserError, match=r"decodes differently .*inputs\.valid"):
        probe(replaced(config, {"attention": WithoutValid()}), M.make_model)


PATTERN = {"num_blocks": 3, "block": (M.Block(True, attention=Latent()), M.Block(True))}


def test_a_pattern_of_blocks_repeats_and_decodes_with_caches():
    model = drawn(M.make_model, replaced(GENERATOR, PATTERN))
    layers = [{n.split(".")[0] for n in named_arrays(b.attention)} for b in model.blocks]
    assert layers == [{"query", "down", "up"}, {"query", "key", "value", "output"}, layers[0]]
    caches = model.empty_caches(2)
    assert [type(c["attention"]) is F.KeyValues for c in caches] == [False, True, False]
    assert_chunks_give(call(model, TOKENS), TOKENS, functools.partial(extend, model), caches)
    probe(replaced(GENERATOR, PATTERN), M.make_model)


@pytest.mark.parametrize(("base", "index"), [(GENERATOR, 1), (SEQ2SEQ, 0)])
def test_the_probe_tries_each_layer_of_a_pattern(base, index):
    def forgetful(query, key, value, mask=None):
        return squared_attention(query, key, value, None)

    layers = [Latent(), Latent()]
    layers[index] = M.Attention(forgetful)
    block = tuple(M.Block(True, attention=layer) for layer in layers)
    message = rf"forgetful, as block\[{index}\].attention, lets tokens see"
    with pytest.raises(UserError, match=message):
        probe(replaced(base, {"num_blocks": 2, "block": block}), M.make_model)


def test_a_pattern_is_saved_to_json_and_read_back():
    block = (M.Block(True, attention=M.Attention(num_kv_heads=1)), M.Block(True))
    config = replaced(GENERATOR, {"block": block})
    assert from_dict(M.GeneratorConfig, json.loads(json.dumps(to_dict(config)))) == config


@dataclasses.dataclass(frozen=True)
class Penalized:
    """The feed-forward layer, with the mean square of its output as a scalar for the loss."""

    result: str = "y, cache, aux"

    def init(self, rng, config):
        return M.init_layer(M.FeedForward(6), rng, config)

    def __call__(self, params, x, inputs, *, tap=F.no_tap):
        y = F.feed_forward(params, x, tap=tap)
        aux = {"square": (y**2).mean(), "number": 1.0}
        return {"y": y, "y, cache, aux": (y, None, aux), "y, aux": (y, aux)}[self.result]


@pytest.mark.parametrize("loop", [M.Loop(remat=True), M.Loop(scan=True, remat=True)])
def test_scalars_of_layers_are_summed_and_have_gradients(loop):
    model = make(replaced(GENERATOR, {"feed_forward": Penalized(), "loop": loop}))
    outputs = inspection.run(model, TOKENS, capture="*.feed_forward.output")[1]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(model):
        logits, aux = model.logits_and_aux(TOKENS)
        return aux["square"], (logits, aux)

    (square, (logits, aux)), gradients = loss(model)
    assert_close(square, sum((y**2).mean() for y in outputs.values()), 1e-4)
    assert aux["number"] == 2
    assert_close(logits, call(model, TOKENS))
    for block in list_blocks(gradients):
        assert_gradients_reach(block)


def test_a_layer_returns_y_or_y_with_cache_and_scalars():
    configs = [replaced(GENERATOR, {"feed_forward": Penalized(r)}) for r in ("y", "y, cache, aux")]
    probe(configs[1], M.make_model)
    assert_same(*(call(make(config), TOKENS) for config in configs))
    assert make(configs[0]).logits_and_aux(TOKENS)[1] == {}
    with pytest.raises(UserError, match=r"Penalized, as feed_forward.* not a tuple of 2"):
        probe(replaced(GENERATOR, {"feed_forward": Penalized("y, aux")}), M.make_model)


def flattened(query, key, value, mask, *, tap=F.no_tap):
    """Attention with scores divided by 4."""
    return F.scaled_dot_product_attention(query / 4, key, value, mask, tap=tap)


def test_a_changed_attention_changes_training_and_generation():
    sizes = {"context": 32, "width": 16, "num_blocks": 1, "num_heads": 1, "dropout": 0.0}
    config = M.GeneratorConfig(vocabulary_size=11, **sizes, positions="rotary")
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 32)))
    targets, prompt = jnp.roll(tokens, -1, axis=1), tokens[:, :20]

    @jax.jit
    def results(model):
        def loss(model):
            logits, captured = inspection.run(model, tokens, capture="*.attention.weights")
            return F.cross_entropy(logits, targets)[0] / tokens.size, (logits, *captured.values())

        (value, arrays), gradients = jax.value_and_grad(loss, has_aux=True)(model)
        _, caches = model.extend(prompt, model.empty_caches(2), jnp.zeros(2, int))
        cached, _ = model.extend(tokens[:, 20:21], caches, jnp.full(2, 20))
        gradient = gradients.blocks[0].attention.query.kernel[...]
        return cached[:, 0], model(tokens), *arrays, value, gradient

    plain, changed = (make(replaced(config, {"attention": a})) for a in ("exact", flattened))
    both = [[np.asarray(a, float) for a in results(model)] for model in (plain, changed)]
    assert min(map(difference, *both)) > 1e-4
    assert difference(both[0][0], both[1][0]) > 1e-2
    cached, validated, trained, *_ = both[1]
    assert_close(cached, trained[:, 20], 1e-4)
    assert_same(validated, trained)
    rng = jax.random.key(0)
    texts = [generate(model, prompt, num_tokens=8, rng=rng) for model in (plain, changed)]
    assert (texts[0] != texts[1]).any()
