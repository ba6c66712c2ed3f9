"""Encoder-decoders for tests of beam search."""

import dataclasses
import functools

import jax
import numpy as np

from tests.helpers.arrays import numbers
from tests.helpers.models import LeakySum
from tlite.models import Attention, Seq2Seq, Seq2SeqConfig, TranslatorHead

V, CONTEXT, START, END = 8, 12, 2, 3
SIZES = {"source_vocabulary_size": V, "width": 8, "num_heads": 2, "num_blocks": 1}
CONFIG = Seq2SeqConfig(V, CONTEXT, **SIZES, head=TranslatorHead("separate"), positions="learned")
SOURCES = np.int32([[4, 5, 6, 7, 3], [7, 3, 0, 0, 0], [5, 5, 4, 3, 0], [6, 3, 0, 0, 0]])

RELATIVE = {"positions": "relative", "attention": Attention(windows=(3, 0)), "decoder_blocks": 2}
SEED_OF_RELATIVE = 70  # larger seeds make models with these fields
SEED_OF_RECURRENT = 81  # larger seeds also replace feed-forward layers by recurrent ones


@functools.cache
def initial(config):
    return jax.jit(lambda seed: Seq2Seq(config, rng=jax.random.key(seed)))


@functools.cache
def make_model(seed):
    """Return a model with large arrays, whose output depends on all of source and target."""
    relative = seed >= SEED_OF_RELATIVE
    config = dataclasses.replace(CONFIG, **RELATIVE) if relative else CONFIG
    if seed >= SEED_OF_RECURRENT:
        config = dataclasses.replace(config, feed_forward=LeakySum())
    arrays, structure = jax.tree.flatten(initial(config)(seed))
    noise = (numbers(*a.shape, seed=100 * seed + i) for i, a in enumerate(arrays))
    arrays = [
        jax.device_put(2 * (np.asarray(a) + np.float32(0.3) * n))
        for a, n in zip(arrays, noise, strict=True)
    ]
    model = jax.tree.unflatten(structure, arrays)
    positions = model.decoder.relative if relative else model.decoder.positions
    positions.table[...] = jax.device_put(4 * numbers(*positions.table.shape, seed=seed))
    # Padding is never generated.
    model.head.bias[...] = jax.device_put(np.float32([-20.0] + [0.0] * (V - 1)))
    return model
