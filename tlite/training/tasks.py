"""Tasks: the batches, the training loss and the validation scores of each kind of model.

A generator predicts each next token of a long text, a classifier the class of each text, a
translator each next token of the target, given the source.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

import tlite.functional as F
from tlite.data.windows import contiguous_windows, sample_windows
from tlite.models.block import Aux
from tlite.models.config import GeneratorConfig
from tlite.training.step import Buckets, Task


def scores(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], weights: Float[Array, "*batch"]
) -> dict[str, Float[Array, "*batch"]]:
    """Return weighted loss and accuracy of each target, and the weight as `count`."""
    return {
        "loss": weights * F.token_cross_entropy(logits, targets),
        "accuracy": weights * (logits.argmax(-1) == targets),
        "count": weights,
    }


def add_aux_losses(sums: dict, aux: Aux) -> dict[str, tuple[Array, Array]]:
    """Return (sum, count) of the losses by name, and of the scalars that layers add as aux_*.

    Each scalar is weighted by the number of targets in the rows that it was computed on.
    """
    count = sums["loss"][1]
    return sums | {f"aux_{name}": (value * count, count) for name, value in aux.items()}


def token_losses(
    token_loss: Callable,
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
    aux: Aux | None = None,
) -> dict[str, tuple[Array, Array]]:
    """Return (sum, count) of loss and accuracy, weighted, and of the scalars that layers add."""
    loss = F.weighted_sum(token_loss(logits, targets), targets, weights)
    sums = {"loss": loss, "accuracy": F.accuracy(logits, targets, weights)}
    return add_aux_losses(sums, aux or {})


def in_batches(arrays: PyTree[np.ndarray], size: int, num_shards: int = 1) -> PyTree[Array]:
    """Return arrays (E, ...) as batches (N, B, ...); the last one is padded with zeros.

    B is `size`, or the next multiple of `num_shards`.
    """
    size = -(-size // num_shards) * num_shards

    def cut(a):
        filled = np.pad(a, [(0, -len(a) % size), *[(0, 0)] * (a.ndim - 1)])
        return jnp.asarray(filled.reshape(-1, size, *a.shape[1:]))

    return jax.tree.map(cut, arrays)


def text_task(
    config: Any, loss: Callable, evaluate: Callable, draw: Callable | None = None
) -> Task:
    """Return the task of a model whose loss is a mean over the tokens of a text.

    Args:
        config: `TransformerConfig` of the model.
        loss: as `Task.loss`; a batch is (tokens, next tokens), each (B, T).
        evaluate: as `Task.evaluate`; a batch is (tokens, next tokens, weights), each (B, T).
        draw: as `Task.draw`; None: windows with uniform random starts.
    """
    from tlite.models import make_model

    def sample(tokens, rng, step, size):
        return sample_windows(jax.random.fold_in(rng, step), tokens, config.context, size)

    def unpack_rows(rows):
        return rows[:, :-1].astype(jnp.int32), rows[:, 1:].astype(jnp.int32)

    def init(rng):
        return make_model(config, rng=rng)

    return Task(init, draw or sample, loss, evaluate, has_perplexity=True, unpack_rows=unpack_rows)


def generator_task(config: GeneratorConfig, *, end_id: int | None = None) -> Task:
    """Return the task of a `CausalLM`, on windows of tokens (N,) or of a prefetching loader.

    Args:
        end_id: token that ends a document; documents in one window do not attend to each other.
    """

    def segments(tokens):
        return {} if end_id is None else {"segment_ids": F.segment_ids(tokens, end_id)}

    def loss(model, batch, keys, token_loss=F.token_cross_entropy):
        inputs, targets = batch
        logits, aux = model.logits_and_aux(inputs, rng=keys, **segments(inputs))
        return token_losses(token_loss, logits, targets, aux=aux)

    def evaluate(model, batch):
        """Return sums by window and position, (B, T) each."""
        inputs, targets, weights = batch
        return scores(model(inputs, **segments(inputs)), targets, weights)

    return text_task(config, loss, evaluate)


def validation_batches(tokens: np.ndarray, context: int, batch_size: int, num_shards: int):
    """Return (inputs, targets, weights), each (N, B, T), of every validation token once."""
    return in_batches(contiguous_windows(tokens, context), batch_size, num_shards)


def classifier_task(config: Any) -> Task:
    """Return the task of a `SequenceClassifier` or `LogisticRegression`.

    The data is (tokens (N, T), labels (N,)). With tokens (N, S, T) each of a text's S sentences is
    trained alone to predict the text's label, and `join_sentences` computes the text's score.

    Args:
        config: `ClassifierConfig` or `LogisticConfig`.
    """
    from tlite.models import make_model
    from tlite.models.classifier import SequenceClassifier

    def loss(model, batch, keys, text_loss=F.token_cross_entropy):
        tokens, labels = batch
        if isinstance(model, SequenceClassifier):  # without the model of n-grams, which is fitted
            logits, aux = model.logits_and_aux(tokens[..., : model.config.context], rng=keys)
        else:
            logits, aux = model(tokens, rng=keys), {}
        if tokens.ndim == 2:
            return token_losses(text_loss, logits, labels, aux=aux)
        # Each text counts as one, however many sentences it has.
        is_sentence = (tokens >= 0).any(-1)
        weights = is_sentence / jnp.maximum(is_sentence.sum(-1, keepdims=True), 1)
        targets = jnp.broadcast_to(labels[:, None], weights.shape)
        total, _ = F.weighted_sum(text_loss(logits, targets), targets, weights)
        count = jnp.array(labels.size, total.dtype)
        joined = join_sentences(logits, is_sentence)
        sums = {"loss": (total, count), "accuracy": F.accuracy(joined, labels)}
        return add_aux_losses(sums, aux)

    def evaluate(model, batch):
        tokens, labels, weights = batch
        return scores(class_logits(model, tokens), labels, weights)

    def init(rng):
        return make_model(config, rng=rng)

    return Task(init, draw_examples, loss, evaluate, has_perplexity=False)


def draw_examples(data, rng, step, size):
    """Return the batch of a step; every example comes once an epoch, each epoch in a new order."""
    num_examples = data[1].shape[0]
    epoch, first = epoch_and_index(step, size, num_examples)
    index = first + jnp.arange(size)

    def shuffled_index(epoch, index):
        return F.permuted_index(jax.random.fold_in(rng, epoch), index, num_examples)

    rows = jax.vmap(shuffled_index)(epoch + index // num_examples, index % num_examples)
    return jax.tree.map(lambda a: a[rows], data)


def epoch_and_index(step: Int[Array, ""], size: int, num_examples: int) -> tuple[Array, Array]:
    """Return quotient and remainder of step * size by num_examples, in 32 bits without overflow.

    The product is built from the bits of `size`, and reduced after each (Horner's scheme), for up
    to 2^30 examples.
    """
    step, epoch, index = jnp.uint32(step), jnp.uint32(0), jnp.uint32(0)
    for bit in f"{size:b}":
        epoch, index = 2 * epoch, 2 * index
        if bit == "1":
            epoch, index = epoch + step // num_examples, index + step % num_examples
        epoch, index = epoch + index // num_examples, index % num_examples
    return epoch.astype(jnp.int32), index.astype(jnp.int32)


def class_logits(model, tokens):
    """Return the logits of texts (N, T), or of texts in sentences (N, S, T)."""
    from tlite.models.ensemble import Ensemble

    if isinstance(model, Ensemble):  # the mean of replicas is of texts, not of sentences
        return model.mean(lambda replica: class_logits(replica, tokens))
    logits = model(tokens)
    return logits if tokens.ndim == 2 else join_sentences(logits, (tokens >= 0).any(-1))


def join_sentences(logits, is_sentence):
    """Return the log of the parabolic average of the probabilities (..., S, 2) of two classes."""
    from tlite.models.logistic import parabolic_average

    positive = parabolic_average(jax.nn.softmax(logits)[..., 1], is_sentence)
    positive = jnp.clip(positive, 1e-6, 1 - 1e-6)
    return jnp.log(jnp.stack([1 - positive, positive], axis=-1))


class Bucket(NamedTuple):
    """Pairs padded to one length: sources end with [END], targets also start with [START]."""

    source: Int[np.ndarray, "N L"]
    target: Int[np.ndarray, "N L+1"]


def make_buckets(
    sources: list[np.ndarray], targets: list[np.ndarray], number: int
) -> tuple[Bucket, ...]:
    """Return the pairs in at most `number` buckets whose lengths need the least padding."""
    from tlite.text.subwords import pad_tokens

    lengths = np.array([max(len(s), len(t) - 1) for s, t in zip(sources, targets, strict=True)])
    bounds = [0, *best_lengths(lengths, number)]
    buckets = []
    for above, length in itertools.pairwise(bounds):
        rows = np.flatnonzero((lengths > above) & (lengths <= length))
        source = pad_tokens([sources[row] for row in rows], length)
        target = pad_tokens([targets[row] for row in rows], length + 1)
        buckets.append(Bucket(source, target))
    return tuple(buckets)


def best_lengths(lengths: Int[np.ndarray, "N"], number: int) -> list[int]:
    """Return the lengths of at most `number` buckets that hold all sequences with least padding.

    least[k][l] = min over j < l of least[k - 1][j] + l * (sequences longer than j, at most l)
    """
    longest = int(lengths.max())
    counts = np.cumsum(np.bincount(lengths, minlength=longest + 1))
    least, choices = np.r_[0.0, np.full(longest, np.inf)], []
    for _ in range(number):
        totals = least[:, None] + np.arange(longest + 1) * (counts[None] - counts[:, None])
        totals[np.tril_indices(longest + 1, -1)] = np.inf  # a bucket may stay empty
        choices.append(totals.argmin(0))
        least = totals.min(0)
    bounds, length = [], longest
    for choice in reversed(choices):
        bounds.append(length)
        length = int(choice[length])
    return sorted(set(bounds) - {0})


def translator_task(
    config: Any,
    sizes: list[tuple[int, int]],
    batch_tokens: int,
    *,
    num_devices: int = 1,
) -> Task:
    """Return the task of a `Seq2Seq` on buckets of pairs, one branch for each bucket's shape.

    A batch holds about `batch_tokens` tokens of one bucket, with padding. Every pair comes once an
    epoch, in an order that is a function of (seed, epoch).

    Args:
        config: `Seq2SeqConfig`.
        sizes: number of pairs N and length L of each bucket.
        num_devices: batches are padded to a multiple of it.
    """
    from tlite.models.seq2seq import Seq2Seq

    def init(rng):
        return Seq2Seq(config, rng=rng)

    def weigh(targets, logits):
        return (targets != config.special_tokens.pad_id).astype(logits.dtype)

    def loss(model, batch, keys, token_loss=F.token_cross_entropy):
        source, inputs, targets = batch[0], batch[1][:, :-1], batch[1][:, 1:]
        logits, aux = model.logits_and_aux(source, inputs, rng=keys)
        loss = F.weighted_sum(token_loss(logits, targets), targets, weigh(targets, logits))
        # No accuracy: over thousands of subwords argmax takes a seventh of the step.
        return add_aux_losses({"loss": loss}, aux)

    def evaluate(model, batch):
        source, inputs, targets = batch[0], batch[1][:, :-1], batch[1][:, 1:]
        logits = model(source, inputs)
        sums = scores(logits, targets, weigh(targets, logits))
        return {name: a.sum(1) for name, a in sums.items()}

    buckets = bucket_batches(sizes, batch_tokens, config.special_tokens.pad_id, num_devices)
    return Task(init, None, loss, evaluate, has_perplexity=True, buckets=buckets)


def bucket_batches(
    sizes: list[tuple[int, int]], batch_tokens: int, pad_id: int, num_devices: int
) -> Buckets:
    """Return the batches of `translator_task`."""
    longest = max(length for _, length in sizes)
    if batch_tokens < longest:
        raise ValueError(
            f"a batch of {batch_tokens} tokens does not hold a sentence of {longest}: "
            "batch_size must be larger"
        )
    batch_sizes = [batch_tokens // length for _, length in sizes]
    batch_sizes = [size // 2 * 2 or size for size in batch_sizes]  # two devices need no padding
    num_batches = [-(-pairs // size) for (pairs, _), size in zip(sizes, batch_sizes, strict=True)]
    ends = np.cumsum(num_batches)
    batches_per_epoch = int(ends[-1])

    def locate(rng, micro_batch):
        """Return the key of the epoch, and the index of the batch in the unshuffled epoch."""
        rng = jax.random.fold_in(rng, micro_batch // batches_per_epoch)
        return rng, F.permuted_index(rng, micro_batch % batches_per_epoch, batches_per_epoch)

    def choose(data, rng, micro_batch):
        return jnp.searchsorted(jnp.asarray(ends), locate(rng, micro_batch)[1], side="right")

    def draw(bucket, data, rng, micro_batch):
        (num_pairs, _), size = sizes[bucket], batch_sizes[bucket]
        rng, batch = locate(rng, micro_batch)
        slots = jnp.arange(-(-size // num_devices) * num_devices)
        index = (batch - (ends[bucket] - num_batches[bucket])) * size + slots
        rng = jax.random.fold_in(rng, bucket)
        rows = F.permuted_index(rng, index % num_pairs, num_pairs)
        source, target = (side[rows] for side in data[bucket])
        # Padding, also of a bucket's last batch, consists of pairs whose targets do not count.
        is_real = (slots < size) & (index < num_pairs)
        return source, jnp.where(is_real[:, None], target, pad_id)

    return Buckets(choose, tuple(partial(draw, i) for i in range(len(sizes))), num_devices)


def padding_share(buckets: tuple[Bucket, ...], pad_id: int) -> float:
    """Return the fraction of padding in sources and targets."""
    return float(np.mean(np.concatenate([np.ravel(a) for b in buckets for a in b]) == pad_id))
