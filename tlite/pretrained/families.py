"""Families of Hugging Face models: names of their fields and layers in tlite, used in both ways.

A row of a table of fields maps a field of config.json to the path of a tlite field, with a default
if config.json may lack the field. Hugging Face fields joined by + must be equal; tlite fields
joined by + are all set, if the model has them, and a switch is written if any of them is on.

A row of a table of layers maps a tlite layer to a Hugging Face layer; `*` is a block's number, and
braces are expanded as in a shell. A `kernel` (in, out) is stored as its transpose `weight`; a
`scale` and a `table` are stored as `weight`, a `bias` as `bias`. Layers joined by + are stored as
one, side by side. A row may also name one array; the last row for an array holds.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tlite.models import Learned, Pool, Projection, Relative, Rotary, Sinusoidal

Fields = dict[str, Any]
Layers = dict[str, str]


@dataclass(frozen=True)
class Family:
    """Fields and layers of a family of models."""

    stem: str
    """Prefix of the names of its architectures."""
    kinds: dict[str, tuple[str, ...]]
    """Endings of these names for each kind of model; the first is written."""
    fields: Fields
    constants: Fields
    """tlite fields that are the same for all models that have them."""
    layers: Layers
    heads: dict[str, Layers]
    """Layers that only one kind of model has."""
    prefix: str = "model."
    """Prefix of `layers` in a model with a head; a bare model has none."""
    output: str = "lm_head"
    """Output layer, whose weight may be a copy of the embedding's."""
    variants: dict[str, Layers] = field(default_factory=dict)
    """Rows that replace others if the model has a layer with this in its name."""
    required: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Hugging Face fields that have to be absent, None or one of these values."""
    is_conv: bool = False
    """Kernels of blocks are stored as (in, out), in a "Conv1D"."""
    is_half_split: bool = False
    """Rotary embeddings pair columns (i, i + K/2) of a head; in tlite they pair (2i, 2i+1)."""
    is_joined_by_head: bool = False
    """Joined layers are side by side within each head."""

    def architecture(self, kind: str) -> str:
        """Return the name of a model's class in transformers."""
        return self.stem + self.kinds[kind][0]

    @property
    def copies(self) -> Layers:
        """Arrays that a checkpoint may have a second time: {name of the copy: name}."""
        embedding = self.layers.get("embedding", "shared")
        sides = ["encoder.embed_tokens", "decoder.embed_tokens"] if embedding == "shared" else []
        copies = {f"{layer}.weight": f"{embedding}.weight" for layer in [*sides, self.output]}
        bias = self.heads.get("masked", {}).get("head_bias", f"{self.output}.bias")
        return copies if bias == f"{self.output}.bias" else copies | {f"{self.output}.bias": bias}


def expand(table: Layers) -> Layers:
    """Expand alternatives in braces: {"{a,b}.x": "y_{c,d}"} is {"a.x": "y_c", "b.x": "y_d"}."""

    def names(name: str) -> Iterator[str]:
        alternatives = (part.split(",") for part in re.split("[{}]", name))
        return map("".join, itertools.product(*alternatives))

    rows = (zip(names(tlite), names(hf), strict=True) for tlite, hf in table.items())
    return dict(itertools.chain.from_iterable(rows))


def on_both_sides(table: Layers) -> Layers:
    """Repeat rows for the encoder and the decoder; LAST is the index of a block's last layer."""
    return {
        f"{side}.{tlite}": f"{side}.{hf}".replace("LAST", last)
        for side, last in (("encoder", "1"), ("decoder", "2"))
        for tlite, hf in expand(table).items()
    }


# Arrays that tlite does not use, but transformers does; buffers of old checkpoints.
UNUSED = re.compile(r"(pooler\.dense|cls\.seq_relationship)\.(weight|bias)")
BUFFERS = re.compile(
    r"(.*\.)?rotary_emb\.inv_freq|.*\.(attn|attention)\.(masked_)?bias|embeddings\.position_ids"
    r"|(en|de)coder\.embed_positions\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)

FAMILIES: dict[str, Family] = {}
GENERATOR = {"generator": ("ForCausalLM", "LMHeadModel", "Model", "TextModel")}
ENCODER = {
    "masked": ("ForMaskedLM", "ForPreTraining"), "classifier": ("ForSequenceClassification",),
    "encoder": ("Model",),
}  # fmt: skip
SEQ2SEQ = {"seq2seq": ("ForConditionalGeneration", "WithLMHeadModel", "Model")}
QK_NORM, QKV_BIAS = {"attention.query_key_norm": True}, {"attention.qkv_bias": True}
LM_HEAD = {"generator": {"head": "lm_head"}}

# GPT-2 and GPT-NeoX

FAMILIES["gpt2"] = Family(
    "GPT2", {"generator": ("LMHeadModel", "Model")}, {
        "vocab_size": "vocabulary_size", "n_positions": ("context", 1024), "n_embd": "width",
        "n_head": "num_heads", "n_layer": "num_blocks", "n_inner": ("feed_forward.mlp_dim", None),
        "activation_function": ("feed_forward.activation", "gelu_new"),
        "layer_norm_epsilon": ("norm.epsilon", 1e-5), "resid_pdrop+embd_pdrop": ("dropout", 0.1),
        "attn_pdrop": ("attention.dropout", 0.1),
    },
    QKV_BIAS | {"block.pre_norm": True, "positions": Learned(), "head.bias": False},
    expand({
        "{embedding,positions}": "{wte,wpe}", "norm": "ln_f",
        "blocks.*.{attention,feed_forward}_norm": "h.*.ln_{1,2}",
        "blocks.*.attention.query+key+value": "h.*.attn.c_attn",
        "blocks.*.attention.output": "h.*.attn.c_proj",
        "blocks.*.feed_forward.{hidden,output}": "h.*.mlp.c_{fc,proj}",
    }),
    LM_HEAD,
    prefix="transformer.", required={"scale_attn_weights": (True,)}, is_conv=True,
)  # fmt: skip
SIZES: Fields = {  # without defaults: those of transformers differ between families
    "vocab_size": "vocabulary_size", "hidden_size": "width", "num_hidden_layers": "num_blocks",
    "num_attention_heads": "num_heads", "intermediate_size": "feed_forward.mlp_dim",
    "max_position_embeddings": "context",
}  # fmt: skip
FAMILIES["gpt_neox"] = Family(
    "GPTNeoX", GENERATOR, SIZES | {
        "hidden_act": ("feed_forward.activation", "gelu"), "hidden_dropout": ("dropout", 0.0),
        "layer_norm_eps": ("norm.epsilon", 1e-5),
        "attention_bias": ("attention.qkv_bias+attention.bias", True),
        "attention_dropout": ("attention.dropout", 0.0),
    },
    {"block.pre_norm": True, "positions": Rotary(), "head.bias": False},
    expand({
        "embedding": "embed_in", "norm": "final_layer_norm",
        "blocks.*.{attention,feed_forward}_norm": "layers.*.{input,post_attention}_layernorm",
        "blocks.*.attention.query+key+value": "layers.*.attention.query_key_value",
        "blocks.*.attention.output": "layers.*.attention.dense",
        "blocks.*.feed_forward.{hidden,output}": "layers.*.mlp.dense_{h_to_4h,4h_to_h}",
    }),
    {"generator": {"head": "embed_out"}},
    prefix="gpt_neox.", output="embed_out", is_half_split=True, is_joined_by_head=True,
)  # fmt: skip

# Llama and its relatives

MISTRAL: Fields = SIZES | {
    "num_key_value_heads": ("attention.num_kv_heads", None),
    "head_dim": ("attention.head_dim", None), "rms_norm_eps": ("norm.epsilon", 1e-6),
    "hidden_act": ("feed_forward.activation", "silu"),
    "attention_dropout": ("attention.dropout", 0.0),
}  # fmt: skip
LLAMA: Fields = MISTRAL | {
    "attention_bias": ("attention.qkv_bias+attention.bias", False),
    "mlp_bias": ("feed_forward.bias", False),
}
GEMMA: Fields = LLAMA | {
    "hidden_activation": ("feed_forward.activation", "gelu_pytorch_tanh"),
    "query_pre_attn_scalar": ("attention.scale", 256),
    "final_logit_softcapping": ("head.softcap", None),
}
GEMMA2: Fields = GEMMA | {
    "attn_logit_softcapping": ("attention.softcap", 50.0),
    "final_logit_softcapping": ("head.softcap", 30.0),
}
LLAMA_CONSTANTS: Fields = {
    "norm.method": "rms", "block.pre_norm": True, "positions": Rotary(), "dropout": 0.0,
    "feed_forward.gated": True, "bias": False,
}  # fmt: skip
GEMMA_CONSTANTS: Fields = LLAMA_CONSTANTS | {
    "norm.offset": 1.0, "block.output_norms": True, "embedding.scale": True,
}  # fmt: skip
LLAMA_LAYERS = expand({
    "embedding": "embed_tokens", "norm": "norm",
    "blocks.*.{attention,feed_forward}_norm": "layers.*.{input,post_attention}_layernorm",
    "blocks.*.attention.{query,key,value,output}": "layers.*.self_attn.{q,k,v,o}_proj",
    "blocks.*.attention.{query,key}_norm": "layers.*.self_attn.{q,k}_norm",
    "blocks.*.feed_forward.{gate,hidden,output}": "layers.*.mlp.{gate,up,down}_proj",
})  # fmt: skip
GEMMA_LAYERS = LLAMA_LAYERS | expand({
    "blocks.*.attention_output_norm": "layers.*.post_attention_layernorm",
    "blocks.*.feed_forward{,_output}_norm": "layers.*.{pre,post}_feedforward_layernorm",
})  # fmt: skip
for _name, _stem, _fields, _constants, _layers in (
    ("llama", "Llama", LLAMA, LLAMA_CONSTANTS, LLAMA_LAYERS),
    ("mistral", "Mistral", MISTRAL, LLAMA_CONSTANTS, LLAMA_LAYERS),
    ("qwen2", "Qwen2", MISTRAL, LLAMA_CONSTANTS | QKV_BIAS, LLAMA_LAYERS),
    ("qwen3", "Qwen3", LLAMA, LLAMA_CONSTANTS | QK_NORM, LLAMA_LAYERS),
    ("gemma2", "Gemma2", GEMMA2, GEMMA_CONSTANTS, GEMMA_LAYERS),
    ("gemma3_text", "Gemma3", GEMMA, GEMMA_CONSTANTS | QK_NORM, GEMMA_LAYERS),
):
    FAMILIES[_name] = Family(
        _stem, GENERATOR, _fields, _constants, _layers, LM_HEAD, is_half_split=True
    )

# Encoders

BERT_FIELDS: Fields = SIZES | {
    "hidden_act": ("feed_forward.activation+projection.activation", "gelu"),
    "max_position_embeddings": ("context", 512), "layer_norm_eps": ("norm.epsilon", 1e-12),
    "type_vocab_size": ("embedding.type_vocab_size", 2), "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention.dropout", 0.1),
}  # fmt: skip
BERT_CONSTANTS: Fields = QKV_BIAS | {
    "positions": Learned(), "embedding.norm": True,
    "pool": Pool("first", Projection("tanh", norm=False)),
}  # fmt: skip
BERT_LAYERS = expand({
    "{embedding,positions,token_types}": "embeddings.{word,position,token_type}_embeddings",
    "embedding_norm": "embeddings.LayerNorm", "projection": "pooler.dense",
    "blocks.*.attention.{query,key,value}": "encoder.layer.*.attention.self.{query,key,value}",
    "blocks.*.attention{.output,_norm}": "encoder.layer.*.attention.output.{dense,LayerNorm}",
    "blocks.*.feed_forward.{hidden,output}": "encoder.layer.*.{intermediate,output}.dense",
    "blocks.*.feed_forward_norm": "encoder.layer.*.output.LayerNorm",
})  # fmt: skip
ABSOLUTE = {"position_embedding_type": ("absolute", "sans_pos")}  # sans_pos: ModernBERT's
FAMILIES["bert"] = Family(
    "Bert", ENCODER, BERT_FIELDS, BERT_CONSTANTS, BERT_LAYERS,
    {
        "masked": expand({
            "projection{,_norm}": "cls.predictions.transform.{dense,LayerNorm}",
            "head_bias": "cls.predictions.bias",
        }),
        "classifier": {"head": "classifier"},
    },
    prefix="bert.", output="cls.predictions.decoder", required=ABSOLUTE,
)  # fmt: skip
FAMILIES["roberta"] = Family(
    "Roberta", ENCODER, BERT_FIELDS | {"hidden_act": ("feed_forward.activation", "gelu")},
    BERT_CONSTANTS, BERT_LAYERS,
    {
        "masked": expand({
            "projection{,_norm}": "lm_head.{dense,layer_norm}", "head_bias": "lm_head.bias",
        }),
        "classifier": expand({"{projection,head}": "classifier.{dense,out_proj}"}),
    },
    prefix="roberta.", output="lm_head.decoder", required=ABSOLUTE,
)  # fmt: skip
FAMILIES["distilbert"] = Family(
    "DistilBert", ENCODER,
    {
        "vocab_size": "vocabulary_size", "dim": "width", "hidden_dim": "feed_forward.mlp_dim",
        "n_layers": "num_blocks", "n_heads": "num_heads", "dropout": ("dropout", 0.1),
        "activation": ("feed_forward.activation+projection.activation", "gelu"),
        "max_position_embeddings": ("context", 512),
        "attention_dropout": ("attention.dropout", 0.1),
    },
    BERT_CONSTANTS | {
        "norm.epsilon": 1e-12, "pool": Pool("first", Projection("relu", norm=False)),
    },
    expand({
        "{embedding,positions}": "embeddings.{word,position}_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        "blocks.*.attention.{query,key,value,output}":
            "transformer.layer.*.attention.{q,k,v,out}_lin",
        "blocks.*.{attention,feed_forward}_norm": "transformer.layer.*.{sa,output}_layer_norm",
        "blocks.*.feed_forward.{hidden,output}": "transformer.layer.*.ffn.{lin1,lin2}",
    }),
    {
        "masked": expand({
            "projection{,_norm}": "vocab_{transform,layer_norm}",
            "head_bias": "vocab_projector.bias",
        }),
        "classifier": {"projection": "pre_classifier", "head": "classifier"},
    },
    prefix="distilbert.", output="vocab_projector",
)  # fmt: skip
FAMILIES["modernbert"] = Family(
    "ModernBert", ENCODER, SIZES | {
        "hidden_activation": ("feed_forward.activation", "gelu"),
        "norm_eps+layer_norm_eps": ("norm.epsilon", 1e-5), "norm_bias": ("norm.bias", False),
        "attention_bias": ("attention.qkv_bias+attention.bias", False),
        "mlp_bias": ("feed_forward.bias", False), "mlp_dropout": ("feed_forward.dropout", 0.0),
        "classifier_pooling": ("pool.method", "cls"), "decoder_bias": ("head_bias", True),
        "classifier_activation": ("projection.activation+pool.projection.activation", "gelu"),
        "classifier_bias": ("projection.bias+pool.projection.bias", False),
    },
    {
        "block.pre_norm": True, "block.first_norm": False, "positions": Rotary(),
        "feed_forward.gated": True, "embedding.norm": True, "dropout": 0.0, "bias": False,
        "pool": Pool("first", Projection()),
    },
    expand({
        "embedding{,_norm}": "embeddings.{tok_embeddings,norm}", "norm": "final_norm",
        "blocks.*.{attention,feed_forward}_norm": "layers.*.{attn,mlp}_norm",
        "blocks.*.attention.query+key+value": "layers.*.attn.Wqkv",
        "blocks.*.{attention,feed_forward}.output": "layers.*.{attn,mlp}.Wo",
        "blocks.*.feed_forward.gate+hidden": "layers.*.mlp.Wi",
    }),
    {
        "masked": expand({"projection{,_norm}": "head.{dense,norm}", "head_bias": "decoder.bias"}),
        "classifier": expand({"projection{,_norm}": "head.{dense,norm}", "head": "classifier"}),
    },
    output="decoder", required=ABSOLUTE, is_half_split=True,
)  # fmt: skip

# Encoder-decoders

BART_FIELDS: Fields = {
    "vocab_size": "vocabulary_size+source_vocabulary_size", "d_model": "width",
    "encoder_layers": "num_blocks", "decoder_layers": "decoder_blocks",
    "encoder_attention_heads+decoder_attention_heads": "num_heads",
    "encoder_ffn_dim+decoder_ffn_dim": "feed_forward.mlp_dim",
    "max_position_embeddings": "context", "scale_embedding": ("embedding.scale", False),
    "activation_function": ("feed_forward.activation", "gelu"), "dropout": ("dropout", 0.1),
    "activation_dropout": ("feed_forward.dropout", 0.0),
    "attention_dropout": ("attention.dropout", 0.0), "pad_token_id": "special_tokens.pad_id",
    "decoder_start_token_id": "special_tokens.bos_id",
    "eos_token_id": ("special_tokens.eos_id", None),
}  # fmt: skip
BART_LAYERS = {"encoder.embedding": "shared"} | on_both_sides({
    "positions": "embed_positions",
    "embedding_norm": "layernorm_embedding",
    "blocks.*.{,cross_}attention.{query,key,value,output}":
        "layers.*.{self,encoder}_attn.{q,k,v,out}_proj",
    "blocks.*.{,cross_}attention_norm": "layers.*.{self,encoder}_attn_layer_norm",
    "blocks.*.feed_forward.{hidden,output}": "layers.*.{fc1,fc2}",
    "blocks.*.feed_forward_norm": "layers.*.final_layer_norm",
})  # fmt: skip
BART_HEAD = {
    "head": "lm_head", "head.bias": "final_logits_bias", "head_bias": "final_logits_bias",
}  # fmt: skip
SEPARATE = expand({"{encoder,decoder}.embedding": "{encoder,decoder}.embed_tokens"})
FAMILIES["marian"] = Family(
    "Marian", {"seq2seq": ("MTModel", "Model")}, BART_FIELDS,
    QKV_BIAS | {"positions": Sinusoidal(split=True)}, BART_LAYERS, {"seq2seq": BART_HEAD},
    variants={"decoder.embedding": SEPARATE}, required={"static_position_embeddings": (True,)},
)  # fmt: skip
FAMILIES["bart"] = Family(
    "Bart", SEQ2SEQ, BART_FIELDS,
    QKV_BIAS | {"positions": Learned(offset=2), "embedding.norm": True}, BART_LAYERS,
    {"seq2seq": BART_HEAD}, required={"normalize_embedding": (True,)},
)  # fmt: skip
FAMILIES["t5"] = Family(
    "T5", SEQ2SEQ, {
        "vocab_size": "vocabulary_size+source_vocabulary_size", "d_model": "width",
        "d_kv": ("attention.head_dim", 64), "d_ff": "feed_forward.mlp_dim",
        "num_layers": "num_blocks", "num_decoder_layers": ("decoder_blocks", None),
        "num_heads": "num_heads", "n_positions": ("context", 512),
        "relative_attention_num_buckets": ("positions.num_buckets", 32),
        "relative_attention_max_distance": ("positions.max_distance", 128),
        "layer_norm_epsilon": ("norm.epsilon", 1e-6),
        "dropout_rate": ("dropout+feed_forward.dropout+attention.dropout", 0.1),
        "pad_token_id": ("special_tokens.pad_id", 0), "eos_token_id": ("special_tokens.eos_id", 1),
    },
    {
        "norm.method": "rms", "block.pre_norm": True, "positions": Relative(),
        "attention.scale": 1.0, "bias": False, "embedding.scale": False,
    },
    {"encoder.embedding": "shared"} | on_both_sides({
        "relative": "block.0.layer.0.SelfAttention.relative_attention_bias",
        "blocks.*.{,cross_}attention.{query,key,value,output}":
            "block.*.layer.{0.Self,1.EncDec}Attention.{q,k,v,o}",
        "blocks.*.{,cross_}attention_norm": "block.*.layer.{0,1}.layer_norm",
        "blocks.*.feed_forward.{hidden,output}": "block.*.layer.LAST.DenseReluDense.{wi,wo}",
        "blocks.*.feed_forward_norm": "block.*.layer.LAST.layer_norm",
        "norm": "final_layer_norm",
    }),
    {"seq2seq": {"head": "lm_head"}}, prefix="",
    variants={"feed_forward.gate": on_both_sides({
        "blocks.*.feed_forward.{gate,hidden}": "block.*.layer.LAST.DenseReluDense.{wi_0,wi_1}",
    })},
)  # fmt: skip
