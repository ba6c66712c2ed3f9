"""Rotary embeddings and windows of configs without some fields; system/test_folders has others."""

import pytest

from tlite.models import Rotary, RotaryScaling
from tlite.pretrained.positions import read_rotary, read_windows

CONTEXT = {"max_position_embeddings": 64, "num_hidden_layers": 6}
PARAMETERS = {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}, "rope_theta": 5}
YARN = Rotary(scaling=RotaryScaling("yarn", 2.0, 64))


@pytest.mark.parametrize(
    ("family", "fields", "rotary"),
    [
        ("llama", {}, Rotary()),
        ("llama", PARAMETERS, Rotary(7.0)),
        ("gemma3_text", {}, Rotary(1e6, 1e4)),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, YARN),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, YARN),
    ],
)
def test_rotary_positions_have_their_defaults(family, fields, rotary):
    assert read_rotary(family, CONTEXT | fields) == rotary


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("llama", {}, ()),
        ("mistral", {"sliding_window": None}, ()),
        ("qwen2", {"sliding_window": 8, "max_window_layers": 4}, ()),
        ("gemma3_text", {"sliding_window": 8}, (8, 8, 8, 8, 8, 0)),
        ("gemma3_text", {"sliding_window": 8, "layer_types": ["full_attention"] * 6}, ()),
        ("modernbert", {}, (0, 65, 65) * 2),
    ],
)
def test_windows_have_their_defaults(family, fields, windows):
    assert read_windows(family, CONTEXT | fields) == windows
