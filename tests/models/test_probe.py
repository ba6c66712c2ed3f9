"""What a user's parts must do is tried before a run begins; what they don't is one sentence."""

import dataclasses
import doctest

import jax
import jax.numpy as jnp
import pytest

from tlite.errors import UserError
from tlite.models import (
    Attention,
    Block,
    ClassifierConfig,
    FeedForward,
    GeneratorConfig,
    Layer,
    Learned,
    Rotary,
    Seq2SeqConfig,
    make_model,
    parts,
)
from tlite.models.probe import probe, users_parts

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

    def of_scores(self, params, look, config, **settings):
        look = dataclasses.replace(look, positions=look.positions[..., ::-1])
        return super().of_scores(params, look, config, **settings)


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
    assert users_parts(config).keys() == {"attention", "norm"}
    probe(config, make_model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_mask_is_told(kind):
    seen = "padding" if kind is ClassifierConfig else "later ones"
    said = told(dataclasses.replace(KINDS[kind], attention=forgetful))
    assert said == f"forgetful, as attention, lets tokens see {seen}: is its mask used?"


@pytest.mark.parametrize("kind", [GeneratorConfig, Seq2SeqConfig])
def test_what_decodes_otherwise_than_it_trains_is_told(kind):
    assert "take `distances`" in told(dataclasses.replace(KINDS[kind], attention=placed))


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
        ({"positions": Unplaced()}, "Unplaced, as positions, is asked for add and of_scores"),
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
    assert not users_parts(
        dataclasses.replace(KINDS[GeneratorConfig], attention=Attention("mixed"))
    )


@pytest.mark.parametrize("part", ["Norm", "Attention", "FeedForward", "Positions", "Block"])
def test_the_example_in_the_help_of_a_part_works_and_passes(part):
    names = {**vars(parts), "GeneratorConfig": GeneratorConfig}
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(parts, part), part, globs=names)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    probe(example.globs["config"], make_model)
