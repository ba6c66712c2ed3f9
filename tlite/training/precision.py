"""Precision: which arrays are bfloat16, and which attention function "auto" becomes."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from tlite.errors import UserError, first_line
from tlite.functional import causal_mask, fused_attention, mixed_attention
from tlite.models import Attention, GeneratorConfig
from tlite.models.config import block_pattern, unsupported_attention_kwargs
from tlite.models.parameters import is_matrix, name_of_path

Precision = Literal["float32", "mixed", "auto"]
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86, and of Arm
MIXED_FROM_LENGTH = 128  # below, casting costs more than bfloat16 products save (LOG, 2026-11-21)
CHUNKS_FROM_LENGTH, CHUNK_SIZE = 512, 64  # of causal attention (LOG, 2026-11-24)
ATTENTIONS_BY_SPEED = ("exact", "mixed", "fused")
CPU_INFO = Path("/proc/cpuinfo")


def choose_precision(setting: Precision) -> Precision:
    """Return the precision of a run: "auto" is "mixed" on bfloat16 hardware.

    Some versions of XLA refuse bfloat16 products inside a loop, so one is compiled here.
    """
    if setting == "float32" or (setting == "auto" and not bfloat16_hardware()):
        return "float32"
    if (error := attention_error(mixed_attention)) is None:
        return "mixed"
    if setting == "auto":
        return "float32"
    reason = f"XLA refuses bfloat16 products here ({type(error).__name__}: {first_line(error)})"
    raise UserError(f"mixed precision is not possible: {reason}") from error


def bfloat16_hardware() -> str:
    """Return the bfloat16 hardware: a GPU, a TPU, or flags of the CPU; "" if there is none."""
    if (platform := jax.default_backend()) != "cpu":
        return f"a {platform.upper()}"
    with contextlib.suppress(OSError):
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        # "flags" of x86, "Features" of Arm: the same for each core
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        return " and ".join(sorted(BFLOAT16_FLAGS & {*flags.split()}))
    return ""


def choose_products(model, precision: Precision, fastest: str = "fused"):
    """Return a model's config with "auto" resolved, in attention and in the head's product.

    Args:
        fastest: the fastest of ATTENTIONS_BY_SPEED that "auto" may become.
    """
    changes = {}
    if getattr(getattr(model, "head", None), "product", None) == "auto":
        product = "mixed" if precision == "mixed" else "exact"
        changes["head"] = dataclasses.replace(model.head, product=product)
    if hasattr(model, "attention"):  # not a logistic regression
        choose = partial(_choose_attention, model=model, precision=precision, fastest=fastest)
        blocks = [
            dataclasses.replace(block, attention=choose(block.attention))
            for block in block_pattern(model).values()
        ]
        changes["attention"] = choose(model.attention)
        changes["block"] = tuple(blocks) if isinstance(model.block, tuple) else blocks[0]
    return dataclasses.replace(model, **changes)


def _choose_attention(attention, *, model, precision: Precision, fastest: str):
    """Return an attention layer of a model with "auto" resolved."""
    if not isinstance(attention, Attention) or attention.function != "auto":
        return attention
    name, chunk_size = "exact", attention.query_chunk_size
    if (
        precision == "mixed"
        and model.context >= MIXED_FROM_LENGTH
        and fastest != "exact"
        and not attention.dropout
        and not unsupported_attention_kwargs(mixed_attention, attention, model)
    ):
        name = "mixed"
        if fastest == "fused" and jax.default_backend() == "gpu":
            head_dim = attention.head_dim or model.width // model.num_heads
            name = "mixed" if attention_error(fused_attention, head_dim) else "fused"
    if name == "fused":
        chunk_size = 0  # the kernel skips masked products by itself
    elif isinstance(model, GeneratorConfig) and model.context >= CHUNKS_FROM_LENGTH:
        # Chunks have no dropout of weights.
        chunk_size = chunk_size or (0 if attention.dropout else CHUNK_SIZE)
    return dataclasses.replace(attention, function=name, query_chunk_size=chunk_size)


def fastest_shared_attention(models: Iterable, precision: Precision) -> str:
    """Return the fastest of ATTENTIONS_BY_SPEED that all models support; a user's is "exact".

    The variants of a study then do not differ in rounding.
    """
    layers = []
    for model in models:
        if hasattr(model, "attention"):  # not a logistic regression
            model = choose_products(model, precision)
            blocks = block_pattern(model).values()
            layers += [model.attention, *(block.attention for block in blocks)]
    names = [getattr(layer, "function", None) for layer in layers if layer is not None]
    known = [name if name in ATTENTIONS_BY_SPEED else "exact" for name in names]
    return min(known, key=ATTENTIONS_BY_SPEED.index, default="fused")


def attention_error(function: Callable, head_dim: int = 16) -> Exception | None:
    """Return XLA's error if it can't run a gradient of attention in a loop, or None."""
    mask = causal_mask(128)

    def body(_, x):
        return x - jax.grad(lambda x: function(x, x, x, mask)[0].sum())(x)

    program = jax.jit(lambda x: jax.lax.fori_loop(0, 2, body, x))
    try:
        jax.block_until_ready(program(jnp.ones((2, 2, 128, head_dim))))
    except Exception as error:  # XLA's and cuDNN's have no documented type
        return error
    return None


def with_precision(model, precision: Precision):
    """Return a model, or arrays by name, with matrices (`is_matrix`) in bfloat16 or float32.

    `functional.linear` then multiplies bfloat16 and sums in float32; `x @ matrix` of a user's layer
    uses the rounded matrix in float32. Embeddings, norms, softmax, loss and the parameters that the
    optimizer updates stay in float32: the cast is part of each step.
    """
    dtype = jnp.bfloat16 if precision == "mixed" else jnp.float32

    def cast(path, leaf):
        return leaf.astype(dtype) if is_matrix(name_of_path(path), leaf) else leaf

    return jax.tree_util.tree_map_with_path(cast, model)
