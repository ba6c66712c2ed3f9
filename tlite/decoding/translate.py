"""Translation of many sentences: sorted by length, in batches of few shapes, over all devices."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.decoding.search import Hypotheses, beam_search, greedy_search
from tlite.text.padding import pad
from tlite.text.pairs import END_ID, START_ID

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
    devices = jax.local_devices()
    batch_size = min(batch_size, 1 << max(len(sources) - 1, 0).bit_length())  # few are soon done
    batch_size = -(-batch_size // len(devices)) * len(devices)

    def limit(length):
        return max_length or min(length + length // 2 + 10, context)

    mesh = Mesh(np.array(devices), ("data",))
    model = jax.device_put(model, NamedSharding(mesh, PartitionSpec()))  # once, not at every call
    given = (config.start_id, START_ID), (config.end_id, END_ID)
    ids = [default if own is None else own for own, default in given]
    order = np.argsort([len(source) for source in sources], kind="stable")
    found = []
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        length = min(-(-len(sources[chosen[-1]]) // LENGTHS) * LENGTHS, context)
        rows = [sources[i] for i in chosen]
        rows += rows[-1:] * (batch_size - len(rows))
        limits = np.array([limit(len(row)) for row in rows])
        search = _search(mesh, beam, limit(length), *ids)
        found.append(
            (chosen, search(model, pad(rows, length, config.pad_id), limits, length_penalty))
        )
    results: list = [None] * len(sources)
    for chosen, hypotheses in found:  # all of them are under way: no device waits for another
        tokens, scores = jax.device_get(hypotheses)
        rows = zip(tokens, scores.tolist(), strict=True)
        for place, row in zip(chosen, rows, strict=False):
            pairs = zip(*row, strict=True)
            results[place] = [(target, score) for target, score in pairs if score > -math.inf]
    return results


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
def _search(
    mesh: Mesh, beam: int, max_length: int, start_id: int, end_id: int
) -> Callable[..., Hypotheses]:
    """A search over a batch that is spread over the devices, each of which ends when it is done."""
    settings = {"max_length": max_length, "start_id": start_id, "end_id": end_id}

    def search(model, source, limits, length_penalty):
        if beam == 1:
            return greedy_search(model, source, limits=limits, **settings)
        return beam_search(
            model, source, beam=beam, length_penalty=length_penalty, limits=limits, **settings
        )

    spec = PartitionSpec
    return jax.jit(
        jax.shard_map(
            search,
            mesh=mesh,
            in_specs=(spec(), spec("data"), spec("data"), spec()),
            out_specs=spec("data"),
            check_vma=False,
        )
    )
