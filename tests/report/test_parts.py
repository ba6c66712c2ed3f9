"""The pictures of a model's positions, whatever they are."""

import jax
import matplotlib.pyplot as plt
import pytest

from tlite.models import (
    ALiBi,
    Attention,
    BlocksConfig,
    Encoder,
    Learned,
    NoPositions,
    Relative,
    Rotary,
    Sinusoidal,
)
from tlite.report.parts import position_pictures, word_of

SIZES = {"vocabulary_size": 7, "context": 8, "width": 8, "num_heads": 2, "num_blocks": 2}


@pytest.mark.parametrize(
    ("positions", "windows", "expected"),
    [
        (Relative(), (3, 0), {"bias-relative"}),
        (ALiBi(), (3,), {"bias-alibi"}),
        (Rotary(), (3, 0), {"angles-rotary", "similarity-rotary"}),
        (
            Rotary(local_base=100.0),
            (3, 0),
            {f"{k}-rotary{of}" for k in ("angles", "similarity") for of in ("", "-window-3")},
        ),
        (
            Sinusoidal(split=True),
            (),
            {f"{k}-split_sinusoidal" for k in ("positions", "position-curves", "similarity")},
        ),
        (NoPositions(), (3,), set()),
    ],
    ids=["relative", "alibi", "rotary", "local base", "split sinusoidal", "none"],
)
def test_positions_are_drawn_in_models_with_windows_too(positions, windows, expected):
    config = BlocksConfig(**SIZES, positions=positions, attention=Attention(windows=windows))
    found = [*position_pictures(Encoder(config, rng=jax.random.key(0)))]
    plt.close("all")
    assert {picture.name for picture in found} == expected
    assert all(picture.caption.endswith(".") for picture in found)


def test_positions_are_called_as_a_config_may_call_them():
    known = Learned(offset=2), Sinusoidal(), Sinusoidal(split=True), Rotary(base=5.0)
    assert [*map(word_of, known)] == ["learned", "sinusoidal", "split_sinusoidal", "rotary"]

    class Clock(Rotary):
        pass

    assert word_of(Clock()) == "Clock"
