"""What a user's parts must do is tried before a run begins; what they don't is one sentence."""

import dataclasses
import doctest
import re

import jax
import jax.numpy as jnp
import pytest

from tlite import functional as F
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.models import (
    Attention,
    Block,
    ClassifierConfig,
    FeedForward,
    GeneratorConfig,
    Layer,
    Learned,
    LMHead,
    Rotary,
    Seq2SeqConfig,
    make_model,
    parts,
)
from tlite.models.custom import probe, user_components

SIZES = {"width": 8, "num_heads": 2, "num_blocks": 1}
KINDS = {kind: kind(**SIZES) for kind in (GeneratorConfig, ClassifierConfig, Seq2SeqConfig)}


def attention(query, key, value, mask=None):
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2), where=mask)
    return weights @ value, weights


def forgetful(query, key, value, mask=None):
    return attention(query, key, value)


def placed(query, key, value, mask=None):
    """Counts the places of its queries from 0, as if there were no cache."""
    far = jnp.arange(query.shape[-2])[:, None] - jnp.arange(key.shape[-2])
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) - 0.1 * far**2, where=mask)
    return weights @ value, weights


def distant(query, key, value, mask=None, *, distances):
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) - 0.1 * distances**2, where=mask)
    return weights @ value, weights


def infinite(query, key, value, mask=None):
    output, weights = attention(query, key, value, mask)
    return output / 0, weights


def counted(positions, width):
    """Counts the positions from 0, however they are numbered."""
    return jnp.ones((*positions.shape[:-1], 1, width)) * jnp.arange(positions.shape[-1])[:, None]


def summed(params, x):
    """Adds the vectors before each, as far as they are in the same call."""
    return jnp.cumsum(x, axis=-2)


def plain(params, x):
    return F.feed_forward(params, x)


@dataclasses.dataclass(frozen=True)
class Scaling(Layer):
    """A layer in the place of attention that looks at nothing else."""

    def init(self, rng, config):
        return {"scale": jnp.ones(config.width)}

    def __call__(self, params, x, look):
        return params.scale * x, None


class Mixing(Block):
    """A block whose tokens see the mean of all."""

    def __call__(self, params, x, look, config):
        x, rows = super().__call__(params, x, look, config)
        return x + x.mean(-2, keepdims=True), rows


@dataclasses.dataclass(frozen=True)
class Cut(Layer):
    """A layer of x alone, whose output is too short, or that is called otherwise."""

    takes_look: bool = True

    def init(self, rng, config):
        return {}

    def __call__(self, params, x, *look):
        assert self.takes_look or not look, "no look"
        return x[..., :3], None


@dataclasses.dataclass(frozen=True)
class Backwards(Rotary):
    """Positions from the end of what there is, so that they change as a text grows."""

    def attention_inputs(self, params, look, config, **settings):
        look = dataclasses.replace(look, positions=look.positions[..., ::-1])
        return super().attention_inputs(params, look, config, **settings)


class Unplaced(Learned):
    def add(self, x):
        return x


def told(config) -> str:
    with pytest.raises(UserError) as caught:
        probe(config, make_model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_that_do_what_a_model_needs_pass(kind):
    config = dataclasses.replace(KINDS[kind], attention=distant, norm=lambda params, x: x)
    assert user_components(config).keys() == {"attention", "norm"}
    probe(config, make_model)


@pytest.mark.parametrize("zero_output", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_mask_is_an_error_also_behind_zeros(kind, zero_output):
    seen = "padding" if kind is ClassifierConfig else "later ones"
    said = told(
        dataclasses.replace(KINDS[kind], attention=Attention(forgetful, zero_output=zero_output))
    )
    assert said.startswith("forgetful, as attention")
    assert seen in said
    assert "mask" in said


@pytest.mark.parametrize("kind", [GeneratorConfig, Seq2SeqConfig])
@pytest.mark.parametrize(
    ("slot", "function", "hint"),
    [
        ("attention", placed, "`distances`"),
        ("positions", counted, "positions"),
        ("feed_forward", summed, "each position"),
    ],
)
def test_a_cache_that_changes_logits_is_an_error(kind, slot, function, hint):
    said = told(dataclasses.replace(KINDS[kind], **{slot: function}))
    assert f"as {slot}, decodes otherwise" in said
    assert hint in said
    (measured,) = re.findall(r"logits differ by ([0-9.e-]+)", said)
    assert float(measured) > 1e-3


def test_the_probe_computes_exactly_what_is_trained_in_bfloat16():
    """Rounding of 5e-4 between a cached and a full pass is no fault of a component."""
    sizes = {"width": 64, "num_heads": 4, "positions": "rotary", "block": "pre_norm"}
    head = LMHead(tied=True, product="mixed")
    config = GeneratorConfig(**sizes, attention="mixed", head=head, feed_forward=plain)
    probe(config, make_model)


def test_a_model_without_cached_rows_passes_and_generates():
    """Attention that returns None for its cache entries, as documented."""
    config = dataclasses.replace(KINDS[GeneratorConfig], attention=Scaling(), vocabulary_size=7)
    probe(config, make_model)
    model = make_model(config, rng=jax.random.key(0))
    prompt, settings = jnp.array([[1, 2, 3]]), {"rng": jax.random.key(0), "sampler": F.greedy}
    text = generate(model, prompt, num_tokens=5, **settings)
    for end in range(5):
        seen = jnp.concatenate([prompt, text[:, :end]], axis=1)
        assert model(seen)[0, -1].argmax() == text[0, end]


@pytest.mark.parametrize(
    ("slot", "function", "words"),
    [
        ("attention", lambda query, key, value, mask: query, "weights (..., H, T, S)"),
        ("norm", lambda x: x, "gets (params, x"),
        ("positions", lambda length: length, "gets (positions"),
        ("feed_forward", lambda params, x: x[..., :3], "must return x (..., T, D)"),
    ],
)
def test_a_function_that_is_called_otherwise_is_told_with_its_line(slot, function, words):
    said = told(dataclasses.replace(KINDS[GeneratorConfig], **{slot: function}))
    assert said.startswith(f"<lambda>, as {slot}, gets")
    assert words in said
    assert "test_probe.py:" in said


@pytest.mark.parametrize("slot", ["attention", "feed_forward"])
@pytest.mark.parametrize("layer", [Cut(), Cut(takes_look=False)], ids=["shape", "call"])
def test_a_layer_is_told_what_a_layer_gets_with_its_line(slot, layer):
    said = told(dataclasses.replace(KINDS[GeneratorConfig], **{slot: layer}))
    contract = "gets (params, x (..., T, D), look); it must return y (..., T, D) and what a cache"
    assert said.startswith(f"Cut, as {slot}, {contract}")
    assert "test_probe.py:" in said


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"block": Mixing()}, "Mixing, as block, lets tokens see later ones"),
        (
            {"attention": infinite},
            "infinite, as attention, gives numbers or gradients that",
        ),
        ({"positions": Backwards()}, "Backwards, as positions, decodes otherwise than it trains"),
        (
            {"positions": Unplaced()},
            "Unplaced, as positions, needs the methods add and attention_inputs",
        ),
        (
            {"norm": lambda params, x: x, "feed_forward": FeedForward(activation=lambda x: x)}
            | {"attention": forgetful},
            "forgetful, as attention",
        ),
    ],
)
def test_the_part_at_fault_is_named_and_its_fault(parts, said):
    assert told(dataclasses.replace(KINDS[GeneratorConfig], **parts)).startswith(said)


def test_the_librarys_own_parts_are_not_tried():
    assert not user_components(
        dataclasses.replace(KINDS[GeneratorConfig], attention=Attention("mixed"))
    )


@pytest.mark.parametrize("part", ["Norm", "Attention", "FeedForward", "Positions", "Block"])
def test_the_example_in_the_help_of_a_part_works_and_passes(part):
    names = {**vars(parts), "GeneratorConfig": GeneratorConfig}
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(parts, part), part, globs=names)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    probe(example.globs["config"], make_model)
