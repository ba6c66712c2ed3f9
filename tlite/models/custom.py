"""User functions and components: how they are called, their contracts, and the probe.

    component                  arguments                                      returns
    attention function         query, key, value (..., H, T|S, K), mask       output, weights
    norm, feed-forward         params, x (..., D)                             x (..., D)
    activation                 x (..., F)                                     x (..., F)
    positions                  positions (..., T), width                      vectors (..., T, D)
    layer, block               params, x (..., T, D), inputs                  y, or (y, cache, aux)

A function with an attribute `init_params(rng, config)`, a dictionary of arrays, gets these
parameters as its first argument. A layer, in place of attention or of the feed-forward layer, is a
frozen dataclass with `init(rng, config)` and a call; of the keyword arguments `config`, `memory`,
`cache`, `rng` and `tap` a layer or block gets those in its signature:

    inputs   `BlockInputs`: mask, positions, rotary angles and other arrays, made once per window
    config   that of the block: num_heads, norm, ...
    memory   output of an encoder (..., M, D), for cross-attention; the keys are then the memory's
    cache    the layer's cache entries, for x that continues a sequence at `inputs.start`: arrays
             (..., C, N) by position, which `functional.update_cache` writes, or `functional.State`
    rng      dropout key, or one per example; None in evaluation
    tap      called as x = tap(name, x), to capture or edit values

`aux` is a dictionary of scalars, which are summed over blocks. Arrays of a block with two or more
axes are matrices (`parameters.is_matrix`) unless they are called bias, scale, taps or table:
bfloat16 in mixed precision, and updated by Muon. Such arrays decay unless they are called bias or
scale. `tlite plan --parameters` prints what holds for each. Multiply by matrices with
`functional.matmul(x, W)`: on a CPU its gradient is faster than that of `x @ W`, and in mixed
precision its operands are bfloat16.
"""

import dataclasses
import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

import tlite.functional as F
from tlite.errors import UserError
from tlite.models.components import Attention, Block, FeedForward, FeedForwardFunction, OutputLayer
from tlite.models.config import block_pattern, user_components


def bind_params(function: Callable | str, params) -> Callable:
    """Return a function, or the activation of this name, with its own parameters bound if any."""
    function = F.ACTIVATIONS[function] if isinstance(function, str) else function
    return function if params is None else partial(function, params)


def call_layer(component, params, x, inputs, *, config, memory=None, **kwargs):
    """Call a user's layer, or function (params, x), with the keyword arguments that it accepts."""
    required = {"memory": memory}
    if isinstance(component, FeedForwardFunction):
        optional = {"config": config, "inputs": inputs, **kwargs}
        for name in [*inspect.signature(component.function).parameters][:2]:
            optional.pop(name, None)  # params and x, whatever their names
        call = F.bind_supported_kwargs(component.function, required, **optional)
        return as_layer_result(call(params, x), x, component.function)
    call = F.bind_supported_kwargs(component, required, config=config, **kwargs)
    return as_layer_result(call(params, x, inputs), x, component)


def as_layer_result(result, x: Array, component) -> tuple[Array, Any, dict[str, Any]]:
    """Return (y, cache, aux) from the result of a user's layer or block of x."""
    name = getattr(component, "__name__", type(component).__name__)
    y, cache, aux = result if isinstance(result, tuple) and len(result) == 3 else (result, None, {})
    if isinstance(y, tuple) or not isinstance(aux, Mapping):
        raise TypeError(f"{name} must return y or (y, cache, aux), not a tuple of {len(result)}")
    if getattr(y, "shape", None) != x.shape:  # addition would broadcast it
        shape = list(getattr(y, "shape", ())) or type(y).__name__
        raise TypeError(f"{name} must return y of shape {list(x.shape)}, not {shape}")
    for key, value in aux.items():
        if jnp.ndim(value):
            raise TypeError(
                f"{name} returns aux[{key!r}] of shape {jnp.shape(value)}: not a scalar"
            )
    return y, cache, dict(aux)


def bind_attention(function: Callable, params, required, inputs, rng, tap: F.Tap) -> Callable:
    """Return a user's attention function with the keyword arguments that it accepts."""
    optional = {"is_causal": inputs.is_causal, "window": inputs.window, "rng": rng, "tap": tap}
    if "relative_positions" not in F.unsupported_kwargs(function, ["relative_positions"]):
        optional["relative_positions"] = relative_positions(inputs)
    attention = F.bind_supported_kwargs(bind_params(function, params), required, **optional)
    tap = tap if F.unsupported_kwargs(function, ["tap"]) else F.no_tap  # it taps its weights itself

    def call(query, key, value, mask):
        result = attention(query, *F.repeat_kv(query, key, value), mask)
        shapes = [getattr(a, "shape", None) for a in result] if isinstance(result, tuple) else []
        if len(shapes) != 2 or shapes[0] != query.shape or shapes[1] is None:
            name = getattr(function, "__name__", type(function).__name__)
            expected = f"(output, weights), the output of shape {list(query.shape)}"
            kind = "one array" if isinstance(result, Array) else type(result).__name__
            raise TypeError(f"{name} must return {expected}, not {shapes or kind}")
        output, weights = result
        tapped = tap("weights", weights)
        is_traced = isinstance(tapped, Tracer) or isinstance(weights, Tracer)
        if tapped is not weights and (is_traced or not np.array_equal(tapped, weights)):
            raise ValueError("this attention accepts no `tap`: its weights can't be changed")
        return output, weights

    return call


def relative_positions(inputs) -> Array:
    """Return key position minus query position (..., 1, T, S); zeros in cross-attention."""
    if inputs.positions is None or inputs.key_positions is None:
        return jnp.zeros((1, 1, 1), int)
    relative = inputs.key_positions[..., None, :] - inputs.positions[..., :, None]
    return relative[..., None, :, :]


# The probe: an attention function that forgets its mask reads the answer, and looks wonderful in
# every comparison.

LAYER = "gets (params, x (..., T, D), inputs); it must return y (..., T, D) or (y, cache, aux)"
CONTRACTS = {
    "attention": "gets (query (..., H, T, K), key and value (..., H, S, K), mask); it must return "
    "an output (..., H, T, K) and weights (..., H, T, S)",
    "feed_forward": "gets (params, x (..., T, D)); it must return x (..., T, D)",
    "activation": "gets x (..., T, F); it must return the same shape",
    "norm": "gets (params, x (..., D)); it must return x (..., D)",
    "positions": "gets (positions (..., T), width); it must return vectors (..., T, D)",
    "block": "gets (params, x (..., T, D), inputs); it must return x or (x, cache, aux)",
}
"""Arguments and results of a user's function, by the field of the config."""
OBJECT_CONTRACTS = {
    "attention": LAYER,
    "feed_forward": LAYER,
    "positions": "needs the methods add and attention_inputs of tlite.models.Positions",
}
"""Contracts of objects with `init`, where they differ from a function's."""
BY_POSITION = "compute each position from that position alone"
MASK_HINT = {"attention": "is the mask used?", "block": "is the mask used?"}
CACHE_HINT = {
    "attention": "with a cache the queries are the last of the keys: use `relative_positions`",
    "positions": "use the positions in the arguments, not their number",
    "layer": "with a cache x has only the new tokens: return what later tokens need as cache "
    "entries, and leave a State unchanged where `inputs.valid` is False",
}
PROBE_LENGTH, PROBE_TOLERANCE = 6, 1e-4
PROBE_CHUNKS = ((0, 0), 3), ((3, 2), 1), ((4, 3), 2)
"""First positions in two sequences, and a number of tokens. The second sequence's third token is
padding at first, as behind a short prompt, and written anew by the next chunk."""


@lru_cache
def probe(config, make_model: Callable) -> None:
    """Try each user component in a small model of this config, `make_model(config, rng=...)`.

    The arithmetic is exact and every parameter is perturbed, so that no layer contributes 0.
    Checked are shapes and finite gradients; that no token sees a later one (generators and
    decoders) or padding; and that cached decoding gives the logits of a full pass.

    Raises:
        UserError: a component fails; it is named, with the measured difference of logits.
    """
    if not (components := user_components(config)):
        return
    small = _small_exact_config(config)
    for field, component in components.items():
        single = _with_defaults(small, components.keys() - {field})
        name = f"{getattr(component, '__name__', type(component).__name__)}, as {field},"
        kind = field.rpartition(".")[2].partition("[")[0]
        try:
            model = _perturb(make_model(single, rng=jax.random.key(0)))
            fault = _find_fault(model, kind, component)
        except Exception as error:  # the user's code: of any type
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            contracts = CONTRACTS | (OBJECT_CONTRACTS if hasattr(component, "init") else {})
            location = _location(error, component)
            raise UserError(f"{name} {contracts[kind]}: {location}{message}") from error
        if fault:
            raise UserError(f"{name} {fault}")


def _replace_blocks(config, change: Callable):
    """Return the config with `change(name, block)` in place of each block of its pattern."""
    blocks = tuple(change(name, block) for name, block in block_pattern(config).items())
    return dataclasses.replace(
        config, block=blocks if isinstance(config.block, tuple) else blocks[0]
    )


def _small_exact_config(config):
    """Return the config of a small model with float32 products, which have no rounding faults."""
    num_blocks = len(config.block) if isinstance(config.block, tuple) else 2
    sizes = {"vocabulary_size": 7, "context": PROBE_LENGTH, "num_blocks": num_blocks}
    sizes |= {"dropout": 0.0, "attention": _exact(config.attention)}
    if hasattr(config, "num_classes"):
        sizes |= {"num_classes": 2, "wide": type(config.wide)()}
    if is_translator(config):
        sizes |= {"source_vocabulary_size": 7, "decoder_blocks": len(block_pattern(config))}
        sizes |= {"special_tokens": type(config.special_tokens)()}
    if isinstance(head := getattr(config, "head", None), OutputLayer):
        sizes["head"] = dataclasses.replace(head, product="exact")

    def exact_block(name, block):
        return dataclasses.replace(block, attention=_exact(block.attention))

    return _replace_blocks(dataclasses.replace(config, **sizes), exact_block)


def _exact(attention):
    """Return attention with float32 products, if it is the library's."""
    if isinstance(attention, Attention) and isinstance(attention.function, str):
        return dataclasses.replace(attention, function="exact", query_chunk_size=0)
    return attention


def is_translator(config) -> bool:
    """True for the config of an encoder-decoder."""
    return hasattr(config, "special_tokens")


def is_generator(config) -> bool:
    """True for the config of a decoder-only model."""
    return hasattr(config, "head") and not is_translator(config)


def _perturb(model):
    """Return the model with 10 % noise on each number, and 0.1 * normal in place of each 0."""
    leaves, structure = jax.tree.flatten(model)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [0.1 * jax.random.normal(key, a.shape) for key, a in zip(keys, leaves, strict=True)]
    leaves = [jnp.where(a == 0, n, a * (1 + n)) for a, n in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def _with_defaults(config, fields):
    """Return the config with the library's own components in these fields."""
    names = {field for field in fields if not field.startswith(("activation", "block"))}
    defaults = {field: getattr(type(config)(), field) for field in names}
    if "attention" in defaults:
        attention = config.attention
        if type(attention) is not Attention:  # a user's, of which only the width of a head stays
            attention = Attention(head_dim=getattr(attention, "head_dim", None))
        exact = {"function": "exact", "query_chunk_size": 0}
        defaults["attention"] = dataclasses.replace(attention, **exact)
    if "activation" in fields and isinstance(config.feed_forward, FeedForward):
        defaults["feed_forward"] = dataclasses.replace(config.feed_forward, activation="relu")

    def default_block(name, block):
        block = Block(block.pre_norm) if name in fields else block
        is_default = f"{name}.attention" in fields
        return dataclasses.replace(block, attention=None) if is_default else block

    return _replace_blocks(dataclasses.replace(config, **defaults), default_block)


def _location(error: Exception, component) -> str:
    """Return "file:line: " where the user's code failed, or begins."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_library = "site-packages" in frame.filename or f"{os.sep}tlite{os.sep}" in frame.filename
        if not is_library:
            return f"{os.path.basename(frame.filename)}:{frame.lineno}: "
    function = component if inspect.isfunction(component) else type(component).__call__
    code = getattr(function, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}: " if code else ""


def _find_fault(model, field: str, component) -> str:
    """Return the first fault of a small model and its likely cause; empty if there is none."""
    config, tokens = model.config, jnp.arange(PROBE_LENGTH) % 5 + 1
    translates = is_translator(config)
    source, inputs = (tokens,) * translates, (tokens,) * (1 + translates)
    run = jax.jit(lambda model, *inputs: model(*inputs))
    logits = run(model, *inputs)
    gradients = jax.jit(jax.grad(lambda model: (model(*inputs) ** 2).sum()))(model)
    arrays = map(np.asarray, jax.tree.leaves((logits, gradients)))
    if not all(np.isfinite(array).all() for array in arrays):
        return "gives numbers or gradients that are not finite"
    mask_hint = MASK_HINT.get(field, BY_POSITION)
    if translates or is_generator(config):
        changed = run(model, *source, tokens.at[-1].set(6))
        if difference := _max_difference(changed[:-1], logits[:-1]):
            return f"lets tokens see later ones (logits change by {difference:.2g}): {mask_hint}"
        if difference := _max_difference(*_cached_and_full(model)):
            kind = "layer" if hasattr(component, "init") and field != "positions" else field
            measured = f"(logits differ by {difference:.2g} with a cache)"
            hint = CACHE_HINT.get(kind, BY_POSITION)
            return f"decodes differently than it trains {measured}: {hint}"
    if not is_generator(config):
        length, padding = PROBE_LENGTH // 2, config.special_tokens.pad_id if translates else -1
        texts = tokens.at[length:].set(padding), tokens[:length]
        padded, short = (run(model, text, *source) for text in texts)
        if difference := _max_difference(padded[: len(short)], short):
            return f"lets tokens see padding (logits change by {difference:.2g}): {mask_hint}"
    return ""


def _cached_and_full(model):
    """Return logits of two sequences read in chunks from different positions, and in full."""
    tokens = jnp.stack([jnp.arange(PROBE_LENGTH) % 5 + 1, (3 * jnp.arange(PROBE_LENGTH)) % 5 + 1])
    source = (tokens[::-1],) * is_translator(model.config)

    @jax.jit
    def run(model):
        full = model(*source, tokens)
        memories = (model.memories(*source),) if source else ()
        caches, cached = model.empty_caches(2, capacity=PROBE_LENGTH), full
        padded, valid = tokens.at[1, 2].set(6), jnp.ones(tokens.shape, bool).at[1, 2].set(False)
        for starts, length in PROBE_CHUNKS:
            positions = jnp.add.outer(jnp.array(starts), jnp.arange(length))
            chunk, is_valid = (jnp.take_along_axis(a, positions, axis=1) for a in (padded, valid))
            logits, caches = model.extend(
                chunk, caches, *memories, jnp.array(starts), valid=is_valid
            )
            padded, valid = tokens, jnp.ones(tokens.shape, bool)
            cached = cached.at[jnp.arange(2)[:, None], positions].set(logits)
        return cached, full

    return run(model)


def _max_difference(a, b) -> float:
    """Return the largest difference, which may be NaN, or 0 if it may be rounding."""
    largest = float(jnp.abs(a - b).max())
    return 0.0 if largest <= PROBE_TOLERANCE * max(1.0, float(jnp.abs(b).max())) else largest
