"""The hybrid's recurrent layer: cached decoding, padding, documents, memory of fixed size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.hybrid import blocks, variants
from tests.helpers.arrays import assert_close, integers
from tests.helpers.models import call, drawn, extend
from tlite.models import make_model
from tlite.models.custom import probe

SIZES = {"vocabulary_size": 11, "context": 12, "width": 16, "num_heads": 2}
LINEAR = dataclasses.replace(variants["linear"].model, num_blocks=1, **SIZES)
# Blocks 2 and 3: a recurrent one and one with softmax attention.
HYBRID = dataclasses.replace(variants["hybrid"].model, num_blocks=2, block=blocks[2:], **SIZES)


def test_chunks_of_unequal_length_give_the_full_pass():
    probe(HYBRID, make_model)
    model, tokens = drawn(make_model, HYBRID), integers(11, 2, 12)
    full, caches = call(model, tokens), model.empty_caches(2)
    starts, lengths = np.zeros(2, int), [(5, 3), (1, 1), (4, 6), (2, 2)]
    for counts in lengths:
        indices = np.arange(max(counts)) + starts[:, None]
        valid = np.arange(max(counts)) < np.array(counts)[:, None]
        chunk = np.take_along_axis(np.asarray(tokens), np.minimum(indices, 11), axis=1)
        logits, caches = extend(model, chunk, caches, starts, valid=valid)
        for row, count in enumerate(counts):
            expected = full[row, starts[row] : starts[row] + count]
            np.testing.assert_allclose(logits[row, :count], expected, atol=2e-5)
        starts = starts + counts


def test_memory_of_states_does_not_depend_on_the_capacity():
    sizes = {}
    for name, config in {"linear": LINEAR, "hybrid": HYBRID}.items():
        model = drawn(make_model, config)
        caches = [jax.tree.leaves(model.empty_caches(2, capacity=c)) for c in (4, 12)]
        sizes[name] = [sum(array.nbytes for array in arrays) for arrays in caches]
    assert sizes["linear"][0] == sizes["linear"][1] == 2 * 2 * 8 * 8 * 4
    assert sizes["hybrid"][0] < sizes["hybrid"][1]


def test_documents_do_not_see_each_other():
    model, tokens = drawn(make_model, LINEAR), integers(11, 12)
    packed = call(model, tokens, segment_ids=jnp.arange(12) // 5)
    alone = [call(model, tokens[start : start + 5]) for start in (0, 5, 10)]
    assert_close(packed, np.concatenate(alone), 2e-5)
