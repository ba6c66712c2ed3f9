"""Arrays of tlite as those of Hugging Face, and back, as the tables say."""

import itertools
import re
from collections.abc import Mapping

import numpy as np

from tlite.pretrained.layers import LAYERS

ENDINGS = {
    ".kernel": ".weight",
    ".scale": ".weight",
    ".table": ".weight",
    ".bias": ".bias",
    "": "",  # of a line that names an array
}


def counterparts(family: str, kind: str, names: list[str]) -> dict[str, list[str]]:
    """{theirs: [ours, ...]}: of which arrays of ours each of theirs is made, in this order.

    Their names are those of a bare model.
    """
    layers, found, known = LAYERS[family], {}, set(names)
    table = layers.table | layers.heads.get(kind, {})
    for part, lines in layers.variants.items():
        table |= lines if part in " ".join(names) else {}
    blocks = dict.fromkeys(re.findall(r"\bblocks\.(\d+)\.", " ".join(names)))
    for ours, theirs in table.items():
        stem, _, joined = ours.rpartition(".")
        for block, layer in itertools.product(blocks if "*" in ours else [""], joined.split("+")):
            name = f"{stem}.{layer}".lstrip(".").replace("*", block)
            for mine, other in ENDINGS.items():
                if name + mine in known:
                    found[name + mine] = theirs.replace("*", block) + other
    places: dict[str, list[str]] = {}
    for name, theirs in found.items():
        places.setdefault(theirs, []).append(name)
    return places


def to_ours(
    family: str, theirs: str, array: np.ndarray, shapes: Mapping[str, tuple[int, ...]], width: int
) -> dict[str, np.ndarray]:
    """Our arrays, `shapes` of them, that one of theirs holds, in the order of `shapes`.

    Args:
        width: the width K of a head, in which rotary columns are reordered.

    Raises:
        ValueError: the shapes don't agree.
    """
    names = list(shapes)
    if theirs == "final_logits_bias":  # (1, V)
        array = array.reshape(shapes[names[0]])
    array = array.T if _transposed(family, theirs, names[0]) else array
    ends = np.cumsum([shapes[name][-1] for name in names])
    whole = (*shapes[names[0]][:-1], int(ends[-1]))
    if array.shape != whole:
        raise ValueError(f"the shape {array.shape}, not {whole}")
    if LAYERS[family].joined_in_heads and len(names) > 1:
        array = _reorder(array, whole[-1] // (len(names) * width), len(names), width)
    parts = np.split(array, ends[:-1], axis=-1) if len(names) > 1 else [array]
    turned = LAYERS[family].half_split
    return {
        name: _reorder(part, 2, width // 2) if turned and _turned(name) else part
        for name, part in zip(names, parts, strict=True)
    }


def to_theirs(family: str, theirs: str, arrays: Mapping[str, np.ndarray], width: int) -> np.ndarray:
    """The inverse of `to_ours`."""
    names, turned = list(arrays), LAYERS[family].half_split
    parts = [
        _reorder(part, width // 2, 2) if turned and _turned(name) else part
        for name, part in arrays.items()
    ]
    array = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    if LAYERS[family].joined_in_heads and len(names) > 1:
        array = _reorder(array, len(names), array.shape[-1] // (len(names) * width), width)
    if theirs == "final_logits_bias":
        return array.reshape(1, -1)
    return array.T if _transposed(family, theirs, names[0]) else array


def _transposed(family: str, theirs: str, ours: str) -> bool:
    in_block = re.search(r"\.\d+\.", theirs) is not None
    return ours.endswith("kernel") and not (LAYERS[family].conv and in_block)


def _turned(name: str) -> bool:
    return re.search(r"(?<!cross_)attention\.(query|key)(_norm)?\.", name) is not None


def _reorder(array: np.ndarray, rows: int, columns: int, size: int = 1) -> np.ndarray:
    """Of each stretch of columns, as (rows, columns, size), the transpose (columns, rows, size).

    With (2, K/2) each head's half-split columns 0, K/2, 1, K/2 + 1, ...: to pairs; with (K/2, 2)
    back. With (H, 3, K) each head's query, key and value: to those of all heads.
    """
    stretches = array.reshape(*array.shape[:-1], -1, rows, columns, size)
    return np.swapaxes(stretches, -3, -2).reshape(array.shape)
