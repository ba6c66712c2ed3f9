"""Capture and edit: in every model the values are those of the equations, and cost nothing."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same, integers, normal
from tests.helpers.inspection import drawn
from tlite import functional as F
from tlite.inspection import names, run
from tlite.inspection.capture import matching
from tlite.models import (
    BlocksConfig,
    ClassifierConfig,
    Encoder,
    GeneratorConfig,
    MaskedConfig,
    Seq2SeqConfig,
    TransformerClassifier,
    TransformerGenerator,
    TransformerMasked,
    TransformerSeq2Seq,
)
from tlite.models.config import NORMS
from tlite.training.precision import with_precision

KEY, LONG = jax.random.key(0), 128
V, T, S = 7, 6, 5
SIZES = {"vocabulary_size": V, "context": 8, "width": 8, "num_heads": 2, "num_blocks": 2}
TOKENS = np.asarray(integers(V, T))
TEXT = np.where(np.arange(T) < 4, TOKENS, -1)
SOURCE = np.where(np.arange(S) < 3, np.asarray(integers(V - 4, S)) + 4, 0)
TARGET = np.asarray(integers(V - 4, T)) + 4

MODELS = {
    "generator": (TransformerGenerator, GeneratorConfig(**SIZES), (TOKENS,)),
    "generator, rotary": (
        TransformerGenerator,
        GeneratorConfig(**SIZES, positions="rotary", norm_first=True, norm="rms", tied_head=True),
        (TOKENS,),
    ),
    **{
        f"classifier, {aggregation}": (
            TransformerClassifier,
            ClassifierConfig(**SIZES, num_classes=3, aggregation=aggregation, norm_first=first),
            (TEXT,),
        )
        for aggregation, first in (("dense", False), ("mean", True), ("attention", False))
    },
    "seq2seq": (
        TransformerSeq2Seq,
        Seq2SeqConfig(**SIZES, source_vocabulary_size=V, decoder_blocks=1),
        (SOURCE, TARGET),
    ),
    "seq2seq, pre-norm": (
        TransformerSeq2Seq,
        Seq2SeqConfig(
            **SIZES, source_vocabulary_size=V, positions="rotary", norm_first=True, qkv_bias=True
        ),
        (SOURCE, TARGET),
    ),
}
# As others build them: what `run` shows of these must be as whole.
TODAY = {
    "norm_first": True, "norm": "rms", "gated": True, "key_heads": 1, "query_key_norm": True,
    "output_norms": True, "windows": (3, 0), "softcap": 5.0, "attention_scale": 0.3,
}  # fmt: skip
MODERN = {
    "generator, today's": (
        TransformerGenerator,
        GeneratorConfig(**SIZES, **TODAY, positions="rotary", local_rotary_base=100.0),
        (TOKENS,),
    ),
    "generator, deep": (TransformerGenerator, GeneratorConfig(**SIZES, scan=True), (TOKENS,)),
    "masked": (
        TransformerMasked,
        MaskedConfig(**SIZES, segments=2, embedding_norm=True, position_offset=2),
        (TEXT,),
    ),
    "encoder": (Encoder, BlocksConfig(**SIZES, **TODAY | {"first_norm": False}), (TEXT,)),
    "classifier, first": (
        TransformerClassifier,
        ClassifierConfig(**SIZES, num_classes=3, aggregation="first", projection="tanh"),
        (TEXT,),
    ),
    "seq2seq, relative": (
        TransformerSeq2Seq,
        Seq2SeqConfig(**SIZES, source_vocabulary_size=V, **TODAY, positions="relative"),
        (SOURCE, TARGET),
    ),
}
each_model = pytest.mark.parametrize("name", MODELS)
ONE_OF_EACH = ["generator", "classifier, dense", "seq2seq"]
one_of_each = pytest.mark.parametrize("name", ONE_OF_EACH)


@functools.cache
def model_and_inputs(name):
    """A model none of whose numbers is 0 or 1, and what it reads."""
    kind, config, inputs = (MODELS | MODERN)[name]
    return drawn(kind, config), [jnp.asarray(tokens) for tokens in inputs]


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


def head_of(model, x):
    return model.head(x) if isinstance(model, TransformerClassifier) else model.logits(x)


def lowered(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return re.sub(r"module @\w+", "module", text)


@functools.cache
def lowered_model(name):
    model, inputs = model_and_inputs(name)
    return lowered(type(model).__call__, model, *inputs)


def stacks(model):
    """Each stack of blocks with the place that its names begin with."""
    if isinstance(model, TransformerSeq2Seq):
        return {"encoder.": model.encoder, "decoder.": model.decoder}
    return {"": model}


def self_mask(model, place, inputs):
    if isinstance(model, TransformerClassifier):
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
    if isinstance(model, TransformerSeq2Seq):
        expected = stack_names("encoder.", BLOCK, 2)
        number = len(model.decoder.blocks)
        # What the decoder looks at is made before its first block.
        expected += [f"decoder.blocks.{i}.cross_{n}" for i in range(number) for n in ATTENTION[:2]]
        expected += stack_names("decoder.", DECODER_BLOCK, number)
    else:
        pooled = ["pooled"] if isinstance(model, TransformerClassifier) else []
        expected = stack_names("", BLOCK, 2) + pooled
    assert names(model) == expected
    assert list(captured_all(name)[1]) == expected


@one_of_each
def test_patterns_stand_for_all_they_match_in_the_order_of_computation(name):
    model, inputs = model_and_inputs(name)
    chosen = ["*final", "*blocks.*.attention.weights", "*blocks.0.*.heads"]
    _, captured = compiled(model, *inputs, capture=chosen)
    ends = r".*final|.*blocks\..*\.attention\.weights|.*blocks\.0\..*\.heads"
    assert list(captured) == [n for n in names(model) if re.fullmatch(ends, n)]
    assert len(captured) > 3
    for key, value in captured.items():
        assert_close(value, captured_all(name)[1][key], 1e-5)


def test_one_name_need_not_be_in_a_list():
    model, inputs = model_and_inputs("generator")
    _, captured = jax.eval_shape(lambda: run(model, *inputs, capture="blocks.1.residual"))
    assert list(captured) == ["blocks.1.residual"]


@pytest.mark.parametrize("use", ["capture", "edit"])
def test_an_unknown_name_is_told_with_the_nearest(use):
    model, inputs = model_and_inputs("generator")
    wrong = "blocks.1.atention.weights"
    given = {"capture": [wrong]} if use == "capture" else {"edit": {wrong: lambda x: x}}
    with pytest.raises(ValueError, match=re.escape(repr(wrong))) as caught:
        run(model, *inputs, **given)
    assert "near it: blocks.1.attention.weights, " in str(caught.value)


def test_what_resembles_nothing_is_told_with_some_names_too():
    with pytest.raises(ValueError, match=r"near it: \w+"):
        matching("§", ["embedding", "final"])


# The values


def test_logits_are_those_of_a_model_that_scans_its_blocks():  # which it then does not
    name = "generator, deep"
    model, inputs = model_and_inputs(name)
    assert_close(captured_all(name)[0], jax.jit(model.__call__)(*inputs), 1e-5)


@jax.jit
def attended(model, inputs, captured):
    """What each attention gives for the captured residuals, and its weights."""
    found = {}
    for place, stack in stacks(model).items():
        config = stack.config
        norm = NORMS[config.norm] if config.norm_first else lambda params, x: x
        angles = F.rotary_angles(8, 4) if config.positions == "rotary" else None
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


@pytest.mark.parametrize("name", [*MODELS, *MODERN])
def test_weights_sum_to_1_and_padding_gets_none(name):
    model, inputs = model_and_inputs(name)
    for place, weights in captured_all(name)[1].items():
        if place.endswith("weights"):
            assert weights.shape[0] == 2
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
            if weights.shape[-1] == len(inputs[0]):
                padding = 0 if isinstance(model, TransformerSeq2Seq) else -1
                hidden = np.asarray(inputs[0]) == padding
                assert_same(weights[..., hidden], 0 * weights[..., hidden])


@each_model
def test_the_logits_follow_from_the_last_value(name):
    model, _ = model_and_inputs(name)
    logits, captured = captured_all(name)
    last = captured[names(model)[-1]]
    assert_close(jax.jit(head_of)(model, last), logits, 1e-5)


@one_of_each
def test_a_batch_is_captured_as_its_samples_are(name):
    model, inputs = model_and_inputs(name)
    batch = [np.stack([tokens, tokens[::-1]]) for tokens in inputs]
    logits, together = compiled(model, *batch, capture="*")
    one_logits, one = captured_all(name)
    assert_close(logits[0], one_logits, 1e-5)
    assert list(together) == list(one)
    for key in one:
        assert_close(together[key][0], one[key], 1e-5)


# Edits


@pytest.mark.parametrize("name", [*MODELS, *(m for m in MODERN if "deep" not in m)])
def test_an_edit_that_changes_nothing_changes_nothing(name):
    model, inputs = model_and_inputs(name)

    def edited(model, *inputs):
        return run(model, *inputs, edit={"*": lambda x: x})[0]

    assert lowered(edited, model, *inputs) == lowered_model(name)


@each_model
def test_an_edit_is_seen_in_the_capture_and_downstream_only(name):
    model, inputs = model_and_inputs(name)
    before = captured_all(name)[1]
    known = list(before)
    place = "decoder.blocks.0.cross_attention.heads" if "seq2seq" in name else known[5]

    logits, after = compiled(model, *inputs, capture="*", edit={place: lambda x: x + 1})
    at = known.index(place)
    assert_close({n: after[n] for n in known[:at]}, {n: before[n] for n in known[:at]}, 1e-5)
    assert_close(after[place], before[place] + 1, 1e-5)
    for later in (known[at + 1], known[-1]):
        assert np.abs(after[later] - before[later]).max() > 1e-3
    assert np.abs(logits - captured_all(name)[0]).max() > 1e-3


@one_of_each
def test_a_pattern_edits_all_it_matches(name):
    model, inputs = model_and_inputs(name)
    _, captured = compiled(model, *inputs, capture="*weights", edit={"*weights": lambda x: 0 * x})
    assert len(captured) >= 2
    assert not any(weights.any() for weights in captured.values())


@one_of_each
def test_a_value_of_another_run_can_be_put_in(name):
    model, inputs = model_and_inputs(name)
    final = [n for n in names(model) if n.endswith("final")][-1]
    value = normal(*captured_all(name)[1][final].shape)

    @jax.jit
    def edited(model, value):
        logits, captured = run(model, *inputs, capture=final, edit={final: lambda _: value})
        own = None if name == "classifier, dense" else model.logits(value)
        return captured[final], logits, own

    captured, logits, own = edited(model, value)
    assert_same(captured, value)
    if own is not None:
        assert_close(logits, own, 1e-6)


def test_an_edit_that_changes_a_shape_is_an_error():
    model, inputs = model_and_inputs("generator")
    with pytest.raises(ValueError, match=r"edit of final makes \(8,\) of .* shape \(6, 8\)"):
        jax.eval_shape(lambda: run(model, *inputs, edit={"final": lambda x: x[0]}))


# Under JAX's transforms


@one_of_each
def test_gradients_through_an_edit_are_the_heads(name):
    model, inputs = model_and_inputs(name)
    place = "pooled" if "classifier" in name else [n for n in names(model) if "final" in n][-1]
    value = captured_all(name)[1][place]
    weights = normal(*captured_all(name)[0].shape)

    def loss(delta, model):
        return (weights * run(model, *inputs, edit={place: lambda x: x + delta})[0]).sum()

    def by_hand(x, model):
        return (weights * head_of(model, x)).sum()

    @jax.jit
    def gradients(model, value):
        return jax.grad(loss)(jnp.zeros_like(value), model), jax.grad(by_hand)(value, model)

    assert_close(*gradients(model, value), 1e-5)


@one_of_each
def test_captured_values_have_gradients_with_respect_to_the_model(name):
    model, inputs = model_and_inputs(name)
    place = next(n for n in names(model) if n.endswith("blocks.1.attention.weights"))

    @jax.jit
    @jax.grad
    def gradient(model):
        return run(model, *inputs, capture=place)[1][place][0, :, 0].sum()

    gradients = gradient(model)
    stack = gradients.encoder if "seq2seq" in name else gradients
    for block, reached in ((0, True), (1, False)):
        values = np.asarray(stack.blocks[block].attention.value.kernel[...])
        assert bool(values.any()) == reached
    assert np.asarray(stack.blocks[1].attention.query.kernel[...]).any()


@pytest.mark.parametrize("name", ["generator", "seq2seq"])
def test_many_edits_side_by_side_are_each_alone(name):
    model, inputs = model_and_inputs(name)
    place = next(n for n in names(model) if n.endswith("blocks.0.residual"))

    def edited(size):
        return run(model, *inputs, capture="*blocks.1.*", edit={place: lambda x: size * x})

    sizes, alone = np.float32([0, 1, 2]), jax.jit(edited)
    together = jax.device_get(jax.jit(jax.vmap(edited))(sizes))
    for index, size in enumerate(sizes):
        assert_close(jax.tree.map(lambda x, i=index: x[i], together), alone(size), 1e-5)


@each_model
def test_without_capture_or_edit_the_program_is_the_models(name):
    model, inputs = model_and_inputs(name)
    ours = lowered(lambda model, *inputs: run(model, *inputs)[0], model, *inputs)
    assert ours == lowered_model(name)
    assert "exponential" in ours


@one_of_each
def test_what_is_captured_and_not_used_costs_nothing(name):
    model, inputs = model_and_inputs(name)

    def observed(model, *inputs):
        return run(model, *inputs, capture="*")[0]

    assert lowered(observed, model, *inputs) == lowered_model(name)


@one_of_each
def test_gradients_without_capture_are_the_models(name):
    model, inputs = model_and_inputs(name)
    plain = jax.grad(lambda model: model(*inputs).sum())
    ours = jax.grad(lambda model: run(model, *inputs)[0].sum())
    assert lowered(ours, model) == lowered(plain, model)


# Mixed precision: what its attention shows


@functools.cache
def mixed(name):
    """What models of two narrow blocks show of their attention, by their kernels and attention.

    With bfloat16 kernels and mixed attention ("mixed"; "plain": its logits where nobody looks),
    with these kernels alone ("kernels"), and all in float32 ("exact").
    """
    kind, config, inputs = MODELS[name]
    config = dataclasses.replace(config, context=LONG)
    inputs = [jnp.asarray(np.resize(tokens, LONG)) for tokens in inputs]

    @jax.jit
    def shown(key, *inputs):
        exact = kind(config, key=key)
        kernels = with_precision(exact, "mixed")
        both = kind(dataclasses.replace(config, attention="mixed"), key=key)
        both = with_precision(both, "mixed")
        models = {"mixed": both, "kernels": kernels, "exact": exact}
        looked_at = {n: run(m, *inputs, capture="*.weights") for n, m in models.items()}
        return looked_at | {"plain": both(*inputs)}

    return jax.device_get(shown(KEY, *inputs))


@one_of_each
def test_mixed_attention_is_the_models_whether_somebody_looks_or_not(name):
    (looked_at, captured), plain = mixed(name)["mixed"], mixed(name)["plain"]
    np.testing.assert_allclose(looked_at, plain, atol=0.02 * np.abs(looked_at).max())
    _, expected = mixed(name)["kernels"]
    for place in expected:
        np.testing.assert_allclose(captured[place], expected[place], rtol=0.09)
        assert (captured[place] != expected[place]).any()  # of operands that are rounded


@pytest.mark.parametrize("name", ["generator", "seq2seq"])
def test_in_mixed_precision_the_weights_and_logits_agree_with_float32(name):
    (logits, captured), (expected_logits, expected) = mixed(name)["mixed"], mixed(name)["exact"]
    assert list(captured) == list(expected)
    for key in expected:
        np.testing.assert_allclose(captured[key].sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(captured[key], expected[key], rtol=0.12)
    scale = np.abs(expected_logits).max()
    np.testing.assert_allclose(logits, expected_logits, atol=0.02 * scale)
    np.testing.assert_allclose(mixed(name)["plain"], logits, atol=0.02 * scale)
