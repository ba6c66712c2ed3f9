"""What holds of every model: causality, padding, batches, noise, and how long a text may be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_all_finite, assert_close, assert_same, some_mask
from tests.helpers.models import ALL, GENERATORS, call, difference, drawn, replaced
from tlite import functional as F
from tlite.models import (
    BlocksConfig,
    ClassifierConfig,
    Embedding,
    FeedForward,
    GeneratorConfig,
    LogisticConfig,
    MaskedConfig,
    Pool,
    Seq2SeqConfig,
    TranslatorHead,
    make_model,
)
from tlite.models.parameters import parameter_names

N, T, V, C = 4, 6, 7, 3
SIZES = {"vocabulary_size": V, "context": T, "width": 8, "num_heads": 2, "num_blocks": 2}
SIZES |= {"dropout": 0.5, "feed_forward": FeedForward(6, dropout=0.3)}
GENERATOR = GeneratorConfig(**SIZES)
WORDS = Embedding(deviation=1.0, scale=False, word_dropout=0.3)
CLASSIFIER = ClassifierConfig(**SIZES, num_classes=C, embedding=WORDS)
SEQ2SEQ = Seq2SeqConfig(**SIZES | {"decoder_blocks": 1}, source_vocabulary_size=V)
CAUSAL = {
    **{name: replaced(GENERATOR, parts) for name, parts in GENERATORS.items()},
    "seq2seq": SEQ2SEQ,
    "seq2seq, all": replaced(SEQ2SEQ, ALL | {"head": TranslatorHead("shared")}),
}
PADDED = {  # by numbers below 0
    "dense": CLASSIFIER,
    "mean": replaced(CLASSIFIER, {"pool": Pool("mean")}),
    "attention": replaced(CLASSIFIER, {"pool": Pool("attention")}),
    "no bias": replaced(CLASSIFIER, {"bias": False}),
    "encoder": BlocksConfig(**SIZES),
    "masked": MaskedConfig(**SIZES),
    "logistic": LogisticConfig(vocabulary_size=V, num_classes=C, context=T),
}
CONFIGS = CAUSAL | PADDED
NOISY = ["generator", "dense", "mean", "attention", "masked", "seq2seq"]
KEYS = jax.random.split(jax.random.key(0), N)
TEXTS = np.random.default_rng(0).permuted(np.tile(np.arange(1, V), (N, 1)), axis=1)
HOLES = np.where(some_mask(N, T, seed=1), TEXTS, -1)
LENGTHS = np.array([4, 3, 1, 0])
PREFIXES = np.where(np.arange(T) < LENGTHS[:, None], TEXTS, -1)


@functools.cache
def make(name, **fields):
    return drawn(make_model, replaced(CONFIGS[name], fields))


def inputs(name, texts=PREFIXES):
    """Those of the model: a translator reads the texts, its padding is 0; a generator has none."""
    if "seq2seq" in name:
        return np.maximum(texts, 0), TEXTS[:, ::-1]
    return (TEXTS if "generator" in name else texts,)


# Causality


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_do_not_change_earlier_logits_by_a_bit(name):
    model, (*source, tokens) = make(name), inputs(name)
    logits = np.asarray(call(model, *source, tokens))
    for t in range(1, T):
        later = np.where(np.arange(T) >= t, tokens % (V - 1) + 1, tokens)
        changed = np.asarray(call(model, *source, later))
        assert_same(changed[:, :t], logits[:, :t])
        assert (changed[:, t] != logits[:, t]).any()


# Padding


@pytest.mark.parametrize("name", PADDED)
def test_any_number_below_0_is_padding_wherever_it_stands(name):
    model, others = make(name), np.where(HOLES < 0, -1 - TEXTS, HOLES)
    for key in (None, KEYS):
        assert_same(call(model, others, rng=key), call(model, HOLES, rng=key))
    changes = np.abs(np.asarray(call(model, TEXTS)) - call(model, HOLES)).reshape(N, -1)
    assert changes[(HOLES < 0).any(-1)].max(-1).min() > 1e-4


@pytest.mark.parametrize("name", ["generator", "seq2seq", "seq2seq, all", *PADDED])
def test_a_short_text_is_the_same_filled_up_to_the_context_with_noise_too(name):
    model = make(name)
    texts = inputs(name)
    short = [text[:, : LENGTHS.max()] for text in texts]
    for key in (None, KEYS):
        logits = np.asarray(call(model, *texts, rng=key))
        rows = logits if logits.shape[1:] == (C,) else logits[:, : LENGTHS.max()]
        assert_close(call(model, *short, rng=key), rows)


@pytest.mark.parametrize("name", ["seq2seq", *PADDED])
def test_nothing_but_padding_has_finite_logits_and_gradients(name):
    """Classes are then what the bias of the head says, which alone has gradients."""
    model, texts = make(name), [*map(jnp.asarray, inputs(name, np.full((N, T), -1)))]

    @jax.jit
    def results(model, rng):
        def total(model):
            logits = model(*texts, rng=rng)
            return (jnp.arange(1, logits.shape[-1] + 1) * logits).sum(), logits

        return jax.value_and_grad(total, has_aux=True)(model)

    for key in (None, KEYS):
        (_, logits), gradients = results(model, key)
        assert_all_finite((logits, gradients))
        if isinstance(model.config, ClassifierConfig | LogisticConfig):
            bias = model.bias if name == "logistic" else model.head.bias
            assert_same(logits, np.tile(np.zeros(C) if bias is None else bias[...], (N, 1)))
            leaves = zip(parameter_names(gradients), jax.tree.leaves(gradients), strict=True)
            assert {n for n, leaf in leaves if leaf.any()} <= {"bias", "head.bias"}


def test_a_masked_model_is_a_head_on_the_vectors_of_the_bare_encoder():
    vectors = call(make("encoder"), HOLES)
    logits = jax.jit(lambda model, x: model.logits(x))(make("masked"), vectors)
    assert_same(logits, call(make("masked"), HOLES))


# Batches and transformations

SOME = ["generator", "generator, all", "dense", "mean", "attention"]
SOME += ["masked", "logistic", "seq2seq, all"]


@pytest.mark.parametrize("name", SOME)
def test_a_text_is_the_same_alone_batched_or_mapped_with_its_noise(name):
    model, texts = make(name), inputs(name)
    batched = np.asarray(call(model, *texts, rng=KEYS))
    mapped = jax.jit(jax.vmap(lambda texts, rng: call(model, *texts, rng=rng)))
    assert_close(mapped(texts, KEYS), batched)
    assert_close(call(model, *(x[:, None] for x in texts), rng=KEYS[:, None]), batched[:, None])
    assert_close(call(model, *(x[::-1] for x in texts), rng=KEYS[::-1]), batched[::-1])
    for i in (0, N - 1):
        assert_close(call(model, *(x[i] for x in texts), rng=KEYS[i]), batched[i])


@pytest.mark.parametrize("name", ["generator", "dense", "logistic"])
def test_a_call_is_the_same_compiled_or_not(name):
    model, texts = make(name), jnp.asarray(*inputs(name))
    assert_close(model(texts, rng=KEYS), call(model, texts, rng=KEYS))


# Noise


@pytest.mark.parametrize(
    ("name", "rates"),
    [(name, (0.5, 0.0)) for name in NOISY]
    + [(name, (0.0, 0.5)) for name in ("dense", "mean", "attention")],
)
def test_noise_needs_a_key_repeats_with_it_and_differs_without(name, rates):
    none, (dropout, of_words) = {"dropout": 0.0, "feed_forward.dropout": 0.0}, rates
    plain = make(name, **none | {"embedding.word_dropout": 0.0})
    model = make(name, **none | {"dropout": dropout, "embedding.word_dropout": of_words})
    texts = inputs(name, TEXTS)
    without, of_first = call(plain, *texts), np.asarray(call(model, *texts, rng=KEYS[0]))
    assert_same(call(model, *texts), without)
    assert_same(call(plain, *texts, rng=KEYS[0]), without)
    assert_same(call(model, *texts, rng=KEYS[0]), of_first)
    for other in (call(model, *texts, rng=KEYS[1]), without):
        assert difference(of_first, other) > 1e-3


def test_a_linear_model_is_the_function_of_its_parameters_and_has_no_noise():
    model = make("logistic")
    expected = jax.jit(F.bag_of_words)(model.weights[...], model.bias[...], HOLES)
    for key in (None, KEYS, KEYS[0]):
        assert_same(call(model, HOLES, rng=key), expected)


@pytest.mark.parametrize(
    ("name", "number"),
    [("generator", 1 + 2 * 3), ("dense", 3 + 2 * 3), ("seq2seq", (1 + 2 * 3) + (1 + 4))],
)
def test_every_noise_of_a_call_has_a_key_of_its_own(name, number, monkeypatch):
    keys, random_bits, texts = [], F.random_bits, [*map(jnp.asarray, inputs(name))]

    def recorded(rng, shape):
        keys.append(jax.random.key_data(rng))
        return random_bits(rng, shape)

    monkeypatch.setattr(F.random, "random_bits", recorded)

    @jax.jit
    def found():
        make(name)(*texts, rng=KEYS[0])
        return keys

    assert len(np.unique(found(), axis=0)) == len(keys) == number


# Refusals


@pytest.mark.parametrize(
    "positions", ["learned", "sinusoidal", "rotary", lambda places, width: 0.0]
)
@pytest.mark.parametrize("name", ["generator", "dense", "masked", "seq2seq"])
def test_too_many_tokens_are_refused_with_both_lengths(name, positions):
    model, texts = make(name, positions=positions), inputs(name)
    for side in range(len(texts)):
        longer = [*texts]
        longer[side] = np.ones((N, T + 1), int)
        with pytest.raises(ValueError, match=r"length 7 .* length 6"):
            jax.eval_shape(call, model, *longer)
