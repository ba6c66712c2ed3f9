"""What the models have in common: the switches of their blocks."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tlite import functional as F
from tlite.config import check_size

MOST_BLOCKS = 10_000  # each is compiled by itself, unless `scan`
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "squared_relu": F.squared_relu,
    "tanh": jnp.tanh,
}
NORMS = {"layer": F.layer_norm, "rms": F.rms_norm, "zero_centred_rms": F.zero_centred_rms_norm}
ATTENTIONS = {
    "exact": F.scaled_dot_product_attention,
    "mixed": F.mixed_attention,
    "fused": F.fused_attention,
}
ATTENTIONS["auto"] = ATTENTIONS["exact"]  # until a run has decided
MIXED_FROM_LENGTH = 128  # below, casting costs more than bfloat16 products save (LOG, 2026-11-21)

# A name, or a function of one's own; with an attribute `parameters`, a function of (config, key),
# it gets what that has made, a dictionary of arrays as attributes, as its first argument.
Activation = Literal["relu", "gelu", "gelu_exact", "silu", "squared_relu", "tanh"] | Callable
Norm = Literal["layer", "rms", "zero_centred_rms"] | Callable
Attention = Literal["exact", "mixed", "fused", "auto"] | Callable
Positions = (
    Literal["learned", "sinusoidal", "split_sinusoidal", "rotary", "relative", "alibi", "none"]
    | Callable
)


def not_negative(config: Any, *names: str) -> None:
    """Raises a ValueError if one of these fields of a config is below 0, or can't be counted to."""
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative, not {getattr(config, name)}")
        check_size(name, max(getattr(config, name), 1))


def positive(config: Any, *names: str) -> None:
    """Raises a ValueError if one of these fields of a config is not None, and not above 0."""
    for name in names:
        if (value := getattr(config, name)) is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, not {value}")


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary positions go beyond the context that they were trained for."""

    method: Literal["linear", "llama3", "yarn"] = "linear"
    """Every frequency is divided by the factor; or the slow ones only, as Llama 3 or YaRN say."""
    factor: float = 1.0
    """How much longer the texts may be."""
    original_context: int = 8192
    """The context of training; not used by linear scaling."""
    low_frequency_factor: float = 1.0
    """Llama 3: turns in that context up to which a frequency is slow."""
    high_frequency_factor: float = 4.0
    """Llama 3: turns from which it stays as it is."""
    beta_fast: float = 32.0
    """YaRN: turns from which a frequency stays as it is."""
    beta_slow: float = 1.0
    """YaRN: turns up to which it is slow."""
    attention_factor: float | None = None
    """YaRN: queries and keys are multiplied by it; 0.1 ln(factor) + 1 unless given."""

    def __post_init__(self):
        check_size("original_context", self.original_context)
        positive(self, "factor", "low_frequency_factor", "high_frequency_factor")
        positive(self, "beta_fast", "beta_slow", "attention_factor")

    def frequencies(self, plain: Float[Array, "N"], base: float) -> Float[Array, "N"]:
        """The scaled frequencies."""
        if self.method == "linear":
            return plain / self.factor
        settings = self.factor, self.original_context
        if self.method == "llama3":
            between = self.low_frequency_factor, self.high_frequency_factor
            return F.llama3_frequencies(plain, *settings, *between)
        return F.yarn_frequencies(plain, *settings, self.beta_fast, self.beta_slow, base)

    @property
    def magnitude(self) -> float:
        """What queries and keys are multiplied by."""
        if self.method != "yarn" or self.attention_factor is not None:
            return self.attention_factor or 1.0
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class BlocksConfig:
    """The switches of a stack of blocks. The defaults are the post-norm transformer of 2017."""

    vocabulary_size: int = 0
    """Number of tokens V; 0 takes it from the tokenizer."""
    context: int = 64
    """Longest sequence T the model attends over."""
    width: int = 32
    """Model width D."""
    num_heads: int = 4
    """Attention heads H."""
    head_width: int | None = None
    """Width K of a head; D / H unless given."""
    num_blocks: int = 3
    """Transformer blocks."""
    hidden_width: int | None = None
    """Width F of the feed-forward layer; 4 D unless given."""
    dropout: float = 0.1
    """Dropout rate after the embedding, the attention and the feed-forward layer."""
    hidden_dropout: float = 0.0
    """Dropout rate between the two layers of the feed-forward."""
    norm_first: bool = False
    """Norm before each layer (pre-norm, with a final norm) instead of after it (post-norm)."""
    norm: Norm = "layer"
    """Layer norm, RMS norm, or RMS norm with a scale around 0."""
    activation: Activation = "relu"
    """Activation of the feed-forward layer."""
    positions: Positions = "learned"
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    embedding_deviation: float = 0.02
    """Standard deviation of the embedding before training."""
    zero_output: bool = False
    """The last layer of attention and of the feed-forward begins at 0: a block adds nothing yet."""
    qkv_bias: bool = False
    """Biases in the query, key and value layers."""
    bias: bool = True
    """Biases in all other layers and in the layer norms."""
    attention: Attention = "exact"
    """What computes attention: the definition, bfloat16 products ("mixed"), or one kernel of a GPU
    ("fused"); "auto" takes these two in mixed precision and contexts of 128 or more."""
    feed_forward: Literal["default"] | Callable = "default"
    """The feed-forward layer."""
    key_heads: int | None = None
    """Heads of keys and values, each for several queries (grouped queries); H unless given."""
    gated: bool = False
    """A feed-forward layer whose hidden units are gated: SwiGLU with silu, GeGLU with gelu."""
    query_key_norm: bool = False
    """Norm each head's queries and keys."""
    output_norms: bool = False
    """Norm each layer's output too, before it is added."""
    first_norm: bool = True
    """Whether the first block's attention has a norm."""
    embedding_norm: bool = False
    """Norm the embedding with its positions."""
    norm_epsilon: float = 1e-5
    """What norms add to the variance."""
    norm_bias: bool | None = None
    """Biases in layer norms; as `bias` unless given."""
    feed_forward_bias: bool | None = None
    """Biases in the feed-forward layer; as `bias` unless given."""
    scale_embedding: bool = False
    """Multiply embeddings by sqrt(D) before positions are added."""
    segments: int = 0
    """Rows of a table of segments, whose first is added to every embedding."""
    position_offset: int = 0
    """The row of the learned positions that is the first token's."""
    rotary_base: float = 10_000.0
    """Rotary positions: the slowest pair of columns turns some base times slower than the first."""
    local_rotary_base: float | None = None
    """The base in blocks with a window, where nothing is scaled; rotary_base unless given."""
    rotary_scaling: RotaryScaling | None = None
    """How rotary positions are stretched."""
    relative_buckets: int = 32
    """Relative positions: numbers for each head, one a bucket of distances."""
    relative_distance: int = 128
    """From which distance on all share a bucket."""
    windows: tuple[int, ...] = ()
    """Block i sees what is nearer than windows[i mod their number]; 0: everything."""
    softcap: float | None = None
    """Bound scores of attention by c tanh(score / c)."""
    attention_scale: float | None = None
    """What scores are multiplied by; 1 / sqrt(K) unless given."""
    scan: bool = False
    """Compile one block for all of them (`jax.lax.scan`): deep models compile faster."""
    remat: bool = False
    """Compute blocks again in the backward pass instead of keeping what is inside them."""

    def __post_init__(self):
        sizes = "context", "width", "num_heads", "head_width", "hidden_width", "key_heads"
        for name in (*sizes, "relative_buckets", "relative_distance"):
            if (value := getattr(self, name)) is not None:
                check_size(name, value)
        check_size("num_blocks", self.num_blocks, MOST_BLOCKS)
        if self.head_width is None and self.width % self.num_heads:
            raise ValueError(f"a width of {self.width} is not divisible by {self.num_heads} heads")
        if self.num_heads % (self.key_heads or self.num_heads):
            raise ValueError(f"{self.num_heads} heads can't share {self.key_heads} heads of keys")
        if self.positions == "rotary" and self.width_of_heads % 2:
            raise ValueError("rotary positions pair the columns: the head width must be even")
        if self.attention in ("mixed", "fused") and (needed := self.asked_of_attention()):
            raise ValueError(
                f'{self.attention} attention takes no {needed[0]}: take "exact" or "auto"'
            )
        if callable(self.attention):
            taken = inspect.signature(self.attention).parameters
            if missing := [name for name in self.asked_of_attention() if name not in taken]:
                raise ValueError(f"{self.attention.__name__} takes no {missing[0]} of scores")
        if self.scan and (len(set(self.windows)) > 1 or not self.first_norm):
            raise ValueError("scan needs blocks that are alike: no different windows or norms")
        for rate in (self.dropout, self.hidden_dropout):
            if not 0 <= rate < 1:
                raise ValueError(f"the dropout rate must be in [0, 1), not {rate}")
        deviation = self.embedding_deviation
        if deviation is not None and not 0 < deviation < math.inf:
            raise ValueError(f"embedding_deviation must be positive, not {deviation}")
        positive(self, "softcap", "attention_scale", "norm_epsilon")
        positive(self, "rotary_base", "local_rotary_base")
        if not 4 <= self.relative_buckets < 2 * self.relative_distance:
            raise ValueError("relative_buckets must be at least 4, relative_distance above half")
        yarn = self.rotary_scaling is not None and self.rotary_scaling.method == "yarn"
        if yarn and self.local_rotary_base is not None:
            raise ValueError("yarn scales all blocks: it can't go with a local_rotary_base")
        if self.query_key_norm and hasattr(self.norm, "parameters"):
            raise ValueError("a norm with parameters of its own can't norm queries and keys")
        for window in self.windows:
            check_size("a window", max(window, 1) if window >= 0 else window)
        not_negative(self, "vocabulary_size", "segments", "position_offset")

    @property
    def width_of_heads(self) -> int:
        """Width K of a head."""
        return self.head_width or self.width // self.num_heads

    @property
    def score_scale(self) -> float | None:
        """What scores are multiplied by; None: 1 / sqrt(K)."""
        magnitude = self.rotary_scaling.magnitude if self.rotary_scaling else 1.0
        if magnitude == 1:
            return self.attention_scale
        return magnitude**2 * (self.attention_scale or 1 / math.sqrt(self.width_of_heads))

    def asked_of_attention(self) -> list[str]:
        """What an attention must take beside queries, keys, values and a mask."""
        asked = {
            "bias": self.positions in ("relative", "alibi"),
            "scale": self.score_scale is not None,
            "softcap": self.softcap is not None,
        }
        return [name for name, wanted in asked.items() if wanted]

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by before positions are added."""
        return math.sqrt(self.width) if self.scale_embedding else 1.0

    @property
    def initial_deviation(self) -> float:
        """Standard deviation of the embedding before training."""
        return self.embedding_deviation

    def window(self, block: int) -> int:
        """How far a block sees; 0: everything."""
        return self.windows[block % len(self.windows)] if self.windows else 0

    def functions(self) -> dict[str, Callable]:
        """What `functional.block` is made of, the user's own functions among it."""
        norm = NORMS.get(self.norm) if isinstance(self.norm, str) else None
        attention = self.attention if callable(self.attention) else ATTENTIONS[self.attention]
        given = {"scale": self.score_scale, "softcap": self.softcap}
        given = {name: value for name, value in given.items() if value is not None}
        feed_forward = self.feed_forward if callable(self.feed_forward) else F.feed_forward
        return {
            "norm": partial(norm, eps=self.norm_epsilon) if norm else self.norm,
            "activation": activation(self.activation),
            "attention": partial(attention, **given) if given else attention,
            "feed_forward": feed_forward,
        }


def activation(named: Activation) -> Callable:
    """The function of this name, or the user's own."""
    return ACTIVATIONS[named] if isinstance(named, str) else named
