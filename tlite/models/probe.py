"""Checks of user components on a small model before a run.

An attention function that forgets its mask reads the answer, and looks wonderful in every
comparison.
"""

import dataclasses
import os
import traceback
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from tlite.errors import UserError
from tlite.models.classifier import ClassifierConfig
from tlite.models.generator import GeneratorConfig
from tlite.models.parts import Attention, FeedForward, OutputLayer
from tlite.models.seq2seq import Seq2SeqConfig
from tlite.user_code import is_own

CONTRACTS = {
    "attention": "gets (query (..., H, T, K), key and value (..., H, S, K), mask); it must return "
    "an output (..., H, T, K) and weights (..., H, T, S)",
    "feed_forward": "gets (params, x (..., T, D)); it must return x (..., T, D)",
    "activation": "gets x (..., T, F); it must return the same shape",
    "norm": "gets (params, x (..., D)); it must return x (..., D)",
    "positions": "gets (positions (..., T), width); it must return vectors (..., T, D)",
    "block": "gets (params, x (..., T, D), look, config); it must return x and rows by layer",
}
"""Arguments and results of a user's function, by the field of the config that holds it."""
LAYER = (
    "gets (params, x (..., T, D), look); it must return y (..., T, D) and what a cache keeps, or "
    "None"
)
OBJECT_CONTRACTS = {
    "attention": LAYER,
    "feed_forward": LAYER,
    "positions": "needs the methods add and attention_inputs, as tlite.models.Learned has them",
}
"""Contracts of dataclasses with `init`, where they differ from a function's."""
BY_POSITION = "each position must be computed from that position alone"
MASK_HINT = {"attention": "is the mask used?", "block": "is the mask used?"}
CACHE_HINT = {
    "attention": "with a cache the queries are the last of the keys: take `distances` (..., T, S)",
    "positions": "use the positions that it is called with, not their number",
    "layer": "with a cache x holds only the new tokens: return what later ones need as cache rows",
}

LENGTH, TOLERANCE = 6, 1e-4
CHUNKS = ((0, 0), 3), ((3, 2), 1), ((4, 3), 2)
"""First positions in two sequences, and a number of tokens. The second sequence's third token is
padding at first, as behind a short prompt, and written anew by the next chunk."""


@lru_cache
def probe(config, make: Callable) -> None:
    """Try each user component in a small model of this config, `make(config, rng=...)`.

    The arithmetic is exact and every parameter is perturbed, so that no layer contributes 0.
    Checked are shapes and finite gradients; that no token sees a later one (generators and
    decoders) or padding; and that cached decoding gives the logits of a full pass.

    Raises:
        UserError: a component fails; it is named, with the measured difference of logits.
    """
    if not (brought := users_parts(config)):
        return
    sizes = {"vocabulary_size": 7, "context": LENGTH, "num_blocks": 2, "dropout": 0.0}
    if isinstance(config, ClassifierConfig):
        sizes |= {"num_classes": 2, "wide": type(config.wide)()}
    if isinstance(config, Seq2SeqConfig):
        sizes |= {"source_vocabulary_size": 7, "decoder_blocks": 1}
        sizes |= {"special_tokens": type(config.special_tokens)()}
    small = _exact(dataclasses.replace(config, **sizes))
    for slot, part in brought.items():
        alone = _without(small, brought.keys() - {slot})
        name = f"{getattr(part, '__name__', type(part).__name__)}, as {slot},"
        try:
            fault = _fault(_perturbed(make(alone, rng=jax.random.key(0))), slot, part)
        except Exception as error:  # the user's code: of any type
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            contract = (CONTRACTS | (OBJECT_CONTRACTS if hasattr(part, "init") else {}))[slot]
            raise UserError(f"{name} {contract}: {_line_of(error, part)}{said}") from error
        if fault:
            raise UserError(f"{name} {fault}")


def users_parts(config) -> dict[str, object]:
    """The functions and parts of a config that are not the library's, by the name of their slot."""
    found = {}
    for slot in CONTRACTS:
        part = getattr(config, slot, None)  # a logistic regression has none
        inside = {slot: getattr(part, "function", None)}
        inside["activation"] = getattr(part, "activation", None)
        named = {slot: part} if is_own(part) else inside
        found |= {name: value for name, value in named.items() if is_own(value)}
    return found


def _exact(config):
    """The config with float32 products: rounding to bfloat16 would look like a fault."""
    attention, head = config.attention, getattr(config, "head", None)
    if isinstance(attention, Attention) and isinstance(attention.function, str):
        attention = dataclasses.replace(attention, function="exact", query_chunk_size=0)
    changed = {"attention": attention}
    if isinstance(head, OutputLayer):
        changed["head"] = dataclasses.replace(head, product="exact")
    return dataclasses.replace(config, **changed)


def _perturbed(model):
    """The model with 10 % of noise on each number, and 0.1 * normal in place of each 0."""
    leaves, structure = jax.tree.flatten(model)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [0.1 * jax.random.normal(key, a.shape) for key, a in zip(keys, leaves, strict=True)]
    leaves = [jnp.where(a == 0, n, a * (1 + n)) for a, n in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def _without(config, slots):
    """The config with the library's own parts in these places."""
    usual = {slot: getattr(type(config)(), slot) for slot in slots - {"activation"}}
    if "activation" in slots and isinstance(config.feed_forward, FeedForward):
        usual["feed_forward"] = dataclasses.replace(config.feed_forward, activation="relu")
    return dataclasses.replace(config, **usual)


def _line_of(error: Exception, part) -> str:
    """File and line where the user's code failed, or begins."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        library = "site-packages" in frame.filename or f"{os.sep}tlite{os.sep}" in frame.filename
        if not library:
            return f"{os.path.basename(frame.filename)}:{frame.lineno}: "
    function = part if hasattr(part, "__code__") else vars(type(part)).get("__call__")
    code = getattr(function, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}: " if code else ""


def _fault(model, slot: str, part) -> str:
    """The first fault of a small model and what may cause it; empty if there is none."""
    config, tokens = model.config, jnp.arange(LENGTH) % 5 + 1
    translates = isinstance(config, Seq2SeqConfig)
    source, inputs = (tokens,) * translates, (tokens,) * (1 + translates)
    run = jax.jit(lambda model, *inputs: model(*inputs))
    whole = run(model, *inputs)
    slopes = jax.jit(jax.grad(lambda model: (model(*inputs) ** 2).sum()))(model)
    if not all(np.isfinite(a).all() for a in map(np.asarray, jax.tree.leaves((whole, slopes)))):
        return "gives numbers or gradients that are not finite"
    mask_hint = MASK_HINT.get(slot, BY_POSITION)
    if translates or isinstance(config, GeneratorConfig):
        changed = run(model, *source, tokens.at[-1].set(6))
        if difference := _difference(changed[:-1], whole[:-1]):
            return f"lets tokens see later ones (logits change by {difference:.2g}): {mask_hint}"
        if difference := _difference(*_cached_and_full(model)):
            kind = "layer" if hasattr(part, "init") and slot != "positions" else slot
            measured = f"(logits differ by {difference:.2g} with a cache)"
            hint = CACHE_HINT.get(kind, BY_POSITION)
            return f"decodes otherwise than it trains {measured}: {hint}"
    if not isinstance(config, GeneratorConfig):
        real, nothing = LENGTH // 2, config.special_tokens.pad_id if translates else -1
        texts = tokens.at[real:].set(nothing), tokens[:real]
        padded, short = (run(model, text, *source) for text in texts)
        if difference := _difference(padded[: len(short)], short):
            return f"lets tokens see padding (logits change by {difference:.2g}): {mask_hint}"
    return ""


def _cached_and_full(model):
    """Logits of two sequences that are read in chunks from different positions, and in full."""
    tokens = jnp.stack([jnp.arange(LENGTH) % 5 + 1, (3 * jnp.arange(LENGTH)) % 5 + 1])
    source = (tokens[::-1],) * isinstance(model.config, Seq2SeqConfig)

    @jax.jit
    def run(model):
        full = model(*source, tokens)
        others = model.memories(*source) if source else ()
        caches, found = model.empty_caches(2, capacity=LENGTH), full
        written = tokens.at[1, 2].set(6)
        for starts, length in CHUNKS:
            places = jnp.add.outer(jnp.array(starts), jnp.arange(length))
            chunk, written = jnp.take_along_axis(written, places, axis=1), tokens
            logits, caches = model.extend(chunk, caches, *others, jnp.array(starts))
            found = found.at[jnp.arange(2)[:, None], places].set(logits)
        return found, full

    return run(model)


def _difference(a, b) -> float:
    """The largest difference, or 0 if it may be rounding."""
    largest = float(jnp.abs(a - b).max())
    return largest if largest > TOLERANCE * max(1.0, float(jnp.abs(b).max())) else 0.0
