"""Whether the parts that a user brings do what a model needs, tried on a few tokens.

An attention that forgets its mask reads the answer, and looks wonderful in every comparison.
"""

import dataclasses
import os
import traceback
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from tlite.config import is_own
from tlite.errors import UserError
from tlite.models.classifier import ClassifierConfig
from tlite.models.generator import GeneratorConfig
from tlite.models.parts import FeedForward
from tlite.models.seq2seq import Seq2SeqConfig

CONTRACTS = {
    "attention": "gets (query (..., H, T, K), key and value (..., H, S, K), mask); it must return "
    "an output (..., H, T, K) and weights (..., H, T, S)",
    "feed_forward": "gets (params, x (..., T, D)); it must return x (..., T, D)",
    "activation": "gets x (..., T, F); it must return the same shape",
    "norm": "gets (params, x (..., D)); it must return x (..., D)",
    "positions": "gets (positions (..., T), width); it must return vectors (..., T, D)",
    "block": "gets (params, x (..., T, D), look, config); it must return x and rows by layer",
}
"""What each function of a user's is called with, and what it must give."""
LAYER = (
    "gets (params, x (..., T, D), look); it must return y (..., T, D) and what a cache keeps, or "
    "None"
)
PARTS = {
    "attention": LAYER,
    "feed_forward": LAYER,
    "positions": "is asked for add and of_scores, as tlite.models.Learned is",
}
"""The same of dataclasses with `init`, where it is not what a function in their place gets."""

LENGTH, TOLERANCE = 6, 1e-4


@lru_cache
def probe(config, make: Callable) -> None:
    """Try each part of a user's in a small model of this config, `make(config, rng=...)`.

    Looked at are shapes and finite gradients; that no token sees a later one (generators and what
    decodes), nor padding; and that cached decoding gives what a whole pass does.

    Raises:
        UserError: one of them fails, in one sentence that names the part.
    """
    if not (brought := users_parts(config)):
        return
    sizes = {"vocabulary_size": 7, "context": LENGTH, "num_blocks": 2, "dropout": 0.0}
    if isinstance(config, ClassifierConfig):
        sizes |= {"num_classes": 2, "wide": type(config.wide)()}
    if isinstance(config, Seq2SeqConfig):
        sizes |= {"source_vocabulary_size": 7, "decoder_blocks": 1}
        sizes |= {"symbols": type(config.symbols)()}
    small = dataclasses.replace(config, **sizes)
    for slot, part in brought.items():
        alone = _without(small, brought.keys() - {slot})
        name = f"{getattr(part, '__name__', type(part).__name__)}, as {slot},"
        try:
            wrong = _wrong(make(alone, rng=jax.random.key(0)))
        except Exception as error:  # the user's code: of any type
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            contract = (CONTRACTS | (PARTS if hasattr(part, "init") else {}))[slot]
            raise UserError(f"{name} {contract}: {_line_of(error, part)}{said}") from error
        if wrong:
            raise UserError(f"{name} {wrong}")


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


def _wrong(model) -> str:
    """What a small model does that it must not; nothing where all is well."""
    config, tokens = model.config, jnp.arange(LENGTH) % 5 + 1
    translates = isinstance(config, Seq2SeqConfig)
    source, inputs = (tokens,) * translates, (tokens,) * (1 + translates)
    run = jax.jit(lambda model, *inputs: model(*inputs))
    whole = run(model, *inputs)
    slopes = jax.jit(jax.grad(lambda model: (model(*inputs) ** 2).sum()))(model)
    if not all(np.isfinite(a).all() for a in map(np.asarray, jax.tree.leaves((whole, slopes)))):
        return "gives numbers or gradients that are not finite"
    if translates or isinstance(config, GeneratorConfig):
        changed = run(model, *source, tokens.at[-1].set(6))
        if _differ(changed[:-1], whole[:-1]):
            return "lets tokens see later ones: is its mask used?"
        if _differ(_extended(model, source, tokens), whole):
            return (
                "decodes otherwise than it trains: with a cache the queries are the last of the "
                "keys' places, so take `distances` (..., T, S) where these count"
            )
    if not isinstance(config, GeneratorConfig):
        real, nothing = LENGTH // 2, config.symbols.pad if translates else -1
        texts = tokens.at[real:].set(nothing), tokens[:real]
        padded, short = (run(model, text, *source) for text in texts)
        if _differ(padded[: len(short)], short):
            return "lets tokens see padding: is its mask used?"
    return ""


def _extended(model, source, tokens):
    """The logits of tokens that come one by one."""
    others = model.memories(*source) if source else ()

    def step(caches, place):
        logits, caches = model.extend(tokens[place][None], caches, *others, place)
        return caches, logits[0]

    return jax.lax.scan(step, model.empty_caches(capacity=LENGTH), jnp.arange(LENGTH))[1]


def _differ(a, b) -> bool:
    return bool(jnp.abs(a - b).max() > TOLERANCE * max(1.0, float(jnp.abs(b).max())))
