"""A small encoder-decoder, and two pairs of different lengths."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from tests.helpers.models import drawn
from tlite import functional as F
from tlite.models import FeedForward, Seq2SeqConfig, TransformerSeq2Seq

V, S, T, D = 9, 7, 5, 8
SMALL = Seq2SeqConfig(
    vocabulary_size=V,
    source_vocabulary_size=V,
    context=S,
    width=D,
    num_heads=2,
    num_blocks=2,
    decoder_blocks=1,
    dropout=0.5,
    feed_forward=FeedForward(dropout=0.3),
)
SOURCE = jnp.array([[3, 1, 4, 1, 5, 8, 2], [2, 7, 1, 8, 0, 0, 0]])
WHOLE = jnp.array([[2, 6, 5, 3, 5, 8], [2, 7, 4, 0, 0, 0]])
TARGET, EXPECTED = WHOLE[:, :-1], WHOLE[:, 1:]


@functools.cache
def small(**fields):
    return drawn(TransformerSeq2Seq, dataclasses.replace(SMALL, **fields))


def loss_and_logits(model):
    """The mean over the targets' tokens, with label smoothing."""
    logits = model(SOURCE, TARGET)
    total, count = F.cross_entropy(logits, EXPECTED, (EXPECTED != 0).astype(float), 0.1)
    return total / count, logits


gradients_and_logits = jax.jit(jax.grad(loss_and_logits, has_aux=True))
