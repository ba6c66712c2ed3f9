"""The probe tries user components before a run; a fault is an error of one line."""

import dataclasses
import doctest
import re

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.arrays import assert_same
from tests.helpers.models import call, initial_model
from tlite import functional as F
from tlite import models as M
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.models import block, components
from tlite.models.custom import probe, user_components

SIZES = {"width": 8, "num_heads": 2, "num_blocks": 1}
KINDS = {kind: kind(**SIZES) for kind in (M.GeneratorConfig, M.ClassifierConfig, M.Seq2SeqConfig)}


attention = F.scaled_dot_product_attention


def forgetful(query, key, value, mask=None):
    return attention(query, key, value)


def counting(query, key, value, mask=None):
    """Count positions of queries from 0, as if there were no cache."""
    distances = jnp.arange(query.shape[-2])[:, None] - jnp.arange(key.shape[-2])
    return attention(query, key, value, mask, bias=-0.1 * distances**2)


def relative(query, key, value, mask=None, *, relative_positions):
    return attention(query, key, value, mask, bias=-0.1 * relative_positions**2)


def infinite(query, key, value, mask=None):
    output, weights = attention(query, key, value, mask)
    return output / 0, weights


COUNTING = [  # fields and functions that count positions from 0 in each call; the probe's hint
    ("attention", counting, "`relative_positions`"),
    ("positions", lambda p, width: jnp.cumsum(jnp.ones((*p.shape, width)), -2), "positions"),
    ("feed_forward", lambda params, x: jnp.cumsum(x, axis=-2), "each position"),
]


@dataclasses.dataclass(frozen=True)
class Scaling:
    """An attention layer without attention, which returns y alone and accepts no keyword."""

    def init(self, rng, config):
        return {"scale": jnp.ones(config.width)}

    def __call__(self, params, x, inputs):
        return params.scale * x


class Mixing(M.Block):
    """A block that adds the mean of all tokens."""

    def __call__(self, params, x, inputs, *, config, cache=None):
        config = dataclasses.replace(config, block=M.Block())
        x, cache, aux = block(params, x, inputs, config=config, cache=cache)
        return x + x.mean(-2, keepdims=True), cache, aux


class FeedForwardOnly(M.Block):
    """A block that returns x alone."""

    def __call__(self, params, x, inputs, *, config):
        layer, params = config.feed_forward, params.feed_forward
        return x + M.apply_layer(layer, params, x, inputs, config=config)[0]


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
class Backwards(M.Positions):
    """Rotary positions that count from the end of a call, so they change as a text grows."""

    def attention_inputs(self, params, inputs, config, *, is_causal):
        angles = inputs.positions[..., ::-1, None] * jnp.arange(1.0, 1 + config.head_dim // 2)
        return {"angles": angles[..., None, :, :] if angles.ndim > 2 else angles}


class WithoutArguments(M.Positions):
    def add(self, x):
        return x


class Undeclared(M.Positions):
    def attention_inputs(self, params, inputs, config, *, is_causal):
        return {"bias": jnp.zeros(())}


def probe_error(config) -> str:
    with pytest.raises(UserError) as caught:
        probe(config, M.make_model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_correct_components_pass(kind):
    config = dataclasses.replace(KINDS[kind], attention=relative, norm=lambda params, x: x)
    assert user_components(config).keys() == {"attention", "norm"}
    probe(config, M.make_model)


def test_correct_functions_with_unusual_names_and_sizes_pass():
    sizes = {"width": 24, "num_heads": 5, "attention": M.Attention(relative, head_dim=8)}
    config = M.GeneratorConfig(**sizes, norm=lambda params, x: x)
    probe(config, M.make_model)
    feed_forward = lambda params, inputs: inputs  # noqa: E731
    probe(dataclasses.replace(config, feed_forward=feed_forward), M.make_model)


def test_logits_that_are_not_finite_with_a_cache_are_an_error():
    def fraction(positions, width):
        return (positions / (positions.shape[-1] - 1))[..., None] * jnp.ones(width)

    config = dataclasses.replace(KINDS[M.GeneratorConfig], positions=fraction)
    assert "decodes differently" in probe_error(config)


def test_a_block_that_returns_x_alone_passes():
    config = dataclasses.replace(KINDS[M.GeneratorConfig], block=FeedForwardOnly())
    probe(config, M.make_model)


@pytest.mark.parametrize(
    ("kind", "zero_output"), [*((kind, False) for kind in KINDS), (M.GeneratorConfig, True)]
)
def test_a_forgotten_mask_is_an_error_also_behind_zeros(kind, zero_output):
    visible = "padding" if kind is M.ClassifierConfig else "later ones"
    component = M.Attention(forgetful, zero_output=zero_output)
    message = probe_error(dataclasses.replace(KINDS[kind], attention=component))
    assert message.startswith("forgetful, as attention")
    assert visible in message
    assert "mask" in message


@pytest.mark.parametrize(
    ("kind", "field", "function", "hint"),
    [*((M.GeneratorConfig, *case) for case in COUNTING), (M.Seq2SeqConfig, *COUNTING[0])],
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
    head = M.LMHead(tied=True, product="mixed")
    config = M.GeneratorConfig(
        **sizes,
        attention="mixed",
        head=head,
        feed_forward=lambda params, x: F.feed_forward(params, x),
    )
    probe(config, M.make_model)


def test_a_layer_without_cache_entries_passes_and_generates():
    config = dataclasses.replace(KINDS[M.GeneratorConfig], attention=Scaling(), vocabulary_size=7)
    probe(config, M.make_model)
    model, prompt = initial_model(M.make_model, config), jnp.array([1, 2, 3])
    text = generate(model, prompt, num_tokens=5, rng=jax.random.key(0), sampler=F.greedy)
    logits = call(model, jnp.concatenate([prompt, text[:-1]]))
    assert_same(logits[2:].argmax(-1), text)


ATTENTION = "as attention, gets (query (..., H, T, K), key and value (..., H, S, K), mask)"
FEED_FORWARD = "as feed_forward, gets (params, x (..., T, D)); it must return x (..., T, D)"
LAYER = "gets (params, x (..., T, D), inputs); it must return y (..., T, D) or (y, cache"
FAULTS = [  # fields of the config, the start of the message, another part of it
    ({"attention": lambda query, key, value, mask: query}, ATTENTION, "not one array"),
    ({"attention": lambda query, key, value, mask: (value[:1], value)}, ATTENTION, "[2, 6, 4]"),
    ({"attention": lambda query, key, value, mask: (value, None)}, ATTENTION, "None"),
    ({"norm": lambda x: x}, "as norm, gets (params, x", "test_probe.py:"),
    ({"positions": lambda length: length}, "as positions, gets (positions", "test_probe.py:"),
    ({"feed_forward": lambda params, x: x[..., :1]}, FEED_FORWARD, "[6, 8], not [6, 1]"),
    ({"feed_forward": lambda params, x: (x, None, {"loss": x[0]})}, FEED_FORWARD, "loss"),
    ({"feed_forward": lambda params, x: None}, FEED_FORWARD, "NoneType"),
    ({"attention": Cut()}, f"as attention, {LAYER}", "[6, 8], not [6, 3]"),
    ({"feed_forward": Cut(accepts_inputs=False)}, f"as feed_forward, {LAYER}", "no inputs"),
    ({"block": Mixing()}, "as block, lets tokens see later ones", ""),
    ({"attention": infinite}, "as attention, gives numbers or gradients that", ""),
    ({"positions": Backwards()}, "as positions, decodes differently than it trains", ""),
    ({"positions": WithoutArguments()}, "as positions, needs the methods add and attention_in", ""),
    ({"positions": Undeclared()}, "as positions, ", ""),
    (
        {"norm": lambda params, x: x, "feed_forward": M.FeedForward(activation=lambda x: x)}
        | {"attention": forgetful},
        "as attention",
        "forgetful",
    ),
]


@pytest.mark.parametrize(("fields", "start", "part"), FAULTS)
def test_the_component_at_fault_and_its_fault_are_named(fields, start, part):
    message = probe_error(dataclasses.replace(KINDS[M.GeneratorConfig], **fields))
    component = fields.get("attention") or next(iter(fields.values()))
    name = getattr(component, "__name__", type(component).__name__)
    assert message.startswith(f"{name}, {start}")
    assert part in message
    assert " gets (" not in start or "test_probe.py:" in message


@pytest.mark.parametrize("component", ["Norm", "Attention", "FeedForward", "Positions", "Block"])
def test_the_example_in_a_component_s_docstring_passes(component):
    names = vars(components) | {"jax": jax, "jnp": jnp} | vars(M)
    documented = getattr(M, component)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(documented, component, globs=names)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    probe(example.globs["config"], M.make_model)
