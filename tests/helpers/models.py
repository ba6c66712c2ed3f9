"""Small models with random arrays, which depend on an array's name and shape alone."""

import dataclasses
import functools
import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers.arrays import assert_all_finite, assert_close, numbers
from tlite import functional as F
from tlite.models import Attention, FeedForward, LMHead, init_layer
from tlite.models.parameters import from_named_arrays, named_arrays, stack_blocks, unstack_blocks

ALL = {"block": "pre_norm", "norm": "rms", "positions": "rotary", "bias": False}
GENERATORS = {  # fields of configs of generators by name
    "generator": {},
    "generator, pre-norm": {"block": "pre_norm"},
    "generator, rotary": {"positions": "rotary"},
    "generator, all": {
        **ALL,
        "attention": Attention(qkv_bias=True, head_dim=6),
        "head": LMHead(tied=True),
    },
}


def drawn(kind, config, *, spread=1.0):
    """Return a model with random arrays; `spread` multiplies their standard deviations."""
    shapes = jax.eval_shape(lambda: kind(config, rng=jax.random.key(0)))
    names = jax.eval_shape(unstack_blocks, named_arrays(shapes))
    arrays = {name: draw(name, a.shape, spread) for name, a in names.items()}
    is_list = names.keys() == named_arrays(shapes).keys()
    return from_named_arrays(shapes)(arrays if is_list else stack_blocks(arrays))


def draw(name, shape, spread):
    mean = 1.0 if name.endswith("norm.scale") else 0.0
    std = 0.4 if name.endswith(("norm.scale", ".kernel")) else 0.7
    return jax.device_put(mean + spread * std * numbers(*shape, seed=zlib.crc32(name.encode())))


def replaced(config, fields):
    """Return the config with other values by name, or by `component.field`."""
    for name, value in fields.items():
        if "." in name:
            component, field = name.split(".", 1)
            value, name = replaced(getattr(config, component), {field: value}), component
        config = dataclasses.replace(config, **{name: value})
    return config


def get_field(config, name):
    """Return the value of `field` or `component.field`."""
    return functools.reduce(getattr, name.split("."), config)


@dataclass(frozen=True)
class Shifted:
    """A custom feed-forward layer: its input is the previous token's vector, which it caches."""

    mlp_dim: int = 6

    def init(self, rng, config):
        return init_layer(FeedForward(self.mlp_dim), rng, config)

    def __call__(self, params, x, inputs, *, cache=None, tap=F.no_tap):
        cache = F.update_cache(cache, x, inputs.start)
        positions = jnp.broadcast_to(inputs.positions, x.shape[:-1])[..., None]
        previous = jnp.take_along_axis(cache, jnp.maximum(positions - 1, 0), axis=-2)
        return F.feed_forward(params, jnp.where(positions > 0, previous, 0.0), tap=tap), cache, {}


@dataclass(frozen=True)
class LeakySum:
    """A recurrent layer with a state of fixed size: h_t = h_(t-1) / 2 + x_t W."""

    def init(self, rng, config):
        return {"kernel": jax.random.normal(rng, (config.width, config.width))}

    def __call__(self, params, x, inputs, *, cache=None):
        x = x @ jnp.asarray(params.kernel)
        valid = jnp.ones(x.shape[-2], bool) if inputs.valid is None else inputs.valid
        valid = jnp.broadcast_to(valid, x.shape[:-1])[..., None]

        def step(state, token):
            state = jnp.where(token[1], state / 2 + token[0], state)
            return state, state

        state = jnp.zeros_like(x[..., 0, :]) if cache is None else cache.value
        tokens = jnp.moveaxis(x, -2, 0), jnp.moveaxis(valid, -2, 0)
        state, outputs = jax.lax.scan(step, state, tokens)
        return jnp.moveaxis(outputs, 0, -2), F.State(state), {}


def initial_model(kind, config):
    """Return a model with its initial parameters, by the key 0."""
    return jax.jit(lambda: kind(config, rng=jax.random.key(0)))()


@jax.jit
def call(model, *inputs, **settings):
    return model(*inputs, **settings)


@jax.jit
def extend(model, *inputs, **settings):
    return model.extend(*inputs, **settings)


def difference(x, y):
    return np.abs(np.asarray(x) - np.asarray(y)).max()


def assert_gradients_reach(gradients, ignored=(".key.bias", ".key_norm.bias")):
    """Assert that each array has finite gradients that are not all 0.

    A bias of keys shifts all scores of a query equally, which the softmax ignores.
    """
    assert_all_finite(gradients)
    for name, leaf in named_arrays(gradients).items():
        assert name.endswith(ignored) or np.abs(leaf).max() > 1e-7, name


def assert_chunks_give(full_logits, sequences, extend, caches):
    """Assert that two sequences read in chunks, from different starts, have the full pass's logits.

    The last chunk is read again by the first sequence. `extend` gets a chunk, caches and starts.
    """
    for starts, length in [((0, 0), 2), ((2, 1), 2), ((3, 3), 2), ((2, 3), 2)]:
        at = np.add.outer(starts, range(length))
        chunk = np.take_along_axis(np.asarray(sequences), at, axis=1)
        logits, caches = extend(chunk, caches, np.array(starts))
        expected = np.take_along_axis(np.asarray(full_logits), at[..., None], axis=1)
        assert_close(logits, expected, 3e-5)
