"""Translation of many sentences: sorted by length, in batches of few shapes, over all devices."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.decoding.search import Hypotheses, beam_search, greedy_search

LENGTHS = 8  # source lengths are rounded up to a multiple of this: a program for each is compiled


def translate(
    model,
    sources: Sequence[np.ndarray],
    *,
    beam: int = 5,
    length_penalty: float = 0.6,
    max_length: int | None = None,
    batch_size: int = 32,
) -> list[list[tuple[np.ndarray, float]]]:
    """For each source the hypotheses of a search (one if `beam` is 1, which is greedy), best first.

    There may be fewer than `beam`, where no more have ended.

    Args:
        sources: tokens of each sentence, up to its end symbol.
        length_penalty: above 0 longer translations are preferred; the exponent of
            `length_normaliser`.
        max_length: tokens of the longest target; unless given half as many again as its source
            has, and ten more, at most the model's context.
        batch_size: sentences that are translated at once, at most.

    Raises:
        ValueError: a source is longer than the model's context, or a setting makes no sense.
    """
    context, config = model.config.context, model.config
    check_search(config, beam, length_penalty, max_length)
    if (longest := max(map(len, sources), default=0)) > context:
        raise ValueError(f"a source of {longest} tokens is longer than the context of {context}")
    # Tokens of the longest target of a source.
    limit = lambda length: max_length or min(length + length // 2 + 10, context)  # noqa: E731
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    model = jax.device_put(model, NamedSharding(mesh, PartitionSpec()))  # once, not at every call
    hypotheses = []
    for rows in _batches([len(source) for source in sources], batch_size, mesh.size):
        tokens = _padded([sources[row] for row in rows], context, config.special_tokens.pad_id)
        limits = np.array([limit(len(sources[row])) for row in rows])
        search = _search(mesh, beam, limit(tokens.shape[1]))
        hypotheses.append((rows, search(model, tokens, limits, length_penalty)))
    return _by_source(hypotheses, len(sources))


def _by_source(hypotheses: list[tuple[np.ndarray, Hypotheses]], number: int) -> list:
    """Targets and scores of each source: all are under way, so that no device waits for another."""
    results: list = [None] * number
    for rows, of_rows in hypotheses:
        tokens, scores = jax.device_get(of_rows)
        for row, *best in zip(rows, tokens, scores.tolist(), strict=True):
            pairs = zip(*best, strict=True)
            results[row] = [(target, score) for target, score in pairs if score > -math.inf]
    return results


def _batches(lengths: Sequence[int], size: int, devices: int) -> Iterator[np.ndarray]:
    """Rows by their lengths, as many at once for each device; the last row fills the last batch."""
    order = np.argsort(lengths, kind="stable")
    size = min(size, 1 << max(len(order) - 1, 0).bit_length())  # few are soon done
    size = -(-size // devices) * devices
    for begin in range(0, len(order), size):
        yield order[np.minimum(begin + np.arange(size), len(order) - 1)]


def _padded(sources: Sequence[np.ndarray], context: int, pad_id: int) -> np.ndarray:
    longest = max(map(len, sources))
    length = min(-(-longest // LENGTHS) * LENGTHS, context)
    return np.stack(
        [np.pad(s, (0, length - len(s)), constant_values=pad_id) for s in sources]
    ).astype(np.int32)


def check_search(config, beam: int, length_penalty: float, max_length: int | None) -> None:
    """Raises a ValueError where the settings of a search make no sense for a model's config."""
    if not 1 <= beam <= config.vocabulary_size:
        raise ValueError(
            f"a beam of {beam} is not between 1 and the vocabulary's {config.vocabulary_size}"
        )
    if not 0 <= length_penalty < 10:
        raise ValueError(f"the length penalty must be in [0, 10), not {length_penalty}")
    if max_length is not None and not 1 <= max_length <= config.context:
        raise ValueError(
            f"the maximum length must be between 1 and the context of {config.context}, "
            f"not {max_length}"
        )


@cache
def _search(mesh: Mesh, beam: int, max_length: int) -> Callable[..., Hypotheses]:
    """A search over a batch that is spread over the devices, each of which ends when it is done."""

    def search(model, source, limits, length_penalty):
        settings = {"max_length": max_length, "limits": limits}
        if beam == 1:
            return greedy_search(model, source, **settings)
        return beam_search(model, source, beam=beam, length_penalty=length_penalty, **settings)

    all_of_it, rows = PartitionSpec(), PartitionSpec("data")
    specs = {"in_specs": (all_of_it, rows, rows, all_of_it), "out_specs": rows}
    return jax.jit(jax.shard_map(search, mesh=mesh, check_vma=False, **specs))
