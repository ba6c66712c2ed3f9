"""The tools equal loops over heads, positions and layers."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from tests.helpers.arrays import assert_close, assert_same, exact, integers, normal
from tests.helpers.models import drawn
from tlite import functional as F
from tlite import models as M
from tlite.inspection import (
    ablate_heads,
    attention_pattern_scores,
    gradient_times_input,
    logit_lens,
    logit_lens_top_k,
    patch_residual,
    pseudo_log_likelihoods,
    repeated_tokens,
    run,
    score_attention_patterns,
)
from tlite.models.transformer import embed, final_norm

V, T, L, H = 7, 6, 2, 2
SIZES = {"vocabulary_size": V, "context": 8, "width": 8, "num_heads": H, "num_blocks": L}
NUMBERS = np.asarray(integers(V, T))
TOKENS, FIRST = jnp.asarray(NUMBERS), jnp.asarray(NUMBERS[:4])


@functools.cache
def make(kind, **fields):
    """Return a model with random arrays, of the config class `kind`."""
    return drawn(M.make_model, kind(**SIZES | fields))


generator = functools.partial(make, M.GeneratorConfig)
seq2seq = functools.partial(make, M.Seq2SeqConfig, source_vocabulary_size=V)
classifier = functools.partial(make, M.ClassifierConfig, num_classes=3, num_blocks=1)


def replace_token(position, token):
    return jnp.asarray(np.where(np.arange(T) == position, token, NUMBERS))


@pytest.mark.parametrize("block", ["post_norm", "pre_norm"])
def test_logit_lens_row_equals_a_model_without_later_blocks(block):
    model = generator(block=block)
    lens = logit_lens(model, TOKENS)
    assert_close(lens[0], jax.nn.softmax(model.logits(final_norm(model, embed(model, TOKENS)))))
    for num_blocks in range(1, L + 1):
        shorter = generator(block=block, num_blocks=num_blocks)
        assert_close(lens[num_blocks], jax.nn.softmax(shorter(TOKENS)))


@dataclass(frozen=True)
class AttentionBlock(M.Block):
    """A user's block without taps."""

    def __call__(self, params, x, inputs, *, config, cache=None):
        y, entries, aux = M.apply_layer(
            config.attention, params.attention, x, inputs, config=config, cache=cache
        )
        return x + y, {"attention": entries}, aux


def test_logit_lens_reads_a_users_block_and_rejects_a_classifier():
    model = generator(block=AttentionBlock())
    assert_close(logit_lens(model, TOKENS)[-1], jax.nn.softmax(model(TOKENS)))
    with pytest.raises(TypeError, match="SequenceClassifier"):
        logit_lens(classifier(), TOKENS)


TOP_K = {
    "tied": lambda: generator(block="pre_norm", head=M.LMHead(tied=True)),
    "masked": lambda: make(M.MaskedConfig),
    "seq2seq": seq2seq,
}


@pytest.mark.parametrize("name", TOP_K)
def test_logit_lens_top_k_is_the_top_k_of_the_logit_lens(name):
    model, k = TOP_K[name](), 3
    inputs = (TOKENS, FIRST) if name == "seq2seq" else (TOKENS,)

    @jax.jit
    def lenses(model, *inputs):
        expected = jax.nn.softmax(model(*inputs))
        return logit_lens_top_k(model, *inputs, k=k), logit_lens(model, *inputs), expected

    (best, tokens), lens, expected = jax.device_get(lenses(model, *inputs))
    assert_close(lens[-1], expected)
    assert_close(lens.sum(-1), np.ones(lens.shape[:-1]))
    assert_close(best, np.sort(lens)[..., ::-1][..., :k])
    assert_close(np.take_along_axis(lens, tokens, -1), best)


def test_each_token_is_predicted_from_the_others_alone():
    model, mask_id = make(M.MaskedConfig), V - 1
    predict = jax.jit(pseudo_log_likelihoods)
    table = np.asarray(predict(model, TOKENS, mask_id))
    assert table.shape == (T, V)
    forward = jax.jit(lambda model, masked: jax.nn.log_softmax(model(masked)))
    for t in range(T):
        assert_close(table[t], np.asarray(forward(model, replace_token(t, mask_id)))[t])
    other = np.asarray(predict(model, replace_token(2, mask_id - 1), mask_id))
    assert_close(other[2], table[2])
    assert_close(predict(model, TOKENS, mask_id, np.array([4, 1])), table[[4, 1]])


def largest(function, *arguments):
    """Return the size of the largest array in a program, also in its loops."""

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for inner in jaxprs_in_params(equation.params):
                yield from sizes(inner)

    return max(sizes(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_masked_predictions_are_of_one_text(without_type_checks):
    with pytest.raises(ValueError, match="of one text"):
        pseudo_log_likelihoods(generator(), np.asarray(TOKENS)[None], 0)


def test_repeated_passes_need_no_more_memory_than_one():
    size = 500
    model, masked = (make(k, vocabulary_size=size) for k in (M.GeneratorConfig, M.MaskedConfig))
    loss = lambda logits: F.token_cross_entropy(logits[:-1], TOKENS[1:]).mean()  # noqa: E731
    one = largest(lambda model: loss(model(TOKENS)), model)
    assert one == T * size
    assert largest(lambda model: ablate_heads(model, TOKENS, metric=loss), model) == one
    assert largest(lambda model: patch_residual(model, TOKENS, CORRUPTED, loss), model) == one
    assert largest(lambda model: logit_lens_top_k(model, TOKENS, k=2), model) == one
    assert largest(lambda model: logit_lens(model, TOKENS), model) == (L + 1) * one
    likelihoods = largest(lambda model: pseudo_log_likelihoods(model, TOKENS, 0), masked)
    assert likelihoods == largest(lambda model: model(TOKENS), masked)


def repeated(seed, length, size, batch):
    return np.asarray(repeated_tokens(jax.random.key(seed), length, size, batch))


def test_repeated_tokens_repeat_and_cover_the_vocabulary():
    tokens = repeated(0, 4, 5, 10)
    assert_same(tokens[:, :4], tokens[:, 4:])
    assert {*tokens.ravel()} == {*range(5)}
    assert (tokens[0] != tokens[1]).any()
    assert (tokens != repeated(1, 4, 5, 10)).any()


PATTERNS = {  # predicates: does the pattern contain attention from `query` to `key`?
    "previous": lambda tokens, query, key: key == query - 1,
    "duplicate": lambda tokens, query, key: key < query and tokens[key] == tokens[query],
    "induction": lambda tokens, query, key: 0 < key <= query and tokens[key - 1] == tokens[query],
}


def scores_by_loops(weights, tokens):
    """Return the scores of weights (B, H, T, T) and tokens (B, T)."""
    length, scores = weights.shape[-1], {}
    for pattern, contains in PATTERNS.items():
        fractions = []
        for heads, text in zip(weights, tokens, strict=True):
            for query in range(length):
                if keys := [key for key in range(length) if contains(text, query, key)]:
                    fractions.append(heads[:, query, keys].sum(-1))
        scores[pattern] = np.mean(fractions, axis=0) if fractions else np.zeros(weights.shape[1])
    return scores


compute_scores = jax.jit(attention_pattern_scores)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 99]))
def test_attention_pattern_scores_equal_those_of_loops(seed, alphabet):
    rng = np.random.default_rng(seed)
    weights = np.exp(3 * rng.normal(size=(2, H, T, T))) * np.tri(T)
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    tokens = rng.integers(0, alphabet, (2, T))
    assert_close(compute_scores(weights, tokens), scores_by_loops(weights, tokens))
    both = compute_scores(weights, tokens[0])  # of one text
    assert_close(both, scores_by_loops(weights, np.stack([tokens[0]] * 2)))
    single = compute_scores(weights[0], tokens[0])
    assert_close(single, scores_by_loops(weights[:1], tokens[:1]))


def test_heads_of_a_model_are_scored_by_their_weights():
    model, tokens = generator(), jnp.asarray(repeated(0, T // 2, V, 2))
    scores = score_attention_patterns(model, tokens)
    _, captured = run(model, tokens, capture="blocks.*.attention.weights")
    by_layer = [scores_by_loops(np.asarray(w), np.asarray(tokens)) for w in captured.values()]
    assert_close(scores, {p: np.stack([s[p] for s in by_layer]) for p in PATTERNS})


GROUPED = {"attention": M.Attention(num_kv_heads=1, windows=(2, 0)), "positions": "rotary"}
ABLATED = [("", "attention"), ("encoder.", "attention")]  # prefix of the blocks, layer
ABLATED += [("decoder.", "attention"), ("decoder.", "cross_attention")]


@jax.jit
def weighted(model, inputs, weights):
    return (weights * model(*inputs)).sum()


@pytest.mark.parametrize(("stack", "name"), ABLATED)
def test_ablation_equals_zeroing_each_heads_output_kernel(stack, name):
    model, inputs = (seq2seq(), (TOKENS, FIRST)) if stack else (generator(**GROUPED), (TOKENS,))
    blocks = getattr(model, stack.rstrip("."), model).blocks
    weights = normal(*jax.eval_shape(model, *inputs).shape)

    def metric(logits):
        return (weights * logits).sum()

    ablate = functools.partial(ablate_heads, metric=metric, layer=f"{stack}blocks.*.{name}")
    table = jax.jit(ablate)(model, *inputs)
    assert table.shape == (L, H)
    intact = weighted(model, inputs, weights)
    for layer, head in np.ndindex(L, H):
        leaves, structure = jax.tree.flatten(model)
        kernel = getattr(blocks[layer], name).output.kernel[...]
        (at,) = (i for i, leaf in enumerate(leaves) if leaf is kernel)
        leaves[at] = np.array(kernel)
        leaves[at][4 * head : 4 * head + 4] = 0
        expected = weighted(jax.tree.unflatten(structure, leaves), inputs, weights)
        assert_close(table[layer, head], expected, 1e-4)
        assert abs(expected - intact) > 1e-3


CORRUPTED = replace_token(2, (NUMBERS + 1) % V)
WEIGHTS = normal(V)


def last_position_metric(logits):
    return (WEIGHTS * logits[-1]).sum()


def test_a_patch_equals_an_edit_of_one_row():
    model = generator(block="pre_norm")

    @functools.partial(jax.jit, static_argnames="name")
    def edited(model, position, name):
        clean = run(model, TOKENS, capture=name)[1][name][position]
        edit = {name: lambda x: x.at[position].set(clean)}
        return last_position_metric(run(model, CORRUPTED, edit=edit)[0])

    patch = functools.partial(patch_residual, metric=last_position_metric)
    table = np.asarray(jax.jit(patch)(model, TOKENS, CORRUPTED))
    patch_embedding = jax.jit(functools.partial(patch, name="embedding"))
    first = np.asarray(patch_embedding(model, TOKENS, CORRUPTED))
    assert (table.shape, first.shape) == ((L, T), (1, T))
    for layer, position in np.ndindex(L, T):
        expected = edited(model, position, name=f"blocks.{layer}.residual")
        assert_close(table[layer, position], expected)

    # After the last block, only the last position matters; in the embedding, only the changed one.
    clean, corrupted = (float(last_position_metric(model(x))) for x in (TOKENS, CORRUPTED))
    assert abs(clean - corrupted) > 1e-3
    for row, position in ((table[-1], T - 1), (first[0], 2)):
        assert_close(row, np.where(np.arange(T) == position, clean, corrupted).astype(np.float32))


@pytest.mark.parametrize("pool", ["dense", "mean", "attention"])
def test_padding_has_no_saliency(pool):
    model = classifier(pool=M.Pool(pool))
    text = jnp.asarray(np.where(np.arange(T) < 4, NUMBERS, -1))
    both = jax.jit(lambda model: [gradient_times_input(model, t, 1) for t in (text, FIRST)])
    padded, alone = jax.device_get(both(model))
    assert_same(padded[4:], np.zeros(2))
    assert (padded[:4] != 0).all()
    assert_close(padded[:4], alone, 1e-4)


def test_saliency_is_the_slope_along_each_embedding():
    model, index = classifier(pool=M.Pool("mean"), feed_forward=M.FeedForward(activation="gelu")), 2

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def logit(model, scales):
        edit = {"embedding": lambda x: scales[:, None] * x}
        return run(model, TOKENS, edit=edit)[0][index]

    step = 3e-3
    around = [exact(logit(model, np.float32(1 + sign * step * np.eye(T)))) for sign in (1, -1)]
    difference = (around[0] - around[1]) / (2 * step)
    table = jax.jit(jax.vmap(gradient_times_input, (None, None, 0)))(model, TOKENS, np.arange(3))
    np.testing.assert_allclose(table[index], difference, rtol=0.02, atol=2e-3)
    alone = jax.jit(gradient_times_input)
    for i in range(3):
        assert_close(table[i], alone(model, TOKENS, i))
