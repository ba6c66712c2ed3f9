"""Translate many sentences: sorted by length, in batches of few shapes, over all devices."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.config import check_size
from tlite.decoding.search import Hypotheses, beam_search, greedy_search

LENGTH_MULTIPLE = 8  # source lengths are rounded up to it, since each is a program to compile


def translate(
    model,
    sources: Sequence[np.ndarray],
    *,
    beam: int = 5,
    length_penalty: float = 0.6,
    max_length: int | None = None,
    batch_size: int = 32,
) -> list[list[tuple[np.ndarray, float]]]:
    """Return for each source the (target, score) pairs of a search, best first.

    A beam of 1 is greedy search, with one target; there are fewer than `beam` if fewer have ended.

    Args:
        sources: tokens of each sentence, with its end symbol.
        length_penalty: exponent of `length_normaliser`; above 0 prefers longer translations.
        max_length: tokens of the longest target; None: 1.5 times the source's and 10 more.
        batch_size: sentences translated at once, rounded up to a multiple of the number of devices.

    Raises:
        ValueError: a source is longer than the model's context, or an option is out of its range.
    """
    context, config = model.config.context, model.config
    check_search(config, beam, length_penalty, max_length)
    if (longest := max(map(len, sources), default=0)) > context:
        raise ValueError(f"a source of {longest} tokens is longer than the context of {context}")
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    model = jax.device_put(model, NamedSharding(mesh, PartitionSpec()))  # once, not at every call
    batches = []
    for rows in _batches([len(source) for source in sources], batch_size, mesh.size):
        tokens = _pad([sources[row] for row in rows], context, config.special_tokens.pad_id)
        limits = [max_length or _default_max_length(len(sources[row]), context) for row in rows]
        search = _search(mesh, beam, max_length or _default_max_length(tokens.shape[1], context))
        batches.append((rows, search(model, tokens, np.array(limits), length_penalty)))
    results: dict[int, list] = {}
    for rows, hypotheses in batches:  # all are dispatched before the first result is read
        for row, *best in zip(rows, *jax.device_get(hypotheses), strict=True):
            pairs = [(target, float(score)) for target, score in zip(*best, strict=True)]
            results[row] = [(t, s) for t, s in pairs if s != -math.inf]  # -inf: fewer have ended
    return [results[row] for row in range(len(sources))]


def _default_max_length(source_length: int, context: int) -> int:
    return min(source_length + source_length // 2 + 10, context)


def _batches(lengths: Sequence[int], size: int, devices: int) -> Iterator[np.ndarray]:
    """Yield indices sorted by length, `size` at a time; the last one pads the last batch."""
    check_size("batch_size", size)
    order = np.argsort(lengths, kind="stable")
    size = min(size, 1 << max(len(order) - 1, 0).bit_length())
    size = -(-size // devices) * devices
    for begin in range(0, len(order), size):
        yield order[np.minimum(begin + np.arange(size), len(order) - 1)]


def _pad(sources: Sequence[np.ndarray], context: int, pad_id: int) -> np.ndarray:
    length = min(-(-max(map(len, sources)) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, context)
    rows = [np.pad(s, (0, length - len(s)), constant_values=pad_id) for s in sources]
    return np.stack(rows).astype(np.int32)


def check_search(config, beam: int, length_penalty: float, max_length: int | None) -> None:
    """Raise a ValueError for an option of a search that is out of its range."""
    context, size = config.context, config.vocabulary_size
    if not 1 <= beam <= size:
        raise ValueError(f"a beam of {beam} is not between 1 and the vocabulary's {size}")
    if not 0 <= length_penalty < 10:
        raise ValueError(f"the length penalty must be in [0, 10), not {length_penalty}")
    if max_length is not None and not 1 <= max_length <= context:
        limits = f"between 1 and the context of {context}"
        raise ValueError(f"the maximum length must be {limits}, not {max_length}")


@cache
def _search(mesh: Mesh, beam: int, max_length: int) -> Callable[..., Hypotheses]:
    """Return a compiled search of a batch that is divided over devices; each stops by itself."""

    def search(model, source, limits, length_penalty):
        options = {"max_length": max_length, "limits": limits}
        if beam == 1:
            return greedy_search(model, source, **options)
        return beam_search(model, source, beam=beam, length_penalty=length_penalty, **options)

    replicated, rows = PartitionSpec(), PartitionSpec("data")
    specs = {"in_specs": (replicated, rows, rows, replicated), "out_specs": rows}
    return jax.jit(jax.shard_map(search, mesh=mesh, check_vma=False, **specs))
