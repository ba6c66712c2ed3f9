"""The probe tries user components before a run; a fault is an error of one line."""

import dataclasses
import doctest
import re

import jax
import jax.numpy as jnp
import pytest

from tlite import functional as F
from tlite import models
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.models import (
    Attention,
    Block,
    ClassifierConfig,
    FeedForward,
    GeneratorConfig,
    LMHead,
    Positions,
    Seq2SeqConfig,
    apply_layer,
    block,
    components,
    make_model,
)
from tlite.models.custom import probe, user_components

SIZES = {"width": 8, "num_heads": 2, "num_blocks": 1}
KINDS = {kind: kind(**SIZES) for kind in (GeneratorConfig, ClassifierConfig, Seq2SeqConfig)}


def attention(query, key, value, mask=None):
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2), where=mask)
    return weights @ value, weights


def forgetful(query, key, value, mask=None):
    return attention(query, key, value)


def counting(query, key, value, mask=None):
    """Count positions of queries from 0, as if there were no cache."""
    distances = jnp.arange(query.shape[-2])[:, None] - jnp.arange(key.shape[-2])
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) - 0.1 * distances**2, where=mask)
    return weights @ value, weights


def relative(query, key, value, mask=None, *, relative_positions):
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) - 0.1 * relative_positions**2, where=mask)
    return weights @ value, weights


def infinite(query, key, value, mask=None):
    output, weights = attention(query, key, value, mask)
    return output / 0, weights


def counted(positions, width):
    """Count positions from 0, whatever the argument."""
    return jnp.ones((*positions.shape[:-1], 1, width)) * jnp.arange(positions.shape[-1])[:, None]


def summed(params, x):
    """Sum of the vectors of earlier tokens of the same call."""
    return jnp.cumsum(x, axis=-2)


def plain(params, x):
    return F.feed_forward(params, x)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """An attention layer without attention, which returns y alone and accepts no keyword."""

    def init(self, rng, config):
        return {"scale": jnp.ones(config.width)}

    def __call__(self, params, x, inputs):
        return params.scale * x


class Mixing(Block):
    """A block that adds the mean of all tokens."""

    def __call__(self, params, x, inputs, *, config, cache=None):
        config = dataclasses.replace(config, block=Block())
        x, cache, aux = block(params, x, inputs, config=config, cache=cache)
        return x + x.mean(-2, keepdims=True), cache, aux


class FeedForwardOnly(Block):
    """A block that returns x alone."""

    def __call__(self, params, x, inputs, *, config):
        layer, params = config.feed_forward, params.feed_forward
        return x + apply_layer(layer, params, x, inputs, config=config)[0]


@dataclasses.dataclass(frozen=True)
class Cut:
    """A layer whose output is too short, or that accepts no `inputs`."""

    accepts_inputs: bool = True

    def init(self, rng, config):
        return {}

    def __call__(self, params, x, *inputs):
        assert self.accepts_inputs or not inputs, "no inputs"
        return x[..., :3]


@dataclasses.dataclass(frozen=True)
class Backwards(Positions):
    """Rotary positions from the end of a call, which change as a text grows."""

    def attention_inputs(self, params, inputs, config, *, is_causal):
        angles = inputs.positions[..., ::-1, None] * jnp.arange(1.0, 1 + config.head_dim // 2)
        return {"angles": angles[..., None, :, :] if angles.ndim > 2 else angles}


class WithoutArguments(Positions):
    def add(self, x):
        return x


class Undeclared(Positions):
    def attention_inputs(self, params, inputs, config, *, is_causal):
        return {"bias": jnp.zeros(())}


def probe_error(config) -> str:
    with pytest.raises(UserError) as caught:
        probe(config, make_model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_correct_components_pass(kind):
    config = dataclasses.replace(KINDS[kind], attention=relative, norm=lambda params, x: x)
    assert user_components(config).keys() == {"attention", "norm"}
    probe(config, make_model)
    probe(dataclasses.replace(KINDS[kind], block=FeedForwardOnly()), make_model)


@pytest.mark.parametrize("zero_output", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_mask_is_an_error_also_behind_zeros(kind, zero_output):
    visible = "padding" if kind is ClassifierConfig else "later ones"
    component = Attention(forgetful, zero_output=zero_output)
    message = probe_error(dataclasses.replace(KINDS[kind], attention=component))
    assert message.startswith("forgetful, as attention")
    assert visible in message
    assert "mask" in message


@pytest.mark.parametrize("kind", [GeneratorConfig, Seq2SeqConfig])
@pytest.mark.parametrize(
    ("field", "function", "hint"),
    [
        ("attention", counting, "`relative_positions`"),
        ("positions", counted, "positions"),
        ("feed_forward", summed, "each position"),
    ],
)
def test_a_cache_that_changes_logits_is_an_error(kind, field, function, hint):
    message = probe_error(dataclasses.replace(KINDS[kind], **{field: function}))
    assert f"as {field}, decodes differently" in message
    assert hint in message
    (measured,) = re.findall(r"logits differ by ([0-9.e-]+)", message)
    assert float(measured) > 1e-3


def test_rounding_of_bfloat16_is_no_fault():
    """Rounding of 5e-4 between a cached and a full pass is no fault of a component."""
    sizes = {"width": 64, "num_heads": 4, "positions": "rotary", "block": "pre_norm"}
    head = LMHead(tied=True, product="mixed")
    config = GeneratorConfig(**sizes, attention="mixed", head=head, feed_forward=plain)
    probe(config, make_model)


def test_a_layer_without_cache_entries_passes_and_generates():
    config = dataclasses.replace(KINDS[GeneratorConfig], attention=Scaling(), vocabulary_size=7)
    probe(config, make_model)
    model = make_model(config, rng=jax.random.key(0))
    prompt, settings = jnp.array([[1, 2, 3]]), {"rng": jax.random.key(0), "sampler": F.greedy}
    text = generate(model, prompt, num_tokens=5, **settings)
    for end in range(5):
        tokens = jnp.concatenate([prompt, text[:, :end]], axis=1)
        assert model(tokens)[0, -1].argmax() == text[0, end]


LAYER = "gets (params, x (..., T, D), inputs); it must return y (..., T, D) or (y, cache"


@pytest.mark.parametrize(
    ("field", "function", "contract"),
    [
        ("attention", lambda query, key, value, mask: query, "weights (..., H, T, S)"),
        ("norm", lambda x: x, "gets (params, x"),
        ("positions", lambda length: length, "gets (positions"),
        ("feed_forward", lambda params, x: x[..., :3], "must return x (..., T, D)"),
        ("attention", Cut(), LAYER),
        ("feed_forward", Cut(accepts_inputs=False), LAYER),
    ],
)
def test_a_broken_contract_is_an_error_with_its_line(field, function, contract):
    message = probe_error(dataclasses.replace(KINDS[GeneratorConfig], **{field: function}))
    assert re.match(rf"(<lambda>|Cut), as {field}, gets", message)
    assert contract in message
    assert "test_probe.py:" in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": Mixing()}, "Mixing, as block, lets tokens see later ones"),
        (
            {"attention": infinite},
            "infinite, as attention, gives numbers or gradients that",
        ),
        ({"positions": Backwards()}, "Backwards, as positions, decodes differently than it trains"),
        (
            {"positions": WithoutArguments()},
            "WithoutArguments, as positions, needs the methods add and attention_inputs",
        ),
        (
            {"norm": lambda params, x: x, "feed_forward": FeedForward(activation=lambda x: x)}
            | {"attention": forgetful},
            "forgetful, as attention",
        ),
        ({"positions": Undeclared()}, "Undeclared, as positions, "),
    ],
)
def test_the_component_at_fault_and_its_fault_are_named(fields, message):
    error = probe_error(dataclasses.replace(KINDS[GeneratorConfig], **fields))
    assert error.startswith(message)


@pytest.mark.parametrize("component", ["Norm", "Attention", "FeedForward", "Positions", "Block"])
def test_the_example_in_a_component_s_docstring_passes(component):
    names = vars(components) | {"jax": jax, "jnp": jnp} | vars(models)
    documented = getattr(models, component)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(documented, component, globs=names)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    probe(example.globs["config"], make_model)
