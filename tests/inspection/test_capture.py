"""Capture and edit: in every model the values are those of the equations, and cost nothing."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, integers
from tests.helpers.models import drawn
from tlite import functional as F
from tlite import models as M
from tlite.inspection import run, tap_names

V, T, S = 7, 6, 5
SIZES = {"vocabulary_size": V, "context": 8, "width": 8, "num_heads": 2, "num_blocks": 2}
TOKENS = np.asarray(integers(V, T))
TEXT = np.where(np.arange(T) < 4, TOKENS, -1)
SOURCE = np.where(np.arange(S) < 3, np.asarray(integers(V - 4, S)) + 4, 0)
TARGET = np.asarray(integers(V - 4, T)) + 4


def generator(**parts):
    return M.GeneratorConfig(**SIZES, **parts), (TOKENS,)


def classifier(**parts):
    return M.ClassifierConfig(**SIZES, num_classes=3, **parts), (TEXT,)


def seq2seq(**parts):
    config = M.Seq2SeqConfig(**SIZES, source_vocabulary_size=V, **parts)
    return config, (SOURCE, TARGET)


PRE_NORM = {"positions": "rotary", "block": "pre_norm"}
MODELS = {
    "generator": generator(),
    "generator, rotary": generator(**PRE_NORM, norm="rms", head=M.LMHead(tied=True)),
    "classifier, dense": classifier(pool=M.Pool("dense")),
    "classifier, mean": classifier(pool=M.Pool("mean"), block="pre_norm"),
    "classifier, attention": classifier(pool=M.Pool("attention")),
    "seq2seq": seq2seq(decoder_blocks=1),
    "seq2seq, pre-norm": seq2seq(**PRE_NORM, attention=M.Attention(qkv_bias=True)),
}
# As others build them: what `run` shows of these must be as whole.
TODAY = {
    "norm": "rms", "feed_forward": M.FeedForward(gated=True), "attention": M.Attention(
        num_kv_heads=1, query_key_norm=True, windows=(3, 0), softcap=5.0, scale=0.3
    ),
}  # fmt: skip
NORMS = M.Block(pre_norm=True, output_norms=True)
SEGMENTS = {
    "embedding": M.Embedding(norm=True, type_vocab_size=2),
    "positions": M.Learned(offset=2),
}
NO_FIRST = {"block": dataclasses.replace(NORMS, first_norm=False)}
MODERN = {
    "generator, today's": generator(**TODAY, block=NORMS, positions=M.Rotary(local_base=100.0)),
    "generator, deep": generator(loop=M.Loop(scan=True)),
    "masked": (M.MaskedConfig(**SIZES, **SEGMENTS), (TEXT,)),
    "encoder": (M.TransformerConfig(**SIZES, **TODAY, **NO_FIRST), (TEXT,)),
    "classifier, first": classifier(pool=M.Pool("first", M.Projection("tanh"))),
    "classifier, n-grams": (
        classifier(pool=M.Pool("mean"), wide=M.Wide(word_rows=4, character_rows=5))[0],
        (np.r_[TOKENS, -1, -1, V + 1, V + 4, V + 8, -1],),  # a whole context, then features
    ),
    "seq2seq, relative": seq2seq(**TODAY, block=NORMS, positions="relative"),
}
each_model = pytest.mark.parametrize("name", MODELS)
ONE_OF_EACH = ["generator", "classifier, dense", "seq2seq"]
one_of_each = pytest.mark.parametrize("name", ONE_OF_EACH)


@functools.cache
def model_and_inputs(name):
    """A model none of whose numbers is 0 or 1, and what it reads."""
    config, inputs = (MODELS | MODERN)[name]
    return drawn(M.make_model, config), [jnp.asarray(tokens) for tokens in inputs]


def compiled(model, *inputs, **settings):
    """The logits and the values that `run` gives, in its order."""
    order = []

    @jax.jit
    def observed(model, *inputs):
        logits, captured = run(model, *inputs, **settings)
        order.extend(captured)  # what leaves a compiled function is sorted
        return logits, captured

    logits, captured = jax.device_get(observed(model, *inputs))
    return logits, {place: captured[place] for place in order}


@functools.cache
def captured_all(name):
    """The logits and every value, in the order in which `run` gives them."""
    model, inputs = model_and_inputs(name)
    return compiled(model, *inputs, capture="*")


def lowered(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return re.sub(r"module @\w+", "module", text)


@functools.cache
def lowered_model(name):
    model, inputs = model_and_inputs(name)
    return lowered(type(model).__call__, model, *inputs)


def stacks(model):
    """Each stack of blocks with the place that its names begin with."""
    if isinstance(model, M.Seq2Seq):
        return {"encoder.": model.encoder, "decoder.": model.decoder}
    return {"": model}


def self_mask(model, place, inputs):
    if isinstance(model, M.SequenceClassifier):
        return (inputs[0] >= 0)[None, None]
    if place == "encoder.":
        return (inputs[0] != 0)[None, None]
    return F.causal_mask(len(inputs[-1]))


# Names


ATTENTION = [
    f"attention.{name}" for name in ("key", "value", "query", "weights", "heads", "output")
]
FEED_FORWARD = ["feed_forward.hidden", "feed_forward.output", "residual"]
BLOCK = [*ATTENTION, "attention_residual", *FEED_FORWARD]
DECODER_BLOCK = [
    *BLOCK[:7],
    *(f"cross_{name}" for name in ATTENTION[2:]),
    "cross_attention_residual",
    *FEED_FORWARD,
]


def stack_names(place, block, number):
    inside = [f"{place}blocks.{i}.{name}" for i in range(number) for name in block]
    return [f"{place}embedding", *inside, f"{place}final"]


@pytest.mark.parametrize("name", [*MODELS, *MODERN])
def test_names_list_every_value_in_the_order_of_computation(name):
    model, _ = model_and_inputs(name)
    if isinstance(model, M.Seq2Seq):
        expected = stack_names("encoder.", BLOCK, 2)
        number = len(model.decoder.blocks)
        # What the decoder looks at is made before its first block.
        expected += [f"decoder.blocks.{i}.cross_{n}" for i in range(number) for n in ATTENTION[:2]]
        expected += stack_names("decoder.", DECODER_BLOCK, number)
    else:
        pooled = ["pooled"] if isinstance(model, M.SequenceClassifier) else []
        expected = stack_names("", BLOCK, 2) + pooled
    assert tap_names(model) == expected
    assert list(captured_all(name)[1]) == expected


@one_of_each
def test_patterns_stand_for_all_they_match_in_the_order_of_computation(name):
    model, inputs = model_and_inputs(name)
    chosen = ["*final", "*blocks.*.attention.weights", "*blocks.0.*.heads"]
    _, captured = compiled(model, *inputs, capture=chosen)
    ends = r".*final|.*blocks\..*\.attention\.weights|.*blocks\.0\..*\.heads"
    assert list(captured) == [n for n in tap_names(model) if re.fullmatch(ends, n)]
    assert len(captured) > 3
    for key, value in captured.items():
        assert_close(value, captured_all(name)[1][key], 1e-5)
    _, captured = compiled(model, *inputs, capture="*weights", edit={"*weights": lambda x: 0 * x})
    assert len(captured) >= 2
    assert not any(weights.any() for weights in captured.values())


@pytest.mark.parametrize("use", ["capture", "edit"])
def test_an_unknown_name_is_told_with_the_nearest(use):
    model, inputs = model_and_inputs("generator")
    wrong = "blocks.1.atention.weights"
    given = {"capture": [wrong]} if use == "capture" else {"edit": {wrong: lambda x: x}}
    said = f"{wrong!r}; closest: blocks.1.attention.weights, "
    with pytest.raises(ValueError, match=re.escape(said)):
        run(model, *inputs, **given)


# The values


@jax.jit
def attended(model, inputs, captured):
    """What each attention gives for the captured residuals, and its weights."""
    found = {}
    for place, stack in stacks(model).items():
        config = stack.config
        norm = config.norm if config.block.pre_norm else lambda params, x: x
        angles = F.rotary_angles(8, 4) if config.positions == M.Rotary() else None
        x = captured[f"{place}embedding"]
        for index, block in enumerate(stack.blocks):
            here = f"{place}blocks.{index}"
            q = norm(block.attention_norm, x)
            mask = self_mask(model, place, inputs)
            found[f"{here}.attention"] = F.multi_head_attention(
                block.attention, q, q, q, mask, num_heads=2, angles=angles
            )
            if place == "decoder.":
                q = norm(block.cross_attention_norm, captured[f"{here}.attention_residual"])
                memory, mask = captured["encoder.final"], (inputs[0] != 0)[None, None]
                found[f"{here}.cross_attention"] = F.multi_head_attention(
                    block.cross_attention, q, memory, memory, mask, num_heads=2
                )
            x = captured[f"{here}.residual"]
    return found


@each_model
def test_weights_are_those_of_the_equation_on_the_captured_residuals(name):
    model, inputs = model_and_inputs(name)
    captured = captured_all(name)[1]
    expected = attended(model, inputs, captured)
    assert {f"{place}.weights" for place in expected} == {n for n in captured if "weights" in n}
    for place, (output, weights) in expected.items():
        np.testing.assert_allclose(captured[f"{place}.weights"], weights, atol=1e-6)
        assert_close(captured[f"{place}.output"], output, 1e-5)


# Edits


@pytest.mark.parametrize("name", [*MODELS, *(m for m in MODERN if "deep" not in m)])
def test_the_program_is_the_models_own_unless_a_value_changes(name):
    model, inputs = model_and_inputs(name)
    settings = {}, {"edit": {"*": lambda x: x}}, {"capture": "*"}  # whose values nobody uses
    for given in settings if name in ONE_OF_EACH else settings[:2]:
        ours = lowered(lambda model, *inputs, s=given: run(model, *inputs, **s)[0], model, *inputs)
        assert ours == lowered_model(name)
        assert "exponential" in ours


@each_model
def test_all_edits_of_a_value_are_seen_in_the_capture_and_downstream_only(name):
    model, inputs = model_and_inputs(name)
    before = captured_all(name)[1]
    known = list(before)
    place = "decoder.blocks.0.cross_attention.heads" if "seq2seq" in name else known[5]

    edit = {place: lambda x: x + 1, f"*{place}": lambda x: 2 * x}
    logits, after = compiled(model, *inputs, capture="*", edit=edit)
    at = known.index(place)
    assert_close({n: after[n] for n in known[:at]}, {n: before[n] for n in known[:at]}, 1e-5)
    assert_close(after[place], 2 * (before[place] + 1), 1e-5)
    for later in (known[at + 1], known[-1]):
        assert np.abs(after[later] - before[later]).max() > 1e-3
    assert np.abs(logits - captured_all(name)[0]).max() > 1e-3


def test_an_edit_that_changes_a_shape_is_an_error():
    model, inputs = model_and_inputs("generator")
    with pytest.raises(ValueError, match=r"final .* \(6, 8\) to \(8,\)"):
        jax.eval_shape(lambda: run(model, *inputs, edit={"final": lambda x: x[0]}))


@pytest.mark.parametrize("name", ["embedding", "blocks.1.attention.weights"])
def test_an_observe_that_returns_nothing_is_an_error_with_the_name(name):
    model, inputs = model_and_inputs("generator")
    tap = lambda at, value: None if at == name else value  # noqa: E731
    with pytest.raises(TypeError, match=re.escape(name)):
        jax.eval_shape(lambda: model(*map(jnp.asarray, inputs), tap=tap))
