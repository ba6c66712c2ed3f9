"""Fields of config.json and of tlite's configs, side by side: one table a family, both ways.

A row has a field of theirs and the path of one of ours, with what holds where theirs is left out
(without it the field must be there). Fields of theirs joined by + have to be the same; of ours
joined by + all are set, where the model has them, and written is whether one of them is.
"""

from dataclasses import dataclass
from typing import Any

from tlite.models import Learned, Pool, Projection, Relative, Rotary, Sinusoidal

Table = dict[str, str | tuple[str, Any]]


@dataclass(frozen=True)
class Fields:
    """How a family describes its models."""

    stem: str
    """What the names of its architectures begin with."""
    endings: dict[str, tuple[str, ...]]
    """How they go on, for each kind of model; the first is written."""
    table: Table
    constants: dict[str, Any]
    """Parts and fields of ours that are the same for all its models that have them."""


GENERATOR = {"generator": ("ForCausalLM", "LMHeadModel", "Model", "TextModel")}
ENCODER = {
    "masked": ("ForMaskedLM", "ForPreTraining"),
    "classifier": ("ForSequenceClassification",),
    "encoder": ("Model",),
}
SEQ2SEQ = {"seq2seq": ("ForConditionalGeneration", "WithLMHeadModel", "Model")}

SIZES: Table = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "width",
    "intermediate_size": "feed_forward.mlp_dim",
    "num_hidden_layers": "num_blocks",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "context",
}
# In place of default sizes, which differ between families, the shapes of arrays tell.
MISTRAL: Table = SIZES | {
    "rms_norm_eps": ("norm.epsilon", 1e-6),
    "num_key_value_heads": ("attention.num_kv_heads", None),
    "head_dim": ("attention.head_dim", None),
    "hidden_act": ("feed_forward.activation", "silu"),
}
LLAMA: Table = MISTRAL | {
    "attention_bias": ("attention.qkv_bias+attention.bias", False),
    "mlp_bias": ("feed_forward.bias", False),
}
GEMMA: Table = LLAMA | {
    "hidden_activation": ("feed_forward.activation", "gelu_pytorch_tanh"),
    "query_pre_attn_scalar": ("attention.scale", 256),
    "final_logit_softcapping": ("head.softcap", None),
}
LLAMA_IS = {
    "norm.method": "rms", "block.pre_norm": True, "positions": Rotary(), "dropout": 0.0,
    "feed_forward.gated": True, "bias": False,
}  # fmt: skip
GEMMA_IS = LLAMA_IS | {
    "norm.offset": 1.0, "block.output_norms": True, "embedding.scale": True,
}  # fmt: skip
BERT: Table = SIZES | {
    "hidden_act": ("feed_forward.activation+projection.activation", "gelu"),
    "max_position_embeddings": ("context", 512),
    "type_vocab_size": ("embedding.type_vocab_size", 2),
    "layer_norm_eps": ("norm.epsilon", 1e-12),
    "hidden_dropout_prob": ("dropout", 0.1),
}
BERT_IS = {
    "positions": Learned(), "embedding.norm": True, "attention.qkv_bias": True,
    "pool": Pool("first", Projection("tanh", norm=False)),
}  # fmt: skip
BART: Table = {
    "vocab_size": "vocabulary_size+source_vocabulary_size",
    "d_model": "width",
    "encoder_layers": "num_blocks",
    "decoder_layers": "decoder_blocks",
    "encoder_attention_heads+decoder_attention_heads": "num_heads",
    "encoder_ffn_dim+decoder_ffn_dim": "feed_forward.mlp_dim",
    "max_position_embeddings": "context",
    "activation_function": ("feed_forward.activation", "gelu"),
    "scale_embedding": ("embedding.scale", False),
    "dropout": ("dropout", 0.1),
    "activation_dropout": ("feed_forward.dropout", 0.0),
    "pad_token_id": "special_tokens.pad_id",
    "decoder_start_token_id": "special_tokens.bos_id",
    "eos_token_id": ("special_tokens.eos_id", None),
}

FIELDS = {
    "gpt2": Fields(
        "GPT2",
        {"generator": ("LMHeadModel", "Model")},
        {
            "vocab_size": "vocabulary_size",
            "n_positions": ("context", 1024),
            "n_embd": "width",
            "n_head": "num_heads",
            "n_layer": "num_blocks",
            "n_inner": ("feed_forward.mlp_dim", None),
            "activation_function": ("feed_forward.activation", "gelu_new"),
            "layer_norm_epsilon": ("norm.epsilon", 1e-5),
            "resid_pdrop": ("dropout", 0.1),
        },
        {
            "block.pre_norm": True, "positions": Learned(), "attention.qkv_bias": True,
            "head.bias": False,
        },
    ),
    "llama": Fields("Llama", GENERATOR, LLAMA, LLAMA_IS),
    "mistral": Fields("Mistral", GENERATOR, MISTRAL, LLAMA_IS),
    "qwen2": Fields("Qwen2", GENERATOR, MISTRAL, LLAMA_IS | {"attention.qkv_bias": True}),
    "qwen3": Fields("Qwen3", GENERATOR, LLAMA, LLAMA_IS | {"attention.query_key_norm": True}),
    "gemma2": Fields(
        "Gemma2",
        GENERATOR,
        GEMMA | {"attn_logit_softcapping": ("attention.softcap", None)},
        GEMMA_IS,
    ),
    "gemma3_text": Fields(
        "Gemma3", GENERATOR, GEMMA, GEMMA_IS | {"attention.query_key_norm": True}
    ),
    "gpt_neox": Fields(
        "GPTNeoX",
        GENERATOR,
        SIZES | {
            "hidden_act": ("feed_forward.activation", "gelu"),
            "layer_norm_eps": ("norm.epsilon", 1e-5),
            "hidden_dropout": ("dropout", 0.0),
            "attention_bias": ("attention.qkv_bias+attention.bias", True),
        },
        {"block.pre_norm": True, "positions": Rotary(), "head.bias": False},
    ),
    "bert": Fields("Bert", ENCODER, BERT, BERT_IS),
    "roberta": Fields(
        "Roberta", ENCODER, BERT | {"hidden_act": ("feed_forward.activation", "gelu")}, BERT_IS
    ),
    "distilbert": Fields(
        "DistilBert",
        ENCODER,
        {
            "vocab_size": "vocabulary_size",
            "dim": "width",
            "hidden_dim": "feed_forward.mlp_dim",
            "n_layers": "num_blocks",
            "n_heads": "num_heads",
            "activation": ("feed_forward.activation+projection.activation", "gelu"),
            "max_position_embeddings": ("context", 512),
            "dropout": ("dropout", 0.1),
        },
        BERT_IS | {"norm.epsilon": 1e-12, "pool": Pool("first", Projection("relu", norm=False))},
    ),
    "modernbert": Fields(
        "ModernBert",
        ENCODER,
        SIZES | {
            "hidden_activation": ("feed_forward.activation", "gelu"),
            "norm_eps+layer_norm_eps": ("norm.epsilon", 1e-5),
            "norm_bias": ("norm.bias", False),
            "attention_bias": ("attention.qkv_bias+attention.bias", False),
            "mlp_bias": ("feed_forward.bias", False),
            "mlp_dropout": ("feed_forward.dropout", 0.0),
            "classifier_pooling": ("pool.method", "cls"),
            "classifier_activation": ("projection.activation+pool.projection.activation", "gelu"),
            "classifier_bias": ("projection.bias+pool.projection.bias", False),
            "decoder_bias": ("head_bias", True),
        },
        {
            "block.pre_norm": True, "block.first_norm": False, "positions": Rotary(),
            "feed_forward.gated": True, "embedding.norm": True, "dropout": 0.0, "bias": False,
            "pool": Pool("first", Projection()),
        },
    ),
    "marian": Fields(
        "Marian",
        {"seq2seq": ("MTModel", "Model")},
        BART,
        {"attention.qkv_bias": True, "positions": Sinusoidal(split=True)},
    ),
    "bart": Fields(
        "Bart",
        SEQ2SEQ,
        BART,
        {"attention.qkv_bias": True, "positions": Learned(offset=2), "embedding.norm": True},
    ),
    "t5": Fields(
        "T5",
        SEQ2SEQ,
        {
            "vocab_size": "vocabulary_size+source_vocabulary_size",
            "d_model": "width",
            "d_kv": ("attention.head_dim", 64),
            "d_ff": "feed_forward.mlp_dim",
            "num_layers": "num_blocks",
            "num_decoder_layers": ("decoder_blocks", None),
            "num_heads": "num_heads",
            "n_positions": ("context", 512),
            "relative_attention_num_buckets": ("positions.num_buckets", 32),
            "relative_attention_max_distance": ("positions.max_distance", 128),
            "layer_norm_epsilon": ("norm.epsilon", 1e-6),
            "dropout_rate": ("dropout", 0.1),
            "pad_token_id": ("special_tokens.pad_id", 0),
            "eos_token_id": ("special_tokens.eos_id", 1),
        },
        {
            "norm.method": "rms", "block.pre_norm": True, "positions": Relative(),
            "attention.scale": 1.0, "bias": False, "embedding.scale": False,
        },
    ),
}  # fmt: skip
