"""Conversion between Hugging Face and tlite arrays, by the tables in `families`."""

import itertools
import re
from collections.abc import Mapping

import numpy as np

from tlite.pretrained.families import FAMILIES

ENDINGS = {  # the last one for rows that name an array
    ".kernel": ".weight", ".scale": ".weight", ".table": ".weight", ".bias": ".bias", "": "",
}  # fmt: skip


def map_names(family: str, kind: str, names: list[str], prefix: str = "") -> dict[str, list[str]]:
    """Map each Hugging Face array to the tlite arrays of `names` that are joined in it, in order.

    `prefix` is that of the Hugging Face names except the head's; a bare model has none.
    """
    tables, all_names, known = FAMILIES[family], " ".join(names), set(names)
    table = dict(tables.layers)
    for layer, rows in tables.variants.items():
        table |= rows if layer in all_names else {}
    table = {tlite: prefix + hf for tlite, hf in table.items()} | tables.heads.get(kind, {})
    blocks = dict.fromkeys(re.findall(r"\bblocks\.(\d+)\.", all_names))
    hf_names: dict[str, str] = {}
    for tlite, hf in table.items():
        stem, _, last = tlite.rpartition(".")
        for block, layer in itertools.product(blocks if "*" in tlite else [""], last.split("+")):
            name = f"{stem}.{layer}".lstrip(".").replace("*", block)
            for ending, hf_ending in ENDINGS.items():
                if name + ending in known:
                    hf_names[name + ending] = hf.replace("*", block) + hf_ending
    joined: dict[str, list[str]] = {}
    for name, hf in hf_names.items():
        joined.setdefault(hf, []).append(name)
    return joined


def to_tlite(
    family: str, hf: str, array: np.ndarray, shapes: Mapping[str, tuple[int, ...]], head_dim: int
) -> dict[str, np.ndarray]:
    """Convert an array to those joined in it; the ValueError of a wrong shape names the shape."""
    names = list(shapes)
    if hf == "final_logits_bias":  # (1, V)
        array = array.reshape(-1)
    array = array.T if _is_transposed(family, hf, names[0]) else array
    ends = np.cumsum([shapes[name][-1] for name in names])
    shape = (*shapes[names[0]][:-1], int(ends[-1]))
    if array.shape != shape:
        raise ValueError(f"the shape {array.shape}, not {shape}")
    if FAMILIES[family].is_joined_by_head and len(names) > 1:
        heads = shape[-1] // (len(names) * head_dim)
        array = _transpose_columns(array, heads, len(names), head_dim)
    arrays = dict(zip(names, np.split(array, ends[:-1], axis=-1), strict=True))
    for name in filter(lambda name: _is_half_split(family, name), names):
        arrays[name] = _transpose_columns(arrays[name], 2, head_dim // 2)
    return arrays


def to_hf(family: str, hf: str, arrays: Mapping[str, np.ndarray], head_dim: int) -> np.ndarray:
    """Join tlite arrays to the Hugging Face array `hf`: the inverse of `to_tlite`."""
    names = list(arrays)
    array = np.concatenate([
        _transpose_columns(array, head_dim // 2, 2) if _is_half_split(family, name) else array
        for name, array in arrays.items()
    ], axis=-1)  # fmt: skip
    if FAMILIES[family].is_joined_by_head and len(names) > 1:
        heads = array.shape[-1] // (len(names) * head_dim)
        array = _transpose_columns(array, len(names), heads, head_dim)
    if hf == "final_logits_bias":
        return array.reshape(1, -1)
    return array.T if _is_transposed(family, hf, names[0]) else array


def _is_transposed(family: str, hf: str, name: str) -> bool:
    in_block = re.search(r"\.\d+\.", hf) is not None
    return name.endswith("kernel") and not (FAMILIES[family].is_conv and in_block)


def _is_half_split(family: str, name: str) -> bool:
    is_rotated = re.search(r"(?<!cross_)attention\.(query|key)(_norm)?\.", name)
    return FAMILIES[family].is_half_split and is_rotated is not None


def _transpose_columns(array: np.ndarray, rows: int, columns: int, size: int = 1) -> np.ndarray:
    """View each rows * columns * size columns as (rows, columns, size) and swap the first two axes.

    (2, K/2) turns the half-split columns of a head into pairs; (H, 3, K) turns the query, key and
    value of each head into the queries, keys and values of all heads.
    """
    groups = array.reshape(*array.shape[:-1], -1, rows, columns, size)
    return np.swapaxes(groups, -3, -2).reshape(array.shape)
