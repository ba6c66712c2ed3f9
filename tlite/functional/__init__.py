"""The equations of a transformer as pure functions of arrays, with any leading batch axes.

Letters in shapes: B batch, T query positions, S key positions, D model width, H heads, K head
width, F hidden width, V vocabulary, C classes, L length of a table.
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
    scaled_dot_product_attention,
    segment_ids,
    segment_mask,
    split_heads,
    update_cache,
    window_mask,
    with_repeated_kv,
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
    accuracy,
    apply_temperature,
    cross_entropy,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    repetition_penalty,
    sample,
    token_cross_entropy,
)
from tlite.functional.positions import (
    add_positions,
    alibi,
    check_length,
    interpolate_positions,
    llama3_frequencies,
    positions_from,
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

__all__ = [name for name, value in [*globals().items()] if callable(value) or name.isupper()]
