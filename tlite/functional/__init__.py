"""Every equation of a transformer as a pure function of arrays. Leading batch axes are free.

Letters in shapes: B batch, T query positions, S key positions, D model width, H heads, K head
width, F hidden width, V vocabulary, C classes, L length of a table.
"""

from tlite.functional.attention import (
    Cache,
    ConvolvedKeyValues,
    KeyValues,
    attend,
    key_values,
    merge_heads,
    multi_head_attention,
    scaled_dot_product_attention,
    split_heads,
    write,
)
from tlite.functional.blocks import block, decoder_block, encoder_block, residual
from tlite.functional.convolution import causal_convolution
from tlite.functional.fast_attention import fused_attention, mixed_attention
from tlite.functional.layers import (
    check_tokens,
    dropout,
    embed,
    feed_forward,
    layer_norm,
    linear,
    rms_norm,
    soft_cap,
    squared_relu,
    unembed,
    zero_centred_rms_norm,
)
from tlite.functional.logistic import (
    bag_of_words,
    binary_cross_entropy,
    gradient_descent,
    logistic_regression,
    with_bigrams,
)
from tlite.functional.losses import accuracy, cross_entropy, token_cross_entropy, weighted_sum
from tlite.functional.masks import (
    cache_mask,
    causal_mask,
    combine_masks,
    document_mask,
    documents,
    padding_mask,
    window_mask,
)
from tlite.functional.matmul import matmul
from tlite.functional.naive_bayes import log_count_ratios
from tlite.functional.observe import Observe, unobserved, within
from tlite.functional.parameters import (
    AttentionParameters,
    DecoderBlockParameters,
    EncoderBlockParameters,
    FeedForwardParameters,
    LinearParameters,
    NormParameters,
    bind,
)
from tlite.functional.pooling import attention_pool, dense_pool, mean_pool, parabolic_average
from tlite.functional.positions import (
    add_positions,
    alibi,
    interpolate_positions,
    llama3_frequencies,
    positions_from,
    relative_buckets,
    rotary_angles,
    rotary_frequencies,
    rotate,
    sinusoidal_positions,
    yarn_frequencies,
)
from tlite.functional.random import fold_in, random_bits, shuffled
from tlite.functional.sampling import (
    apply_temperature,
    greedy,
    keep_top_k,
    keep_top_p,
    sample,
)
from tlite.functional.sharding import by_example
