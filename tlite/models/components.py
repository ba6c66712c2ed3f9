"""Components of models: frozen dataclasses of numbers and words, without behaviour.

The equations that read them are in block.py, transformer.py and `tlite.functional`, the initial
parameters in init.py; models/custom.py says what a user's own components get and return.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tlite.config import Config, check_size

Activation = Literal["relu", "gelu", "gelu_exact", "silu", "squared_relu", "tanh"] | Callable
"""A key of `functional.ACTIVATIONS`, or a function."""


@dataclass(frozen=True)
class Norm(Config, positive="epsilon"):
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).

    A function of your own gets (params, x (..., D)) and returns x. Its `params` are those of layer
    norm, `scale` and `bias` (D,), or the dictionary that its attribute `init_params(rng, config)`
    returns. With `query_key_norm`, `init_params` must accept the head width K as `width`.

    >>> def unit_length(params, x):
    ...     return params.scale * x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    >>> config = GeneratorConfig(norm=unit_length)
    """

    method: Literal["layer", "rms"] = "layer"
    """Divide x by its standard deviation ("layer") or its root mean square ("rms")."""
    epsilon: float = 1e-5
    """Added to the variance, or to the mean square (rms)."""
    bias: bool | None = None
    """Bias of layer norm; None: the model's `bias`."""
    offset: float = 0.0
    """RMS norm: added to the scale, so that weight decay pulls the scale to it (Gemma: 1)."""

    def __post_init__(self):
        super().__post_init__()
        if self.offset and self.method == "layer":
            raise ValueError("the scale of layer norm has no offset")


@dataclass(frozen=True)
class NormFunction:
    """A user's `norm(params, x)`."""

    function: Callable


@dataclass(frozen=True)
class Attention(
    Config,
    sizes="num_kv_heads head_dim",
    counts="query_chunk_size",
    positive="softcap scale",
    rates="dropout",
):
    """Multi-head attention ("Attention is all you need", section 3.2.2).

    A function of your own gets (query (..., H, T, K), key and value (..., H, S, K), mask), the mask
    None or broadcastable to (..., H, T, S), and returns its output (..., H, T, K) and its weights
    (..., H, T, S). Of the keyword arguments `relative_positions` (..., 1, T, S) (key position minus
    query position), `is_causal`, `window`, `rng` and `tap` it gets those in its signature. It must
    accept `bias`, `scale` and `softcap` where a model has them. If it has an attribute
    `init_params(rng, config)`, a dictionary of arrays, these come first.

    >>> def near(query, key, value, mask=None, *, relative_positions):
    ...     scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    ...     weights = jax.nn.softmax(scores - jnp.abs(relative_positions), where=mask)
    ...     return weights @ value, weights
    >>> config = GeneratorConfig(attention=Attention(near, num_kv_heads=2))

    A layer of your own is a dataclass with `init(rng, config)` and a call: see models/custom.py.
    """

    function: Literal["exact", "mixed", "fused", "auto"] | Callable = "auto"
    """Implementation: exact (reference), mixed (bfloat16 products), fused (one GPU kernel), or
    auto: mixed or fused under mixed precision if the context is at least 128, else exact."""
    query_chunk_size: int = 0
    """Queries per chunk of causal attention, each with only the keys that it may see: less time
    and memory in long contexts. 0: no chunks, but with function "auto" 64 for generators whose
    context is at least 512."""
    num_kv_heads: int | None = None
    """Heads of keys and values (grouped-query attention); None: `num_heads`."""
    head_dim: int | None = None
    """Width K of a head; None: width / num_heads."""
    qkv_bias: bool = False
    """Biases in the query, key and value layers."""
    bias: bool | None = None
    """Bias of the output layer; None: the model's `bias`."""
    query_key_norm: bool = False
    """Normalize each head's queries and keys (QK norm)."""
    windows: tuple[int, ...] = ()
    """Sliding windows: block i attends to positions less than windows[i % len(windows)] away; 0: no
    limit."""
    softcap: float | None = None
    """Bound scores by c tanh(score / c)."""
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(K)."""
    dropout: float = 0.0
    """Dropout rate of the weights."""
    zero_output: bool = False
    """Initialize the output layer to 0, so that the layer adds nothing at first."""

    def __post_init__(self):
        super().__post_init__()
        if self.query_chunk_size and self.function not in ("exact", "mixed", "auto"):
            raise ValueError("query_chunk_size needs attention 'exact' or 'mixed'")
        is_fast = self.function in ("mixed", "fused") or self.query_chunk_size
        if self.dropout and is_fast:
            raise ValueError("dropout of attention weights needs attention 'exact' without chunks")
        for window in self.windows:
            check_size("a window", max(window, 1) if window >= 0 else window)


@dataclass(frozen=True)
class FeedForward(Config, sizes="mlp_dim", rates="dropout"):
    """Two linear layers with an activation between ("Attention is all you need", eq. 2).

    An activation of your own gets x (..., T, F) and returns the same shape. A function in place of
    the layer gets (params, x (..., T, D)) and returns y (..., T, D); of the keyword arguments
    `config`, `inputs`, `rng` (dropout key, None in evaluation) and `tap` it gets those in its
    signature. Its `params` are this layer's, `hidden` and `output`, or what its
    `init_params(rng, config)` gives.

    >>> def linear_layer(params, x):
    ...     return x @ params.matrix
    >>> linear_layer.init_params = lambda rng, config: {"matrix": jnp.eye(config.width)}
    >>> config = GeneratorConfig(feed_forward=linear_layer)
    >>> config = GeneratorConfig(feed_forward=FeedForward(activation=jnp.cos))
    """

    mlp_dim: int | None = None
    """Width F of the hidden layer; None: 4 width."""
    activation: Activation = "relu"
    """Activation of the hidden units."""
    gated: bool = False
    """A third layer gates the hidden units: SwiGLU with silu, GeGLU with gelu."""
    bias: bool | None = None
    """Biases of its layers; None: the model's `bias`."""
    dropout: float = 0.0
    """Dropout rate of the hidden units."""
    zero_output: bool = False
    """Initialize the output layer to 0, so that the layer adds nothing at first."""


@dataclass(frozen=True)
class FeedForwardFunction:
    """A user's `feed_forward(params, x)`."""

    function: Callable


@dataclass(frozen=True)
class Positions(Config):
    """Position encoding: added to the embeddings, or changing the scores of attention.

    A function of your own gets (positions (..., T), D) and returns what is added to the embeddings,
    (..., T, D); parameters of its `init_params(rng, config)` come first.

    >>> def slope(positions, width):
    ...     return positions[..., None] / 100 * jnp.ones(width)
    >>> config = GeneratorConfig(positions=slope)

    A class of your own derives from this one and overrides what it needs.
    """

    adds_bias = False
    """True if `attention_inputs` returns a `bias`, which the attention function must accept."""

    def init(self, rng, config) -> Any:
        """Return the parameters, a dictionary of arrays, or None."""

    def add(self, params, x, positions, config):
        """Return the embeddings x (..., T, D) with the encoding of `positions` (..., T)."""
        return x

    def attention_inputs(self, params, inputs, config, *, is_causal: bool) -> dict[str, Any]:
        """Return fields of `BlockInputs` that depend on its positions, key_positions and window.

        `angles` (..., T, K / 2) rotate queries and keys, which `attention_factor` multiplies;
        `bias` (..., H, T, S) is added to the scores, of a class with `adds_bias = True`.
        `is_causal`: tokens of the model never attend to later ones.
        """
        return {}


@dataclass(frozen=True)
class NoPositions(Positions):
    """No position encoding (NoPE)."""


@dataclass(frozen=True)
class Learned(Positions, counts="offset"):
    """A learned vector for each position, added to the embedding."""

    offset: int = 0
    """Row of the table for the first token."""


@dataclass(frozen=True)
class Sinusoidal(Positions):
    """Sines and cosines, added to the embedding ("Attention is all you need", section 3.5)."""

    split: bool = False
    """All sines before all cosines."""


@dataclass(frozen=True)
class RotaryScaling(
    Config,
    sizes="original_context",
    positive="factor attention_factor beta_fast beta_slow "
    "low_frequency_factor high_frequency_factor",
):
    """Scaling of rotary frequencies for contexts longer than the one trained on."""

    method: Literal["linear", "llama3", "yarn"] = "linear"
    """Divide all frequencies by the factor (linear), or low ones only (Llama 3, YaRN)."""
    factor: float = 1.0
    """Longest context / original context."""
    original_context: int = 8192
    """Context of training; not used by linear scaling."""
    low_frequency_factor: float = 1.0
    """Llama 3 `low_freq_factor`: frequencies below this many periods per context are divided."""
    high_frequency_factor: float = 4.0
    """Llama 3 `high_freq_factor`: frequencies above this many periods per context stay."""
    beta_fast: float = 32.0
    """YaRN: frequencies above this many periods per context stay."""
    beta_slow: float = 1.0
    """YaRN: frequencies below this many periods per context are divided."""
    attention_factor: float | None = None
    """YaRN: factor of queries and keys; None: 0.1 ln(factor) + 1."""


@dataclass(frozen=True)
class Rotary(Positions, positive="base local_base"):
    """Rotary position embedding (Su et al. 2021, section 3.2.2).

    Each pair of columns (2i, 2i + 1) of a head's query or key at position p is rotated by the angle
    p / base^(2i/K), so that scores depend on relative positions alone (`functional.rotate`).
    """

    base: float = 10_000.0
    """Rotary base θ."""
    local_base: float | None = None
    """Base in blocks with a sliding window, without `scaling` (Gemma 3); None: as other blocks."""
    scaling: RotaryScaling | None = None
    """Scaling for longer contexts."""


@dataclass(frozen=True)
class Relative(Positions, sizes="num_buckets max_distance"):
    """Learned bias of scores by relative position (T5; Raffel et al. 2020, section 2.1)."""

    adds_bias = True

    num_buckets: int = 32
    """Buckets of relative positions, each with one number per head."""
    max_distance: int = 128
    """Distance up to which buckets grow logarithmically; longer ones share the last bucket."""

    def __post_init__(self):
        super().__post_init__()
        if not 4 <= (buckets := self.num_buckets) < 2 * self.max_distance:
            raise ValueError(f"num_buckets ({buckets}) must be at least 4 and below 2 max_distance")


@dataclass(frozen=True)
class ALiBi(Positions):
    """Bias of scores proportional to distance (Press et al. 2022)."""

    adds_bias = True


@dataclass(frozen=True)
class PositionsFunction(Positions):
    """A user's `positions(positions, width)`: vectors (..., T, D) added to the embedding."""

    function: Callable


@dataclass(frozen=True)
class Embedding(Config, counts="type_vocab_size", positive="init_std", rates="word_dropout"):
    """A table of vectors, one for each token."""

    init_std: float | None = None
    """Standard deviation of the initial embeddings; None: 0.02, or 1 / sqrt(D) with `scale`."""
    scale: bool = False
    """Multiply by sqrt(D) before positions are added ("Attention is all you need", section 3.4)."""
    norm: bool = False
    """Normalize the embeddings after positions are added (BERT)."""
    type_vocab_size: int = 0
    """Rows of a table of token types (BERT), the first of which is added to every embedding."""
    word_dropout: float = 0.0
    """Classifiers only: probability that a token of the input is masked in training."""


@dataclass(frozen=True, kw_only=True)
class OutputLayer(Config):
    """Logits of tokens: a linear layer, or products with the embedding (Press and Wolf 2017)."""

    bias: bool | None = None
    """Bias of the output layer; None: the model's `bias`, or none if the embedding is tied."""
    product: Literal["exact", "mixed", "auto"] = "auto"
    """Products with a tied embedding: exact (float32), mixed (bfloat16 operands), or auto: as the
    precision of the run."""


@dataclass(frozen=True)
class LMHead(OutputLayer, positive="softcap"):
    """Output layer of a language model."""

    tied: bool = False
    """Use the embedding as the output layer."""
    softcap: float | None = None
    """Bound logits by c tanh(logit / c)."""


@dataclass(frozen=True)
class Projection(Config):
    """A layer before the head: norm(activation(x W + b)). The defaults are BERT's."""

    activation: Activation = "gelu_exact"
    """Activation of the layer."""
    bias: bool | None = None
    """Bias of the layer; None: the model's `bias`."""
    norm: bool = True
    """Norm after the activation."""


@dataclass(frozen=True)
class Block(Config):
    """Attention and feed-forward layer, each with a residual connection and a norm (block.py).

    A block of your own derives from this class; its call gets (params, x (..., T, D), inputs), and
    of the keyword arguments `config`, `cache`, `rng` and `tap` those in its signature. It returns x
    or (x, cache, aux); `apply_layer` calls the layers of the config.

    >>> @dataclass(frozen=True)
    ... class AttentionOnly(Block):
    ...     def __call__(self, params, x, inputs, *, config, cache=None):
    ...         cache = cache and cache["attention"]
    ...         y, cache, aux = apply_layer(
    ...             config.attention, params.attention, x, inputs, config=config, cache=cache
    ...         )
    ...         return x + y, {"attention": cache}, aux
    >>> config = GeneratorConfig(block=AttentionOnly())
    """

    pre_norm: bool = False
    """Normalize the input of each layer, and the output of the last block, instead of each sum
    x + layer(x)."""
    output_norms: bool = False
    """Normalize each layer's output, too, before it is added (Gemma 2)."""
    first_norm: bool = True
    """False: the first block's attention has no norm."""
    attention: Attention | Callable | None = dataclasses.field(
        default=None, metadata={"option": False}
    )
    """Attention layer of this block, for patterns of different blocks; None: the model's."""


@dataclass(frozen=True)
class Loop(Config):
    """Loop over the blocks."""

    scan: bool = False
    """Compile one block for all of them (`jax.lax.scan`): deep models compile faster. Their
    parameters are stacked: `blocks.attention.query.kernel` (L, I, O)."""
    remat: bool = False
    """Recompute blocks in the backward pass instead of storing their intermediate values."""
