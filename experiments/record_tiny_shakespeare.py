"""Tiny Shakespeare with nanoGPT's parameters and tokens (2,000 steps of 12 x 64), five seeds.

Beside tiny_shakespeare.py: Muon, rotary positions, normed queries and keys, squared ReLU, short
convolutions, and output layers that begin at 0. 799,360 parameters.

command   make record-tiny-shakespeare   (five seeds)
machine   two cores of an AMD EPYC with AVX-512
time      14 min for the five, of a machine shared with other work
result    validation loss 1.5520 +- 0.0031, all members together (--member all) 1.4854 (tlite 0.2.0,
          with value residuals: 1.5523 +- 0.0052); `tiny_shakespeare` 1.8161
"""

import dataclasses
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from tlite import functional as F
from tlite.data import TinyShakespeare
from tlite.experiment import GeneratorExperiment
from tlite.models import Attention, FeedForward, GeneratorConfig, Layer, LMHead
from tlite.training import TrainingConfig


@dataclass(frozen=True)
class Convolved(Layer):
    """layer(x_t + sum over j < N of taps_j * x_(t-j)) ("Canon layers", Allen-Zhu 2025, section 3).

    Each channel by itself, of what came before alone; the taps (N, D) begin at 0.
    """

    layer: Attention | FeedForward
    taps: int = 3

    def check(self, config):
        self.layer.check(config)

    def window(self, block):
        return self.layer.window(block)

    def width_of_heads(self, config):
        return self.layer.width_of_heads(config)

    def init(self, rng: Key[Array, ""], config):
        taps = jnp.zeros((self.taps, config.width))
        return {"taps": taps, "layer": self.layer.init(rng, config)}

    def __call__(self, params, x: Float[Array, "*batch T D"], look: F.Look):
        taps, length, number = jnp.asarray(params.taps), x.shape[-2], self.taps - 1
        before = jnp.zeros((*x.shape[:-2], number, x.shape[-1]), x.dtype)
        caches = {"layer": None, "inputs": None} if look.cache is None else look.cache
        inside = {name: dataclasses.replace(look, cache=cache) for name, cache in caches.items()}
        if look.cache is not None:
            at = look.start[..., None, None] + jnp.arange(-number, 0)[:, None]
            at = jnp.broadcast_to(at, (*x.shape[:-2], number, 1))
            found = jnp.take_along_axis(caches["inputs"], jnp.maximum(at, 0), axis=-2)
            before = jnp.where(at >= 0, found, before)
        rows = jnp.concatenate([before, x], axis=-2)
        shifted = (rows[..., number - j : number - j + length, :] for j in range(number + 1))
        convolved = x + sum(tap * part for tap, part in zip(taps, shifted, strict=True))
        y, cached = self.layer(params.layer, convolved, inside["layer"])
        return y, {"layer": cached, "inputs": inside["inputs"].remember(x)}


experiment = GeneratorExperiment(
    name="record_tiny_shakespeare",
    data=TinyShakespeare(),
    model=GeneratorConfig(
        context=64,
        width=128,
        num_heads=4,
        num_blocks=4,
        dropout=0.0,
        block="pre_norm",
        norm="rms",
        positions="rotary",
        attention=Convolved(Attention(query_key_norm=True, zero_output=True)),
        feed_forward=Convolved(FeedForward(activation="squared_relu", zero_output=True)),
        bias=False,
        head=LMHead(tied=True),
    ),
    training=TrainingConfig(
        steps=2_000,
        batch_size=12,
        learning_rate=4e-3,
        schedule="cosine",
        warmup_steps=50,
        optimizer="muon",
        beta2=0.99,
        clip_norm=1.0,
        seeds=5,
        precision="mixed",
        evaluate_every=500,
    ),
    prompt="ROMEO:\n",
)
