"""Captured values equal the equations in every model; unused taps cost nothing."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same, integers
from tests.helpers.models import drawn
from tlite import functional as F
from tlite import models as M
from tlite.inspection import run, tap_names
from tlite.models.block import apply_norm
from tlite.models.transformer import list_blocks

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
    "classifier, attention": classifier(pool=M.Pool("attention"), block="pre_norm"),
    "seq2seq": seq2seq(decoder_blocks=1),
    "seq2seq, pre-norm": seq2seq(**PRE_NORM, attention=M.Attention(qkv_bias=True)),
}
TODAY = {
    "norm": "rms",
    "feed_forward": M.FeedForward(gated=True),
    "attention": M.Attention(
        num_kv_heads=1, query_key_norm=True, windows=(3, 0), softcap=5.0, scale=0.3
    ),
}
NORMS = M.Block(pre_norm=True, output_norms=True)
NO_FIRST_NORM = dataclasses.replace(NORMS, first_norm=False)
SEGMENTS = {"embedding": M.Embedding(norm=True, type_vocab_size=2), "positions": M.Learned(2)}
MODERN = {
    "generator, today's": generator(**TODAY, block=NORMS, positions=M.Rotary(local_base=100.0)),
    "generator, deep": generator(loop=M.Loop(scan=True)),
    "masked": (M.MaskedConfig(**SIZES, **SEGMENTS), (TEXT,)),
    "encoder": (M.TransformerConfig(**SIZES, **TODAY, block=NO_FIRST_NORM), (TEXT,)),
    "classifier, first": classifier(pool=M.Pool("first", M.Projection("tanh"))),
    "classifier, n-grams": (
        classifier(pool=M.Pool("mean"), wide=M.Wide(num_word_ngrams=4, num_character_ngrams=5))[0],
        (np.r_[TOKENS, -1, -1, V + 1, V + 4, V + 8, -1],),  # a full context, then features
    ),
    "seq2seq, relative": seq2seq(**TODAY, block=NORMS, positions="relative"),
}
each_model = pytest.mark.parametrize("name", MODELS)
ONE_OF_EACH = ["generator", "classifier, dense", "seq2seq"]


@functools.cache
def model_and_inputs(name):
    """Return a model without a parameter that is 0 or 1, and its inputs."""
    config, inputs = (MODELS | MODERN)[name]
    return drawn(M.make_model, config), [jnp.asarray(tokens) for tokens in inputs]


def compiled(model, *inputs, **settings):
    """Return the logits and captured values of `run` under `jit`, in order."""
    order = []

    @jax.jit
    def observed(model, *inputs):
        logits, captured = run(model, *inputs, **settings)
        order.extend(captured)  # a compiled function returns sorted dictionaries
        return logits, captured

    logits, captured = jax.device_get(observed(model, *inputs))
    return logits, {name: captured[name] for name in order}


@functools.cache
def captured_all(name):
    """Return the logits and every value, in order."""
    model, inputs = model_and_inputs(name)
    return compiled(model, *inputs, capture="*")


def lowered(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return re.sub(r"module @\w+", "module", text)


def stacks(model):
    """Return the stacks of blocks by the prefix of their names."""
    if isinstance(model, M.Seq2Seq):
        return {"encoder.": model.encoder, "decoder.": model.decoder}
    return {"": model}


def self_mask(model, prefix, inputs):
    if isinstance(model, M.SequenceClassifier):
        return (inputs[0] >= 0)[None, None]
    if prefix == "encoder.":
        return (inputs[0] != 0)[None, None]
    return F.causal_mask(len(inputs[-1]))


def stack_names(prefix, stack):
    """Return the names of a stack of blocks in order of computation."""
    config, names = stack.config, []
    attention = ["query", "key", "value", "scores", "weights", "heads", "output"]
    feed_forward = ["pre_activation", *["gate"] * config.feed_forward.gated, "hidden", "output"]
    for layer in ["attention", *["cross_attention"] * (prefix == "decoder."), "feed_forward"]:
        names += [f"{layer}_norm"] * config.block.pre_norm
        names += [f"{layer}.{n}" for n in (attention if "attention" in layer else feed_forward)]
        names += [f"{layer}_output_norm"] * config.block.output_norms
        names.append(f"{layer}_residual" if layer != "feed_forward" else "residual")
    names = [f"{prefix}blocks.{i}.{name}" for i in range(config.num_blocks) for name in names]
    return [f"{prefix}embedding", *names, f"{prefix}final"]


@pytest.mark.parametrize("name", [*MODELS, *MODERN])
def test_tap_names_are_in_order_of_computation(name):
    model, _ = model_and_inputs(name)
    expected = [n for prefix, stack in stacks(model).items() for n in stack_names(prefix, stack)]
    expected += ["pooled"] * isinstance(model, M.SequenceClassifier)
    expected += ["logits"] * (name != "encoder")
    assert tap_names(model) == expected
    logits, captured = captured_all(name)
    assert list(captured) == expected
    assert_same(captured[expected[-1]], logits)


def test_an_ensemble_has_no_values_by_name():
    model = drawn(M.CausalLM, generator()[0])
    two = M.Ensemble(jax.tree.map(lambda a: jnp.stack([a, a]), model))
    with pytest.raises(TypeError, match="load one of its replicas"):
        run(two, jnp.asarray(TOKENS), capture="embedding")


def test_unknown_names_and_changed_shapes_are_errors():
    model, inputs = model_and_inputs("generator")
    typo = "blocks.1.atention.weights"
    closest = re.escape(f"{typo!r}; closest: blocks.1.attention.weights, ")
    for settings, message in (
        ({"capture": [typo]}, closest),
        ({"edit": {typo: lambda x: x}}, closest),
        ({"edit": {"final": lambda x: x[0]}}, r"final .* \(6, 8\) to \(8,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda s=settings: run(model, *inputs, **s))


@jax.jit
def values_of_layers(model, inputs, captured):
    """Return the values in all layers, from the captured residuals, by the equations."""
    values = {}

    def tap(name, value):
        values[name] = value
        return value

    for prefix, stack in stacks(model).items():
        config, mask = stack.config, self_mask(model, prefix, inputs)
        angles = F.rotary_angles(8, 4) if config.positions == M.Rotary() else None
        x = captured[f"{prefix}embedding"]
        for i, block in enumerate(list_blocks(stack)):
            name = f"{prefix}blocks.{i}"

            def inputs_of(layer, x, name=name, block=block, config=config):
                if not config.block.pre_norm:
                    return x
                params = getattr(block, f"{layer}_norm")
                return tap(f"{name}.{layer}_norm", apply_norm(config.norm, params, x))

            attend = functools.partial(F.multi_head_attention, num_heads=2)
            scope, h = F.scoped(tap, f"{name}.attention"), inputs_of("attention", x)
            attend(block.attention, h, h, h, mask, angles=angles, tap=scope)
            x = captured[f"{name}.attention_residual"]
            if prefix == "decoder.":
                scope, h = F.scoped(tap, f"{name}.cross_attention"), inputs_of("cross_attention", x)
                memory, memory_mask = captured["encoder.final"], (inputs[0] != 0)[None, None]
                attend(block.cross_attention, h, memory, memory, memory_mask, tap=scope)
                x = captured[f"{name}.cross_attention_residual"]
            scope, h = F.scoped(tap, f"{name}.feed_forward"), inputs_of("feed_forward", x)
            F.feed_forward(block.feed_forward, h, tap=scope)
            x = captured[f"{name}.residual"]
    return values


@each_model
def test_captured_values_of_layers_equal_the_equations(name):
    model, inputs = model_and_inputs(name)
    captured = captured_all(name)[1]
    expected = values_of_layers(model, inputs, captured)
    others = {n.rpartition(".")[2].rpartition("_")[2] for n in captured.keys() - expected.keys()}
    assert others <= {"embedding", "residual", "final", "pooled", "logits"}
    assert_close({n: captured[n] for n in expected}, expected, 1e-5)


@pytest.mark.parametrize("name", [*MODELS, *(m for m in MODERN if "deep" not in m)])
def test_taps_that_change_nothing_compile_to_the_same_program(name):
    model, inputs = model_and_inputs(name)
    expected = lowered(type(model).__call__, model, *inputs)
    assert "exponential" in expected
    kwargs = {}, {"edit": {"*": lambda x: x}}, {"capture": "*"}  # captured but not returned
    for settings in kwargs if name in ONE_OF_EACH else kwargs[:2]:
        tapped = lambda model, *inputs, s=settings: run(model, *inputs, **s)[0]  # noqa: E731
        assert lowered(tapped, model, *inputs) == expected


@each_model
def test_all_edits_apply_and_change_only_later_values(name):
    model, inputs = model_and_inputs(name)
    before = captured_all(name)[1]
    order = list(before)
    edited = "decoder.blocks.0.cross_attention.heads" if "seq2seq" in name else order[5]

    edit = {edited: lambda x: x + 1, f"*{edited}": lambda x: 2 * x}
    logits, after = compiled(model, *inputs, capture="*", edit=edit)
    at = order.index(edited)
    assert_close({n: after[n] for n in order[:at]}, {n: before[n] for n in order[:at]}, 1e-5)
    assert_close(after[edited], 2 * (before[edited] + 1), 1e-5)
    for later in (order[at + 1], order[-1]):
        assert np.abs(after[later] - before[later]).max() > 1e-3
    assert np.abs(logits - captured_all(name)[0]).max() > 1e-3


@pytest.mark.parametrize("name", ["embedding", "blocks.1.attention.weights", "logits"])
def test_a_tap_that_returns_none_is_an_error_with_its_name(name):
    model, inputs = model_and_inputs("generator")
    tap = lambda n, value: None if n == name else value  # noqa: E731
    with pytest.raises(TypeError, match=re.escape(name)):
        jax.eval_shape(lambda: model(*map(jnp.asarray, inputs), tap=tap))
