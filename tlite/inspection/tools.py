"""Tools to study a model with: logit lens, head scores, ablation, patching, saliency.

Each is a pure function and works under `jit` and `vmap`. What runs a model many times does
so one time after another (`jax.lax.map`), in the memory of one: models may be large.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from tlite.inspection.capture import matching, names, run
from tlite.models import Seq2Seq


def logit_lens(model, *inputs: Int[Array, "_"]) -> Float[Array, "L1 T V"]:
    """What the model would predict if it ended after the embedding, after block 0, after block 1...

    softmax(head(norm(x_l))) for the residual stream x_l at each depth (nostalgebraist 2020), of an
    encoder-decoder the decoder's; the last row is the model's own prediction.

    Raises:
        TypeError: the model has no logits at every position, as a classifier.
    """
    return _at_each_depth(model, inputs, lambda logits: jax.nn.softmax(logits, axis=-1))


def logit_lens_top_k(
    model, *inputs: Int[Array, "_"], most: int = 1
) -> tuple[Float[Array, "L1 T N"], Int[Array, "L1 T N"]]:
    """The `most` largest probabilities of `logit_lens` and their tokens, without the others.

    At no time there are more than the (T, V) of one depth: a vocabulary may be large.
    """

    def top(logits):
        best, tokens = jax.lax.top_k(logits, most)
        return jnp.exp(best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)), tokens

    return _at_each_depth(model, inputs, top)


def _at_each_depth(model, inputs, function: Callable):
    """The function of what is read out of each depth's residual stream, one after another."""
    place, stack = "", model
    if not hasattr(model, "logits"):
        raise TypeError(f"a {type(model).__name__} has no logits at every position")
    if isinstance(model, Seq2Seq):
        place, stack = "decoder.", model.decoder
    _, captured = run(model, *inputs, capture=[f"{place}embedding", f"{place}blocks.*.residual"])
    streams = jnp.stack(list(captured.values()))
    return jax.lax.map(lambda x: function(model.logits(stack.final_norm(x))), streams)


def pseudo_log_likelihoods(
    model,
    tokens: Int[Array, "T"],
    mask_id: int | Int[Array, ""],
    places: Int[Array, "N"] | None = None,
) -> Float[Array, "N V"]:
    """What a masked model predicts at each place when that token alone is hidden.

    log p(x_t | all others), whose values at the tokens sum up to the text's pseudo-log-likelihood
    (Salazar et al. 2020). One place after another, in one program.
    """

    def predicted(place):
        return jax.nn.log_softmax(model(tokens.at[place].set(mask_id))[place])

    return jax.lax.map(predicted, jnp.arange(len(tokens)) if places is None else places)


def repeated_tokens(
    rng: Key[Array, ""], length: int, vocabulary_size: int, batch: int = 1
) -> Int[Array, "B two_length"]:
    """Random sequences, each written twice: after its first half a model can only copy."""
    once = jax.random.randint(rng, (batch, length), 0, vocabulary_size)
    return jnp.concatenate([once, once], axis=1)


def attention_pattern_scores(
    weights: Float[Array, "*batch H T T"], tokens: Int[Array, "*batch T"]
) -> dict[str, Float[Array, "H"]]:
    """How much of a causal head's attention goes where a known kind of head looks.

    Means over the queries for which there is such a place, from 0 to 1:

        previous   the token before this one
        duplicate  earlier tokens that are the same as this one
        induction  the tokens that came after those (Olsson et al. 2022): what to copy next
    """
    length = tokens.shape[-1]
    before = jnp.tril(jnp.ones((length, length), bool), -1)
    same = (tokens[..., :, None] == tokens[..., None, :]) & before
    after_same = jnp.concatenate([jnp.zeros_like(same[..., :1]), same[..., :-1]], axis=-1)
    places = {
        "previous": jnp.broadcast_to(jnp.eye(length, k=-1, dtype=bool), same.shape),
        "duplicate": same,
        "induction": after_same & jnp.tril(jnp.ones((length, length), bool)),
    }
    scores = {}
    for name, place in places.items():
        there = place.any(-1)  # (..., T)
        looked = jnp.where(place[..., None, :, :], weights, 0).sum(-1)  # (..., H, T)
        total = jnp.where(there[..., None, :], looked, 0).sum(-1)
        scores[name] = total.reshape(-1, total.shape[-1]).sum(0) / jnp.maximum(there.sum(), 1)
    return scores


def score_attention_patterns(model, tokens: Int[Array, "B T"]) -> dict[str, Float[Array, "L H"]]:
    """`attention_pattern_scores` of every layer and head of a generator."""
    _, captured = run(model, tokens, capture="blocks.*.attention.weights")
    by_layer = [attention_pattern_scores(weights, tokens) for weights in captured.values()]
    return {name: jnp.stack([scores[name] for scores in by_layer]) for name in by_layer[0]}


def ablate_heads(
    model,
    *inputs: Array,
    metric: Callable[[Array], Array],
    layer: str = "blocks.*.attention",
) -> Float[Array, "L H"]:
    """metric(logits) with each head's output in turn set to 0; one after another, in one program.

    Args:
        metric: a number from the model's logits.
        layer: a pattern for whose heads: "decoder.blocks.*.cross_attention", say.
    """
    silent = dict.fromkeys(matching(f"{layer}.heads", names(model, *inputs)), 0)
    return _each_in_turn(model, inputs, metric, silent, model.config.num_heads, (1, 1))


def patch_residual(
    model,
    clean: Int[Array, "T"],
    corrupted: Int[Array, "T"],
    metric: Callable[[Array], Array],
    name: str = "blocks.*.residual",
) -> Float[Array, "L T"]:
    """metric(logits) of the corrupted text with one value, at one position, from the clean text.

    Activation patching (Meng et al. 2022): where it restores the metric of the clean text, what
    counts is there, at that depth and position. One place after another, in one program.
    """
    _, restored = run(model, clean, capture=name)
    return _each_in_turn(model, (corrupted,), metric, restored, clean.shape[-1], (1,))


def _each_in_turn(
    model, inputs, metric: Callable, values: Mapping, size: int, after: tuple[int, ...]
) -> Float[Array, "L N"]:
    """metric(logits) with one row of one value replaced: each of `size` rows, each value.

    `vmap` would need the memory of as many passes.

    Args:
        values: what replaces, by the name of what is replaced.
        after: a 1 for each axis of a value after that of its rows.
    """

    def replaced(place: Int[Array, ""]) -> Float[Array, ""]:
        def edit(layer, new, x):
            here = layer * size + jnp.arange(size) == place
            return jnp.where(here.reshape(-1, *after), new, x)

        edits = {n: partial(edit, layer, new) for layer, (n, new) in enumerate(values.items())}
        return metric(run(model, *inputs, edit=edits)[0])

    return jax.lax.map(replaced, jnp.arange(len(values) * size)).reshape(-1, size)


def gradient_times_input(
    model, tokens: Int[Array, "T"], index: int | Int[Array, ""]
) -> Float[Array, "R"]:
    """For each token x_t . d logit / d x_t, x_t its embedding: how much it speaks for the class.

    (Shrikumar et al. 2016.) Of a model linear in its embeddings the sum is the logit itself. Of a
    text with features of n-grams, which have no embedding, it is for the tokens alone.
    """
    _, captured = run(model, tokens, capture="embedding")
    embedded = captured["embedding"]

    def logit(x):
        return run(model, tokens, edit={"embedding": lambda _: x})[0][..., index]

    return (jax.grad(logit)(embedded) * embedded).sum(-1)
