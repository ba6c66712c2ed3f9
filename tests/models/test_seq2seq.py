"""The encoder-decoder's caches for several targets; formula: test_options.py, rest: test_calls."""

import numpy as np
import pytest

from tests.helpers.arrays import assert_close, own_places
from tests.helpers.models import call, extend, remembered
from tests.helpers.seq2seq import SOURCE, TARGET, D, S, T, V, small


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_targets_of_one_source_share_its_memory_and_caches(positions):
    model, beams = small(positions=positions), 3
    memories, memory_mask = remembered(model, SOURCE)
    caches = model.empty_caches(2, capacity=beams * T)
    targets = (np.asarray(TARGET)[:, None] + np.arange(beams)[:, None]) % V
    expected = np.asarray(call(model, np.repeat(SOURCE[:, None], beams, axis=1), targets))
    for t in range(T):
        places = {"positions": np.full((1, beams), t), "mask": own_places(beams, T, t)}
        inputs = targets[..., t], caches, memories, memory_mask, beams * t
        logits, caches = extend(model, *inputs, **places)
        assert_close(logits, expected[..., t, :])


def test_caches_are_as_long_as_asked_for_or_as_the_context():
    model = small(decoder_blocks=2)
    for capacity in (None, 3):
        caches = model.empty_caches(4, 2, capacity=capacity)
        assert {cache["attention"].key.shape for cache in caches} == {
            (4, 2, 2, capacity or S, D // 2)
        }
        assert len(caches) == 2
