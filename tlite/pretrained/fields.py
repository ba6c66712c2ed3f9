"""Fields of config.json and of tlite's configs, side by side: one table a family, both ways.

A row has a field of theirs, the path of one of ours, and what holds where theirs is left out
(without it the field must be there). Fields of theirs joined by + have to be the same; of ours
joined by + all are set, and written is whether one of them is.
"""

from dataclasses import dataclass, field
from typing import Any

from tlite.models import Learned, Pool, Projection, Relative, Rotary, Sinusoidal

Row = tuple[str, str] | tuple[str, str, Any]


@dataclass(frozen=True)
class Fields:
    """How a family describes its models."""

    stem: str
    """What the names of its architectures begin with."""
    endings: dict[str, tuple[str, ...]]
    """How they go on, for each kind of model; the first is written."""
    table: tuple[Row, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    """Parts and fields of ours that are the same for all its models."""
    pool: Pool | None = None
    """That of its classifiers, if it has any."""
    fixed: dict[str, tuple] = field(default_factory=dict)
    """Fields of theirs of which only these values are known."""
    others: str = ""
    """Fields of theirs that say nothing about what is computed."""


_DECODER = {"generator": ("ForCausalLM", "LMHeadModel", "Model", "TextModel")}
_ENCODER = {
    "masked": ("ForMaskedLM", "ForPreTraining"),
    "classifier": ("ForSequenceClassification",),
    "encoder": ("Model",),
}
_SIZES = (
    ("vocab_size", "vocabulary_size"),
    ("hidden_size", "width"),
    ("intermediate_size", "feed_forward.hidden_width"),
    ("num_hidden_layers", "num_blocks"),
    ("num_attention_heads", "num_heads"),
)
_DECODER_SIZES = (
    *_SIZES,
    ("max_position_embeddings", "context"),
    ("rms_norm_eps", "norm.epsilon", 1e-6),
)
_BIASES = ("attention_bias", "attention.input_bias+attention.bias", False)
_MISTRAL = (
    *_DECODER_SIZES,
    ("num_key_value_heads", "attention.key_heads"),
    ("head_dim", "attention.head_width", None),
    ("hidden_act", "feed_forward.activation", "silu"),
)
_GEMMA = (
    *_DECODER_SIZES,
    ("num_key_value_heads", "attention.key_heads"),
    ("head_dim", "attention.head_width"),
    ("hidden_activation", "feed_forward.activation", "gelu_pytorch_tanh"),
    _BIASES,
    ("query_pre_attn_scalar", "attention.scale", 256),
    ("final_logit_softcapping", "head.softcap", None),
)
_LLAMA_IS = {
    "norm.method": "rms", "block.pre_norm": True, "positions": Rotary(), "dropout": 0.0,
    "feed_forward.gated": True, "bias": False,
}  # fmt: skip
_GEMMA_IS = _LLAMA_IS | {
    "norm.offset": 1.0, "block.output_norms": True, "embedding.scale": True,
}  # fmt: skip
_BERT = (
    *_SIZES,
    ("hidden_act", "feed_forward.activation", "gelu"),
    ("max_position_embeddings", "context", 512),
    ("type_vocab_size", "embedding.segments", 2),
    ("layer_norm_eps", "norm.epsilon", 1e-12),
    ("hidden_dropout_prob", "dropout", 0.1),
)
_BERT_IS = {"positions": Learned(), "embedding.norm": True, "attention.input_bias": True}
_FIRST = Pool("first", Projection("tanh", norm=False))
_BART = (
    ("vocab_size", "vocabulary_size+source_vocabulary_size"),
    ("d_model", "width"),
    ("encoder_layers", "num_blocks"),
    ("decoder_layers", "decoder_blocks"),
    ("encoder_attention_heads+decoder_attention_heads", "num_heads"),
    ("encoder_ffn_dim+decoder_ffn_dim", "feed_forward.hidden_width"),
    ("max_position_embeddings", "context"),
    ("activation_function", "feed_forward.activation", "gelu"),
    ("scale_embedding", "embedding.scale", False),
    ("dropout", "dropout", 0.1),
    ("activation_dropout", "feed_forward.dropout", 0.0),
    ("pad_token_id", "symbols.pad"),
    ("decoder_start_token_id", "symbols.start"),
    ("eos_token_id", "symbols.end", None),
)
_OLD_BART = {
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
    "add_bias_logits": (False,),
}
_BART_OTHERS = "num_hidden_layers extra_pos_embeddings force_bos_token_to_be_generated"

FIELDS = {
    "gpt2": Fields(
        "GPT2",
        {"generator": ("LMHeadModel", "Model")},
        (
            ("vocab_size", "vocabulary_size"),
            ("n_positions", "context", 1024),
            ("n_embd", "width"),
            ("n_head", "num_heads"),
            ("n_layer", "num_blocks"),
            ("n_inner", "feed_forward.hidden_width", None),
            ("activation_function", "feed_forward.activation", "gelu_new"),
            ("layer_norm_epsilon", "norm.epsilon", 1e-5),
            ("resid_pdrop", "dropout", 0.1),
        ),
        {
            "block.pre_norm": True,
            "positions": Learned(),
            "attention.input_bias": True,
            "head.bias": False,
        },
        fixed={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        others="n_ctx embd_pdrop attn_pdrop reorder_and_upcast_attn n_special "
        "predict_special_tokens",
    ),
    "llama": Fields(
        "Llama",
        _DECODER,
        (
            *_DECODER_SIZES,
            ("num_key_value_heads", "attention.key_heads", None),
            ("head_dim", "attention.head_width", None),
            ("hidden_act", "feed_forward.activation", "silu"),
            _BIASES,
            ("mlp_bias", "feed_forward.bias", False),
        ),
        _LLAMA_IS,
        fixed={"rope_interleaved": (False,)},
        others="pretraining_tp is_llama_config",
    ),
    "mistral": Fields("Mistral", _DECODER, _MISTRAL, _LLAMA_IS),
    "qwen2": Fields(
        "Qwen2",
        _DECODER,
        _MISTRAL,
        _LLAMA_IS | {"attention.input_bias": True},
        fixed={"use_mrope": (False,)},
    ),
    "qwen3": Fields(
        "Qwen3",
        _DECODER,
        (
            *_DECODER_SIZES,
            ("num_key_value_heads", "attention.key_heads"),
            ("head_dim", "attention.head_width"),
            ("hidden_act", "feed_forward.activation", "silu"),
            _BIASES,
        ),
        _LLAMA_IS | {"attention.query_key_norm": True},
    ),
    "gemma2": Fields(
        "Gemma2",
        _DECODER,
        (*_GEMMA, ("attn_logit_softcapping", "attention.softcap", None)),
        _GEMMA_IS,
        fixed={"use_bidirectional_attention": (None, False)},
        others="hidden_act cache_implementation sliding_window_size",
    ),
    "gemma3_text": Fields(
        "Gemma3",
        _DECODER,
        _GEMMA,
        _GEMMA_IS | {"attention.query_key_norm": True},
        fixed={"use_bidirectional_attention": (None, False), "attn_logit_softcapping": (None,)},
        others="hidden_act cache_implementation",
    ),
    "gpt_neox": Fields(
        "GPTNeoX",
        {"generator": ("ForCausalLM", "Model")},
        (
            *_SIZES,
            ("max_position_embeddings", "context"),
            ("hidden_act", "feed_forward.activation", "gelu"),
            ("layer_norm_eps", "norm.epsilon", 1e-5),
            ("hidden_dropout", "dropout", 0.0),
            ("attention_bias", "attention.input_bias+attention.bias", True),
        ),
        {"block.pre_norm": True, "positions": Rotary(), "head.bias": False},
        others="rotary_emb_base rotary_pct use_parallel_residual",
    ),
    "bert": Fields(
        "Bert",
        _ENCODER,
        _BERT,
        _BERT_IS,
        _FIRST,
        others="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
        "pooler_size_per_head pooler_type",
    ),
    "roberta": Fields("Roberta", _ENCODER, _BERT, _BERT_IS, _FIRST),
    "distilbert": Fields(
        "DistilBert",
        _ENCODER,
        (
            ("vocab_size", "vocabulary_size"),
            ("dim", "width"),
            ("hidden_dim", "feed_forward.hidden_width"),
            ("n_layers", "num_blocks"),
            ("n_heads", "num_heads"),
            ("activation", "feed_forward.activation", "gelu"),
            ("max_position_embeddings", "context", 512),
            ("dropout", "dropout", 0.1),
        ),
        _BERT_IS | {"norm.epsilon": 1e-12},
        Pool("first", Projection("relu", norm=False)),
        others="sinusoidal_pos_embds tie_weights_",
    ),
    "modernbert": Fields(
        "ModernBert",
        _ENCODER,
        (
            *_SIZES,
            ("hidden_activation", "feed_forward.activation", "gelu"),
            ("max_position_embeddings", "context"),
            ("norm_eps", "norm.epsilon", 1e-5),
            ("norm_bias", "norm.bias", False),
            _BIASES,
            ("mlp_bias", "feed_forward.bias", False),
            ("mlp_dropout", "feed_forward.dropout", 0.0),
        ),
        {
            "block.pre_norm": True,
            "block.first_norm": False,
            "positions": Rotary(),
            "feed_forward.gated": True,
            "embedding.norm": True,
            "dropout": 0.0,
            "bias": False,
        },
        Pool("first", Projection()),
        fixed={"position_embedding_type": ("absolute", "sans_pos")},
        others="classifier_activation classifier_bias classifier_pooling decoder_bias "
        "local_attention layer_norm_eps initializer_cutoff_factor sparse_prediction "
        "reference_compile sparse_pred_ignore_index deterministic_flash_attn "
        "repad_logits_with_grad",
    ),
    "marian": Fields(
        "Marian",
        {"seq2seq": ("MTModel", "Model")},
        _BART,
        {"attention.input_bias": True, "positions": Sinusoidal(split=True)},
        fixed=_OLD_BART | {"static_position_embeddings": (True,), "normalize_embedding": (False,)},
        others=f"{_BART_OTHERS} share_encoder_decoder_embeddings decoder_vocab_size",
    ),
    "bart": Fields(
        "Bart",
        {"seq2seq": ("ForConditionalGeneration", "Model")},
        _BART,
        {"attention.input_bias": True, "positions": Learned(offset=2), "embedding.norm": True},
        fixed=_OLD_BART | {"static_position_embeddings": (False,), "normalize_embedding": (True,)},
        others=_BART_OTHERS,
    ),
    "t5": Fields(
        "T5",
        {"seq2seq": ("ForConditionalGeneration", "WithLMHeadModel")},
        (
            ("vocab_size", "vocabulary_size+source_vocabulary_size"),
            ("d_model", "width"),
            ("d_kv", "attention.head_width", 64),
            ("d_ff", "feed_forward.hidden_width"),
            ("num_layers", "num_blocks"),
            ("num_decoder_layers", "decoder_blocks", None),
            ("num_heads", "num_heads"),
            ("n_positions", "context", 512),
            ("relative_attention_num_buckets", "positions.buckets", 32),
            ("relative_attention_max_distance", "positions.distance", 128),
            ("layer_norm_epsilon", "norm.epsilon", 1e-6),
            ("dropout_rate", "dropout", 0.1),
            ("pad_token_id", "symbols.pad", 0),
            ("eos_token_id", "symbols.end", 1),
        ),
        {
            "norm.method": "rms",
            "block.pre_norm": True,
            "positions": Relative(),
            "attention.scale": 1.0,
            "bias": False,
            "embedding.scale": False,
        },
        others="feed_forward_proj dense_act_fn is_gated_act scale_decoder_outputs "
        "initializer_factor",
    ),
}
