"""A model as a tree of layers with the shape and number of the parameters in each."""

import jax
from flax import nnx


def count_parameters(model: nnx.Module) -> int:
    """How many numbers are trained."""
    return sum(leaf.size for leaf in jax.tree.leaves(model))


def summary(model: nnx.Module) -> str:
    """The tree of layers, one a line, with parameters per layer and the total."""
    lines: list[tuple[str, str, str]] = []
    _walk(type(model).__name__, model, 0, lines)
    total, arrays = count_parameters(model), len(jax.tree.leaves(model))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    rows = [
        f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}".rstrip()
        for name, shape, count in lines
    ]
    rule = "-" * max(map(len, rows))
    return "\n".join([*rows, rule, f"total: {total:,} parameters in {arrays} arrays"])


def _walk(name: str, node, depth: int, lines: list[tuple[str, str, str]]) -> None:
    count = sum(leaf.size for leaf in jax.tree.leaves(node))
    indent = "  " * depth
    if isinstance(node, nnx.Variable):
        lines.append((indent + name, " x ".join(map(str, node.shape)), f"{count:,}"))
        return
    kind = "" if isinstance(node, nnx.List) or depth == 0 else f": {type(node).__name__}"
    lines.append((indent + name + kind, "", f"{count:,}"))
    children = enumerate(node) if isinstance(node, nnx.List) else vars(node).items()
    for key, child in children:
        if isinstance(child, nnx.Variable | nnx.Module | nnx.List):
            _walk(str(key), child, depth + 1, lines)
