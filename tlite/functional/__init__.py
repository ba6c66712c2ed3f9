"""The equations of a transformer as pure functions of arrays, with any leading batch axes.

Letters in shapes: B batch, T query positions, S key positions, D model width, H heads, G heads
of keys and values, K head width, F hidden width, V vocabulary, C classes or positions of a
cache, M length of a memory, L length of a table.
"""

from tlite.functional.attention import (
    AttentionParameters,
    KeyValues,
    State,
    cache_mask,
    causal_mask,
    combine_masks,
    merge_heads,
    multi_head_attention,
    padding_mask,
    repeat_kv,
    scaled_dot_product_attention,
    segment_ids,
    segment_mask,
    split_heads,
    update_cache,
    window_mask,
)
from tlite.functional.kernels.chunked_attention import chunked_causal_attention
from tlite.functional.kernels.fused_attention import fused_attention
from tlite.functional.kernels.matmul import float32_products, matmul
from tlite.functional.kernels.mixed_attention import mixed_attention
from tlite.functional.layers import (
    ACTIVATIONS,
    FeedForwardParameters,
    LinearParameters,
    NormParameters,
    Tap,
    bind_supported_kwargs,
    check_tokens,
    dropout,
    embed,
    feed_forward,
    layer_norm,
    linear,
    no_tap,
    rms_norm,
    scoped,
    soft_cap,
    squared_relu,
    unembed,
    unsupported_kwargs,
)
from tlite.functional.logits import (
    apply_temperature,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    repetition_penalty,
    sample,
)
from tlite.functional.losses import (
    accuracy,
    cross_entropy,
    focal_loss,
    token_cross_entropy,
    weighted_sum,
    z_loss,
)
from tlite.functional.positions import (
    add_positions,
    alibi,
    check_length,
    interpolate_positions,
    llama3_frequencies,
    relative_position_buckets,
    rotary_angles,
    rotary_frequencies,
    rotate,
    sinusoidal_positions,
    yarn_attention_factor,
    yarn_frequencies,
)
from tlite.functional.random import dropout_mask, fold_in, permuted_index, random_bits
from tlite.functional.recurrent import chunked_gated_delta_rule, gated_delta_rule

__all__ = [
    "ACTIVATIONS", "AttentionParameters", "FeedForwardParameters", "KeyValues",
    "LinearParameters", "NormParameters", "State", "Tap", "accuracy", "add_positions", "alibi",
    "apply_temperature", "bind_supported_kwargs", "cache_mask", "causal_mask", "check_length",
    "check_tokens", "chunked_causal_attention", "chunked_gated_delta_rule", "combine_masks",
    "cross_entropy", "dropout", "dropout_mask", "embed", "feed_forward", "float32_products",
    "focal_loss", "fold_in", "fused_attention", "gated_delta_rule", "greedy",
    "interpolate_positions", "keep_min_p", "keep_top_k", "keep_top_p", "layer_norm", "linear",
    "llama3_frequencies", "matmul", "merge_heads", "mixed_attention", "multi_head_attention",
    "no_tap", "padding_mask", "permuted_index", "random_bits",
    "relative_position_buckets", "repeat_kv", "repetition_penalty", "rms_norm", "rotary_angles",
    "rotary_frequencies", "rotate", "sample", "scaled_dot_product_attention", "scoped",
    "segment_ids", "segment_mask", "sinusoidal_positions", "soft_cap", "split_heads",
    "squared_relu", "token_cross_entropy", "unembed", "unsupported_kwargs", "update_cache",
    "window_mask", "yarn_attention_factor", "yarn_frequencies", "z_loss",
]  # fmt: skip
