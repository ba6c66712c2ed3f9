"""The task of a translator: predict each next token of the target, given the source."""

import itertools
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tlite import functional as F
from tlite.models import Seq2SeqConfig, TransformerSeq2Seq
from tlite.text.subwords import pad_tokens
from tlite.training.step import Buckets, Task, in_batches, scores


class Bucket(NamedTuple):
    """The pairs of up to some length: sources end with [END], targets start with [START] too."""

    source: Int[np.ndarray, "N L"]
    target: Int[np.ndarray, "N L+1"]


def make_buckets(
    sources: list[np.ndarray], targets: list[np.ndarray], number: int
) -> tuple[Bucket, ...]:
    """The pairs in at most `number` buckets whose lengths need the least padding."""
    lengths = np.array([max(len(s), len(t) - 1) for s, t in zip(sources, targets, strict=True)])
    bounds = [0, *best_lengths(lengths, number)]
    buckets = []
    for above, length in itertools.pairwise(bounds):
        rows = np.flatnonzero((lengths > above) & (lengths <= length))
        source = pad_tokens([sources[row] for row in rows], length)
        buckets.append(Bucket(source, pad_tokens([targets[row] for row in rows], length + 1)))
    return tuple(buckets)


def best_lengths(lengths: Int[np.ndarray, "N"], number: int) -> list[int]:
    """The lengths of at most `number` buckets that hold all sequences with the least padding.

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
    config: Seq2SeqConfig,
    sizes: list[tuple[int, int]],
    batch_tokens: int,
    *,
    num_devices: int = 1,
    label_smoothing: float = 0.0,
) -> Task:
    """Train a `TransformerSeq2Seq` on buckets of pairs, one program for each bucket's shape.

    A batch holds about `batch_tokens` tokens of one bucket, padding among them. Every pair comes
    once an epoch, and the order of batches and pairs is a function of (seed, epoch).

    Args:
        sizes: pairs N and length L of each bucket.
        num_devices: a batch is filled up, with what does not count, to a multiple of it.

    Raises:
        ValueError: a batch would be empty.
    """

    def loss(model, batch, keys):
        source, target = batch
        logits = model(source, target[:, :-1], rng=keys)
        expected = target[:, 1:]
        weights = (expected != config.symbols.pad).astype(logits.dtype)
        # No accuracy: over thousands of pieces argmax takes a seventh of the whole step.
        return {"loss": F.cross_entropy(logits, expected, weights, label_smoothing)}

    def evaluate(model, batch):
        source, target = batch
        logits, expected = model(source, target[:, :-1]), target[:, 1:]
        weights = (expected != config.symbols.pad).astype(logits.dtype)
        return {n: a.sum(1) for n, a in scores(logits, expected, weights).items()}

    return Task(
        init=lambda rng: TransformerSeq2Seq(config, rng=rng),
        draw=None,
        loss=loss,
        evaluate=evaluate,
        perplexity=True,
        buckets=bucket_batches(sizes, batch_tokens, config.symbols.pad, num_devices),
    )


def bucket_batches(
    sizes: list[tuple[int, int]], batch_tokens: int, pad_id: int, num_devices: int
) -> Buckets:
    """The batches of `translator_task`, whose arguments these are."""
    in_batch = [batch_tokens // length for _, length in sizes]
    in_batch = [size // 2 * 2 or size for size in in_batch]  # two devices need no filling
    if not all(in_batch):
        raise ValueError(
            f"a batch of {batch_tokens} tokens does not hold a sentence of "
            f"{max(length for _, length in sizes)}: batch_size must be larger"
        )
    batches = [-(-number // size) for (number, _), size in zip(sizes, in_batch, strict=True)]
    ends = np.cumsum(batches)

    def place(rng, number):
        """The key of the epoch, and the place that the batch has in it."""
        total = int(ends[-1])
        rng = F.fold_in(rng, number // total)
        return rng, F.shuffled(rng, number % total, total)

    def choose(data, rng, number):
        return jnp.searchsorted(jnp.asarray(ends), place(rng, number)[1], side="right")

    def draw(index, data, rng, number):
        (pairs, _), size = sizes[index], in_batch[index]
        rng, batch = place(rng, number)
        places = jnp.arange(-(-size // num_devices) * num_devices)
        rows = (batch - (ends[index] - batches[index])) * size + places
        chosen = F.shuffled(F.fold_in(rng, index), rows % pairs, pairs)
        source, target = (side[chosen] for side in data[index])
        # A bucket's last batch, too, is filled up with pairs that do not count.
        counts = (places < size) & (rows < pairs)
        return source, jnp.where(counts[:, None], target, pad_id)

    draws = tuple(partial(draw, index) for index in range(len(sizes)))
    return Buckets(choose, draws, num_devices)


def padding_share(buckets: tuple[Bucket, ...], pad_id: int) -> float:
    """Share of the positions, of sources and targets, that hold nothing."""
    sides = [side for bucket in buckets for side in bucket]
    return sum((side == pad_id).sum() for side in sides) / sum(side.size for side in sides)


def pair_batches(
    sources: list[np.ndarray], targets: list[np.ndarray], batch_size: int, num_shards: int
):
    """Every pair once: (sources (N, B, S), targets (N, B, T)); the last batch is filled up."""
    return in_batches((pad_tokens(sources), pad_tokens(targets)), batch_size, num_shards)
