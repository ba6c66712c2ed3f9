"""Rotary embeddings and windows in each of their formats."""

import pytest

from tlite.models import Rotary, RotaryScaling
from tlite.pretrained.positions import read_rotary, read_windows

CONTEXT = {"max_position_embeddings": 64, "num_hidden_layers": 6}


def test_bases():
    assert read_rotary("llama", CONTEXT).base == 10_000
    assert read_rotary("llama", CONTEXT | {"rope_theta": 5}).base == 5
    given = {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}
    assert read_rotary("llama", CONTEXT | given | {"rope_theta": 5}).base == 7
    assert read_rotary("gemma3_text", CONTEXT) == Rotary(1e6, 1e4)
    assert read_rotary("modernbert", CONTEXT | {"local_rope_theta": 160_000.0}) == Rotary(160_000.0)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_the_original_context_defaults_to_the_context(key):
    given = {key: "yarn", "factor": 2.0}
    scaling = read_rotary("llama", CONTEXT | {"rope_scaling": given}).scaling
    assert scaling == RotaryScaling("yarn", 2.0, 64)


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("llama", {}, ()),
        ("mistral", {"sliding_window": 8}, (8,) * 6),
        ("mistral", {"sliding_window": None}, ()),
        ("qwen2", {"sliding_window": 8, "max_window_layers": 4}, ()),
        (
            "qwen2",
            {"sliding_window": 8, "max_window_layers": 4, "use_sliding_window": True},
            (0, 0, 0, 0, 8, 8),
        ),
        ("gemma2", {"sliding_window": 8}, (8, 0) * 3),
        ("gemma3_text", {"sliding_window": 8}, (8, 8, 8, 8, 8, 0)),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}, (8, 8, 0) * 2),
        ("gemma3_text", {"sliding_window": 8, "layer_types": ["full_attention"] * 6}, ()),
        ("modernbert", {}, (0, 65, 65) * 2),
        ("modernbert", {"local_attention": 8, "global_attn_every_n_layers": 2}, (0, 5) * 3),
    ],
)
def test_windows(family, fields, windows):
    assert read_windows(family, CONTEXT | fields) == windows
