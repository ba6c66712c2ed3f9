"""Precision: which arrays are bfloat16, and which attention function "auto" becomes."""

import contextlib
import dataclasses
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from tlite.errors import UserError
from tlite.functional import causal_mask, fused_attention, mixed_attention
from tlite.models import Attention, GeneratorConfig
from tlite.models.config import unsupported_attention_kwargs
from tlite.models.parameters import is_matrix, name_of_path

Precision = Literal["float32", "mixed", "auto"]
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86, and of Arm
MIXED_FROM_LENGTH = 128  # below, casting costs more than bfloat16 products save (LOG, 2026-11-21)
CHUNKS_FROM_LENGTH, CHUNK_SIZE = 512, 64  # of causal attention (LOG, 2026-11-24)
ATTENTIONS_BY_SPEED = ("exact", "mixed", "fused")
CPU_INFO = Path("/proc/cpuinfo")
NO_BFLOAT16 = "this CPU has no bfloat16 products"


def choose_precision(setting: Precision) -> tuple[Precision, str]:
    """Return the precision of a run and the reason: "auto" is "mixed" on bfloat16 hardware.

    Some versions of XLA refuse bfloat16 products inside a loop, so one is compiled here.

    Raises:
        UserError: the setting is "mixed", and XLA refuses it.
    """
    if setting == "float32":
        platform = jax.default_backend().upper()
        full = f" (in full, not the faster default of a {platform})"
        return "float32", "float32" + full * (platform != "CPU")
    hardware = bfloat16_hardware()
    if setting == "auto" and not hardware:
        return "float32", f"float32, as {NO_BFLOAT16}"
    try:
        _try_attention()
    except Exception as error:  # XLA's own, of no documented type
        refused = f"XLA refuses bfloat16 products here ({type(error).__name__})"
        if setting == "mixed":
            raise UserError(f"mixed precision is not possible: {refused}") from error
        return "float32", f"float32, as {refused}"
    if hardware:
        return "mixed", f"mixed (bfloat16 products by {hardware})"
    return "mixed", f"mixed, though {NO_BFLOAT16}: float32 may be faster"


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
    """Return a model's config with "auto" resolved: the attention function, and the head's product.

    Args:
        fastest: the fastest of ATTENTIONS_BY_SPEED that "auto" may become.
    """
    head = getattr(model, "head", None)
    if getattr(head, "product", None) == "auto":
        product = "mixed" if precision == "mixed" else "exact"
        model = dataclasses.replace(model, head=dataclasses.replace(head, product=product))
    if not hasattr(model, "attention"):
        return model  # a logistic regression
    decide = partial(_choose_attention, model=model, precision=precision, fastest=fastest)

    def decide_block(block):
        return dataclasses.replace(block, attention=decide(block.attention))

    block = model.block
    block = tuple(map(decide_block, block)) if isinstance(block, tuple) else decide_block(block)
    decided = dataclasses.replace(model, attention=decide(model.attention), block=block)
    return model if decided == model else decided


def _choose_attention(part, *, model, precision: Precision, fastest: str):
    """Return an attention layer of a model with "auto" resolved."""
    if not isinstance(part, Attention) or part.function != "auto":
        return part
    is_fast = precision == "mixed" and model.context >= MIXED_FROM_LENGTH and fastest != "exact"
    is_fast = is_fast and not part.dropout
    is_fast = is_fast and not unsupported_attention_kwargs(mixed_attention, part, model)
    name = "mixed" if is_fast else "exact"
    name = "fused" if is_fast and fastest == "fused" and _has_fused(model) else name
    is_long = isinstance(model, GeneratorConfig) and model.context >= CHUNKS_FROM_LENGTH
    # The fused kernel skips masked products by itself; chunks have no dropout of weights.
    chunked = is_long and name != "fused" and not part.dropout
    rows = 0 if name == "fused" else part.query_chunk_size or CHUNK_SIZE * chunked
    return dataclasses.replace(part, function=name, query_chunk_size=rows)


def attention_of_all(models: Iterable, precision: Precision) -> str:
    """Return the fastest of ATTENTIONS_BY_SPEED that all models support.

    The variants of a study then do not differ in rounding. A user's function counts as exact.
    """
    parts = [getattr(choose_products(model, precision), "attention", None) for model in models]
    names = [getattr(part, "function", None) for part in parts if part is not None]
    known = [name if name in ATTENTIONS_BY_SPEED else "exact" for name in names]
    return min(known, key=ATTENTIONS_BY_SPEED.index, default="fused")


def _has_fused(model) -> bool:
    """True on a GPU whose cuDNN has a kernel for heads of this width."""
    if jax.default_backend() != "gpu":
        return False
    try:
        _try_attention(fused_attention, model.head_dim)
    except Exception:  # cuDNN's own, of no documented type
        return False
    return True


def _try_attention(attention=mixed_attention, width: int = 16) -> None:
    """Compile and run a gradient of attention in a loop; raises if XLA refuses its products."""
    mask = causal_mask(128)

    def body(_, x):
        return x - jax.grad(lambda x: attention(x, x, x, mask)[0].sum())(x)

    jax.block_until_ready(
        jax.jit(lambda x: jax.lax.fori_loop(0, 2, body, x))(jnp.ones((2, 2, 128, width)))
    )


def with_precision(model, precision: Precision):
    """Return a model, or arrays by name, with matrices (`is_matrix`) in bfloat16 or float32.

    `functional.linear` then multiplies bfloat16 and sums in float32; `x @ matrix` of a user's layer
    uses the rounded matrix in float32. Embeddings, norms, softmax and loss stay in float32, and so
    do the parameters that the optimizer updates: the cast is part of each step.
    """
    dtype = jnp.bfloat16 if precision == "mixed" else jnp.float32

    def cast(path, leaf):
        return leaf.astype(dtype) if is_matrix(name_of_path(path), leaf) else leaf

    return jax.tree_util.tree_map_with_path(cast, model)
