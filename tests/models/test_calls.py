"""Properties of every model: causality, padding, batches, dropout, valid tokens."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.sharding import Mesh, PartitionSpec

from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    linear_parameters,
    normal,
    some_mask,
)
from tests.helpers.models import ALL, GENERATORS, call, difference, drawn, replaced
from tlite import functional as F
from tlite import models as M
from tlite.models.classifier import attention_pool, dense_pool, mean_pool
from tlite.models.inputs import causal_inputs
from tlite.models.parameters import named_arrays, unstack_blocks
from tlite.models.transformer import constrain_batch_sharding, embed, run_blocks

N, T, V, C, END = 4, 6, 7, 3, 0
SIZES = {"vocabulary_size": V, "context": T, "width": 8, "num_heads": 2, "num_blocks": 1}
SIZES |= {"dropout": 0.5, "feed_forward": M.FeedForward(6, dropout=0.3)}
GENERATOR = M.GeneratorConfig(**SIZES)
WORDS = M.Embedding(init_std=1.0, scale=False, word_dropout=0.3)
CLASSIFIER = M.ClassifierConfig(**SIZES, num_classes=C, embedding=WORDS)
SEQ2SEQ = M.Seq2SeqConfig(**SIZES, source_vocabulary_size=V)
CAUSAL = {
    **{name: replaced(GENERATOR, parts) for name, parts in GENERATORS.items()},
    "generator, all": replaced(GENERATOR, GENERATORS["generator, all"] | {"num_blocks": 2}),
    "seq2seq": SEQ2SEQ,
    "seq2seq, all": replaced(SEQ2SEQ, ALL | {"head": M.TranslatorHead("shared")}),
}
PADDED = {  # models in which tokens below 0 are padding
    "dense": CLASSIFIER,
    "mean": replaced(CLASSIFIER, {"pool": M.Pool("mean")}),
    "attention": replaced(CLASSIFIER, {"pool": M.Pool("attention")}),
    "masked": M.MaskedConfig(**SIZES),
    "logistic": M.LogisticConfig(vocabulary_size=V, num_classes=C, context=T),
}
CONFIGS = CAUSAL | PADDED | {"no bias": replaced(CLASSIFIER, {"bias": False})}
BIGRAMS = M.LogisticConfig(vocabulary_size=V, num_classes=C, bigrams=5)
KEYS = jax.random.split(jax.random.key(0), N)
TEXTS = np.random.default_rng(0).permuted(np.tile(np.arange(1, V), (N, 1)), axis=1)
HOLES = np.where(some_mask(N, T, seed=1), TEXTS, -1)
LENGTHS = np.array([4, 3, 1, 0])
PREFIXES = np.where(np.arange(T) < LENGTHS[:, None], TEXTS, -1)


@functools.cache
def make(name, **fields):
    return drawn(M.make_model, replaced(CONFIGS[name], fields))


def inputs(name, texts=PREFIXES):
    """Return the inputs of a model: a translator's padding is 0, and a generator has none."""
    if "seq2seq" in name:
        return np.maximum(texts, 0), TEXTS[:, ::-1]
    return (TEXTS if "generator" in name else texts,)


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_do_not_change_earlier_logits_by_a_bit(name):
    model, (*source, tokens) = make(name), inputs(name)
    logits = np.asarray(call(model, *source, tokens))
    for t in range(1, T):
        later = np.where(np.arange(T) >= t, tokens % (V - 1) + 1, tokens)
        changed = np.asarray(call(model, *source, later))
        assert_same(changed[:, :t], logits[:, :t])
        assert (changed[:, t] != logits[:, t]).any()


@pytest.mark.parametrize("name", PADDED)
def test_a_token_below_0_anywhere_is_padding(name):
    model, others = make(name), np.where(HOLES < 0, -1 - TEXTS, HOLES)
    for key in (None, KEYS):
        assert_same(call(model, others, rng=key), call(model, HOLES, rng=key))
    changes = np.abs(np.asarray(call(model, TEXTS)) - call(model, HOLES)).reshape(N, -1)
    assert changes[(HOLES < 0).any(-1)].max(-1).min() > 1e-4


@pytest.mark.parametrize("name", ["generator", "seq2seq", *PADDED])
def test_padding_up_to_the_context_does_not_change_logits(name):
    model = make(name)
    texts = inputs(name)
    short = [text[:, : LENGTHS.max()] for text in texts]
    for key in (None, KEYS):
        logits = np.asarray(call(model, *texts, rng=key))
        rows = logits if logits.shape[1:] == (C,) else logits[:, : LENGTHS.max()]
        assert_close(call(model, *short, rng=key), rows)


@pytest.mark.parametrize("name", ["seq2seq", "no bias", *PADDED])
def test_nothing_but_padding_has_finite_logits_and_gradients(name):
    """The logits of a classifier are its head's bias; no other parameter has a gradient.

    Gradients are those with dropout.
    """
    model, texts = make(name), inputs(name, np.full((N, T), -1))

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradients_and_logits(model):
        logits = model(*map(jnp.asarray, texts), rng=KEYS)
        return (jnp.arange(1, logits.shape[-1] + 1) * logits).sum(), logits

    gradients, in_training = gradients_and_logits(model)
    both = in_training, call(model, *texts)
    assert_all_finite((gradients, both))
    if isinstance(model.config, M.ClassifierConfig | M.LogisticConfig):
        bias = model.bias if name == "logistic" else model.head.bias
        expected = np.tile(np.zeros(C) if bias is None else bias[...], (N, 1))
        assert_same(both, (expected, expected))
        leaves = named_arrays(gradients).items()
        assert {n for n, leaf in leaves if leaf.any()} <= {"bias", "head.bias"}


@functools.cache
def pooled_and_gradients(pool):
    """Return a function of (x, mask): the pooled vector, and gradients of a weighted sum."""

    @jax.jit
    def compute(x, mask):
        pooled, pull_back = jax.vjp(lambda p, x: pool(p, x, mask), linear_parameters(4, 1), x)
        return pooled, *pull_back(normal(*pooled.shape))

    return compute


POOLS = dense_pool, lambda params, x, mask: mean_pool(x, mask), attention_pool


@pytest.mark.parametrize("pool", POOLS, ids=["dense", "mean", "attention"])
@given(arrays(bool, T), st.sampled_from([0.0, 1.0, -100.0, 1e30]))
def test_padding_changes_no_bit_of_a_pool_and_has_no_gradient(pool, mask, size):
    x, compute = np.asarray(normal(T, 4)), pooled_and_gradients(pool)
    noise = np.float32(size) * np.asarray(normal(T, 4, seed=1))
    expected, params_gradient, _ = compute(x, mask)
    pooled, *gradients = compute(np.where(mask[:, None], x, noise), mask)
    assert_same(pooled, expected)
    assert_all_finite(gradients)
    assert_close(gradients[0], params_gradient, 1e-6)
    assert not np.asarray(gradients[1])[~mask].any()


PACKED = np.array([3, 1, END, 2, 5, 4])  # two documents, the second without its end token
NUMBERS = np.asarray(F.segment_ids(jnp.asarray(PACKED), END))


@pytest.mark.parametrize("name", GENERATORS)
def test_documents_in_one_window_do_not_change_each_other(name):
    """A token changes the logits at its position and later ones of its document, and no others."""
    model = make(name)
    logits = np.asarray(call(model, PACKED, segment_ids=NUMBERS))
    for t in range(T):
        tokens = np.where(np.arange(T) == t, (PACKED + 1) % V, PACKED)
        changed = np.asarray(call(model, tokens, segment_ids=NUMBERS))
        assert_same((changed != logits).any(-1), (np.arange(T) >= t) & (NUMBERS[t] == NUMBERS))
    with pytest.raises(ValueError, match="segment_ids has length 1"):
        causal_inputs(T, jnp.zeros(1, int))


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "relative"])
def test_a_document_equals_one_alone_at_its_positions(positions):
    """With relative positions, also the document alone at positions from 0 on."""
    model = make("generator", positions=positions)

    @jax.jit
    def second(model, tokens):
        at = jnp.arange(2, T)
        inputs = dataclasses.replace(causal_inputs(T - 2), positions=at, key_positions=at)
        return model.logits(run_blocks(model, embed(model, tokens, at), inputs)[0])

    logits = np.asarray(call(model, PACKED, segment_ids=NUMBERS))
    assert_close(logits[:2], call(model, PACKED[:2]))
    assert_close(logits[2:], second(model, PACKED[2:]))
    if positions != "learned":
        assert_close(logits[2:], call(model, PACKED[2:]))


@pytest.mark.parametrize(
    "name", ["generator, all", "dense", "mean", "attention", "logistic", "seq2seq, all"]
)
def test_a_text_alone_batched_or_mapped_has_the_same_logits(name):
    model, texts = make(name), inputs(name)
    batched = np.asarray(call(model, *texts, rng=KEYS))
    mapped = jax.jit(jax.vmap(lambda texts, rng: call(model, *texts, rng=rng)))
    assert_close(mapped(texts, KEYS), batched)
    assert_close(call(model, *(x[:, None] for x in texts), rng=KEYS[:, None]), batched[:, None])
    assert_close(call(model, *(x[::-1] for x in texts), rng=KEYS[::-1]), batched[::-1])
    for i in (0, N - 1):
        assert_close(call(model, *(x[i] for x in texts), rng=KEYS[i]), batched[i])


SCAN, REMAT = M.Loop(scan=True), M.Loop(remat=True)
DEEP = {
    "generator, all": {"num_blocks": 2, "attention.windows": (3,)},
    "seq2seq": {"num_blocks": 2, "decoder_blocks": 1, "positions": "relative"},
}


@functools.cache
def gradients_and_logits(name, loop):
    """Return the gradient of the sum of squared logits, and the logits."""
    texts = [*map(jnp.asarray, inputs(name))]

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def compute(model):
        logits = model(*texts, rng=KEYS)
        return (logits**2).sum(), logits

    return compute(make(name, loop=loop, **DEEP[name]))


@pytest.mark.parametrize(
    ("name", "loop"),
    [("generator, all", M.Loop(True, True)), ("generator, all", REMAT), ("seq2seq", SCAN)],
)
def test_scan_and_remat_change_no_logits_and_no_gradients(name, loop):
    gradients, logits = gradients_and_logits(name, M.Loop())
    other_gradients, others = gradients_and_logits(name, loop)
    assert_close(others, logits, 1e-4)
    by_name, expected = unstack_blocks(named_arrays(other_gradients)), named_arrays(gradients)
    assert by_name.keys() == expected.keys()
    for array_name, gradient in expected.items():
        assert_close(by_name[array_name], gradient, 1e-4)


def test_a_scanned_program_does_not_grow_with_depth():
    def size(num_blocks, loop):
        config = replaced(CONFIGS["generator, all"], {"num_blocks": num_blocks, "loop": loop})
        model = jax.eval_shape(lambda: M.make_model(config, rng=KEYS[0]))
        return len(str(jax.make_jaxpr(lambda model: model(jnp.asarray(TEXTS)))(model)))

    growth = {loop: size(9, loop) / size(3, loop) for loop in (M.Loop(), SCAN)}
    assert growth[M.Loop()] > 2
    assert growth[SCAN] < 1.01


def test_scan_makes_no_copy_of_the_parameters():
    """Only slices of one block at a time are temporary, beside its activations."""
    config = replaced(GENERATOR, {"width": 64, "num_blocks": 12, "dropout": 0.0, "loop": SCAN})
    model = jax.eval_shape(lambda: M.make_model(config, rng=KEYS[0]))
    total = lambda model: model(jnp.asarray(TEXTS[0])).sum()  # noqa: E731
    size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(model.blocks))
    for function in (total, jax.grad(total)):
        memory = jax.jit(function).lower(model).compile().memory_analysis()
        assert memory.temp_size_in_bytes < size / 2


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *((name, "dropout") for name in ("generator", "dense", "masked", "seq2seq")),
        ("generator", "attention.dropout"),
    ],
)
def test_dropout_needs_a_key_and_repeats_with_it(name, field):
    none = {"dropout": 0.0, "feed_forward.dropout": 0.0, "embedding.word_dropout": 0.0}
    plain, model = (make(name, **none | {field: rate}) for rate in (0.0, 0.5))
    texts = inputs(name, TEXTS)
    evaluated, first = call(plain, *texts), np.asarray(call(model, *texts, rng=KEYS[0]))
    assert_same(call(model, *texts), evaluated)
    assert_same(call(plain, *texts, rng=KEYS[0]), evaluated)
    assert_same(call(model, *texts, rng=KEYS[0]), first)
    for other in (call(model, *texts, rng=KEYS[1]), evaluated):
        assert difference(first, other) > 1e-3


@pytest.mark.parametrize(
    ("name", "number"),
    [("generator", 1 + 2 * 4), ("dense", 3 + 2 * 4), ("seq2seq", (1 + 2 * 4) + (1 + 2 * 6))],
)
def test_each_dropout_of_a_call_has_its_own_key(name, number, monkeypatch):
    keys, random_bits, texts = [], F.random_bits, [*map(jnp.asarray, inputs(name))]

    def recorded(rng, shape):
        keys.append(jax.random.key_data(rng))
        return random_bits(rng, shape)

    monkeypatch.setattr(F.random, "random_bits", recorded)

    @jax.jit
    def drawn_keys():
        make(name, attention=M.Attention(dropout=0.5), num_blocks=2)(*texts, rng=KEYS[0])
        return keys

    assert len(np.unique(drawn_keys(), axis=0)) == len(keys) == number


@pytest.mark.parametrize(
    "positions", ["learned", "sinusoidal", "rotary", lambda positions, width: 0.0]
)
@pytest.mark.parametrize("name", ["generator", "dense", "masked", "seq2seq"])
def test_too_many_tokens_are_an_error_with_both_lengths(name, positions):
    model, texts = make(name, positions=positions), inputs(name)
    for side in range(len(texts)):
        longer = [*texts]
        longer[side] = np.ones((N, T + 1), int)
        with pytest.raises(ValueError, match=r"length 7 .* length 6"):
            jax.eval_shape(call, model, *longer)


@pytest.mark.parametrize(
    "name",
    ["generator", "dense", "masked", "logistic", "logistic, bigrams", "seq2seq"],
)
def test_a_token_outside_the_vocabulary_is_named(name):
    """A token below 0 is padding in some models, and an error in others."""
    model = drawn(M.make_model, BIGRAMS) if "bigrams" in name else make(name)
    calls = [model]
    if name == "seq2seq":
        calls = lambda t: model(t, jnp.ones_like(t)), lambda t: model(jnp.ones_like(t), t)
    for call_with in calls:
        for token, row in ((V, [1, V, 99]), (-1, [1, -1, 2])):
            if token < 0 and name in (*PADDED, "logistic, bigrams"):
                assert np.isfinite(call_with(jnp.array(row))).all()
                continue
            with pytest.raises(ValueError, match=f"no token {token}: the vocabulary has 0 to 6"):
                call_with(jnp.array(row))


@pytest.mark.parametrize("token", [11, -1, -12])
def test_an_invalid_token_gives_nan_under_jit(token):
    table, tokens = jnp.ones((11, 4)), np.array([token, 10])
    for transformed in (jax.jit(F.embed), jax.vmap(F.embed, (None, 0))):
        assert_same(np.isnan(transformed(table, tokens)).all(-1), [True, False])
    with pytest.raises(ValueError, match=f"no token {token}"):
        jax.grad(lambda table: F.embed(table, jnp.asarray(tokens)).sum())(table)


def test_ngram_features_reach_only_the_linear_model():
    model = make("dense", wide=M.Wide(num_word_ngrams=10, num_character_ngrams=5))
    model.word_ngrams.weights[...] = words = normal(V + 10, C)
    model.character_ngrams.weights[...] = characters = normal(5, C)
    features = np.array([[0, V + 9, -1, V + 10 + 4, V + 10, V + 10 + 2]] * N)
    both = np.concatenate([TEXTS, features], axis=-1)
    words, characters = np.asarray(words), np.asarray(characters)
    added = (words[0] + words[V + 9]) / 2**0.5 + characters[[0, 2, 4]].sum(0) / 3**0.5
    added += np.asarray(model.word_ngrams.bias) + np.asarray(model.character_ngrams.bias)
    read = jax.jit(lambda model, **noise: model.logits_and_aux(jnp.asarray(TEXTS), **noise)[0])
    for noise in ({}, {"rng": KEYS}):
        assert_close(call(model, both, **noise), np.asarray(read(model, **noise)) + added)
    with pytest.raises(ValueError, match="tokens has 6 columns"):
        call(model, TEXTS)


def test_word_dropout_hides_each_word_at_its_rate():
    rate, tokens, number = 0.2, TEXTS[0], 2000
    fields = {"dropout": 0.0, "feed_forward.dropout": 0.0, "embedding.word_dropout": rate}
    model = make("dense", **fields)
    masks = np.array(list(itertools.product([False, True], repeat=T)))
    possible = np.asarray(call(model, np.where(masks, tokens, -1)))
    draw = jax.jit(jax.vmap(lambda rng: call(model, tokens, rng=rng)))
    logits = np.asarray(draw(jax.random.split(KEYS[0], number)))
    distances = np.abs(logits[:, None] - possible).max(-1)
    nearest, second = np.sort(distances, axis=-1)[:, :2].T
    assert nearest.max() < 1e-4 < second.min()  # each mask is identified
    hidden = ~masks[distances.argmin(-1)]
    variance = rate * (1 - rate)
    assert (np.abs(hidden.mean(0) - rate) < 5 * np.sqrt(variance / number)).all()
    covariances = np.cov(hidden.T)[np.triu_indices(T, 1)]
    assert (np.abs(covariances) < 5 * variance / np.sqrt(number)).all()


@pytest.mark.parametrize("inside", [False, True], ids=["global", "in shard_map"])
def test_a_mesh_shards_the_batch_and_changes_no_number(inside):
    x, spec = jnp.arange(24.0).reshape(8, 3), PartitionSpec("data")
    function = constrain_batch_sharding
    devices = np.array(jax.local_devices()[:4]).reshape(1, 4)
    mesh = Mesh(devices, ("replica", "data"))
    assert constrain_batch_sharding(x) is x
    if inside:
        function = jax.shard_map(constrain_batch_sharding, mesh=mesh, in_specs=spec, out_specs=spec)
    with jax.set_mesh(mesh):
        y = jax.jit(function)(x)
    assert_same(y, x)
    assert {shard.data.shape for shard in y.addressable_shards} == {(2, 3)}
