"""Where each array comes from, and that there and back is the same."""

import numpy as np
import pytest

from tlite.models import Attention, Block, GeneratorConfig
from tlite.pretrained import arrays
from tlite.pretrained.arrays import counterparts, to_ours, to_theirs
from tlite.pretrained.folders import abstract_model, shapes_of


def test_half_split_columns_become_pairs():
    columns = np.array([[10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42]])
    pairs = arrays._reorder(columns, 2, 3)
    assert pairs.tolist() == [[10, 20, 11, 21, 12, 22, 30, 40, 31, 41, 32, 42]]
    np.testing.assert_array_equal(arrays._reorder(pairs, 3, 2), columns)


def test_counterparts():
    config = GeneratorConfig(
        vocabulary_size=7,
        num_blocks=11,
        block=Block(pre_norm=True),
        attention=Attention(input_bias=True),
    )
    names = list(shapes_of(abstract_model(config)))
    places = counterparts("gpt2", "generator", names)
    assert places["h.10.attn.c_attn.bias"] == [
        f"blocks.10.attention.{layer}.bias" for layer in ("query", "key", "value")
    ]
    assert places["lm_head.weight"] == ["head.kernel"]
    assert places["lm_head.bias"] == ["head.bias"]
    assert sorted(name for of in places.values() for name in of) == sorted(names)
    strange = counterparts("gpt2", "generator", [*names, "blocks.0.feed_forward.gate.kernel"])
    assert strange[""] == ["blocks.0.feed_forward.gate.kernel"]


@pytest.mark.parametrize(
    ("family", "theirs", "ours"),
    [
        ("gpt2", "h.0.attn.c_attn.weight", ["query.kernel", "key.kernel", "value.kernel"]),
        ("modernbert", "layers.0.attn.Wqkv.weight", ["query.kernel", "key.kernel", "value.kernel"]),
        (
            "gpt_neox",
            "layers.0.attention.query_key_value.weight",
            ["query.kernel", "key.kernel", "value.kernel"],
        ),
        ("llama", "layers.0.self_attn.k_proj.weight", ["key.kernel"]),
        ("llama", "layers.0.self_attn.k_proj.bias", ["key.bias"]),
        ("qwen3", "layers.0.self_attn.q_norm.weight", ["query_norm.scale"]),
    ],
)
def test_there_and_back(family, theirs, ours):
    sizes = {"kernel": (5, 12), "bias": (12,), "scale": (6,)}
    shapes = {f"blocks.0.attention.{name}": sizes[name.rpartition(".")[2]] for name in ours}
    width = sum(shape[-1] for shape in shapes.values())
    whole = (5, width) if family == "gpt2" else (width, 5)
    array = np.random.default_rng(0).normal(size=whole if "kernel" in ours[0] else (width,))
    parts = to_ours(family, theirs, array, shapes, 6)
    assert {name: part.shape for name, part in parts.items()} == shapes
    np.testing.assert_array_equal(to_theirs(family, theirs, parts, 6), array)
    with pytest.raises(ValueError, match="the shape"):
        to_ours(family, theirs, array[..., 1:] if array.ndim == 1 else array[1:], shapes, 6)
