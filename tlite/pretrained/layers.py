"""Layers of tlite and of Hugging Face, side by side: one table for each family, used both ways.

A line names a layer of ours and one of theirs, `*` standing for a block's number. Our ending says
what is done: `kernel` (in, out) is the transpose of their `weight`, unless they store it as ours
("Conv1D" of GPT-2); `scale` and `table` are their `weight`, `bias` is their `bias`. Layers joined
by + are one of theirs, side by side, or of some families side by side in each head. A line may
also name one whole array; of several lines that have an array the last holds. Of families that turn
the halves of a head's columns (i, i + K/2) the columns are reordered to our pairs (2i, 2i+1).
"""

from dataclasses import dataclass, field, replace

Table = dict[str, str]


@dataclass(frozen=True)
class Layers:
    """How a family stores its layers."""

    prefix: str
    """Of the layers in `table`, where a head comes with them; a bare model has none."""
    table: Table
    heads: dict[str, Table] = field(default_factory=dict)
    """Of each kind of model ("generator", "masked", ...) the lines beside the table's."""
    variants: dict[str, Table] = field(default_factory=dict)
    """Lines in place of the table's where the model has an array with this in its name."""
    copies: Table = field(default_factory=dict)
    """Arrays that may be there a second time, and of which they are copies."""
    ignored: str = r"(?!)"
    """Names of buffers that say nothing new."""
    kept: str = r"(?!)"
    """Names of arrays that only training used: no model has them, an export has."""
    head: str = "lm_head"
    """The output layer of generators and translators."""
    conv: bool = False
    half_split: bool = False
    joined_in_heads: bool = False


def _of(side: str, table: Table) -> Table:
    """A table of the encoder's or the decoder's layers."""
    return {f"{side}.{ours}": f"{side}.{theirs}" for ours, theirs in table.items()}


def _of_both(table: Table) -> Table:
    return _of("encoder", table) | _of("decoder", table)


_GPT2 = {
    "embedding": "wte",
    "positions": "wpe",
    "blocks.*.attention_norm": "h.*.ln_1",
    "blocks.*.attention.query+key+value": "h.*.attn.c_attn",
    "blocks.*.attention.output": "h.*.attn.c_proj",
    "blocks.*.feed_forward_norm": "h.*.ln_2",
    "blocks.*.feed_forward.hidden": "h.*.mlp.c_fc",
    "blocks.*.feed_forward.output": "h.*.mlp.c_proj",
    "norm": "ln_f",
}
_LLAMA = {
    "embedding": "embed_tokens",
    "blocks.*.attention_norm": "layers.*.input_layernorm",
    "blocks.*.attention.query": "layers.*.self_attn.q_proj",
    "blocks.*.attention.key": "layers.*.self_attn.k_proj",
    "blocks.*.attention.value": "layers.*.self_attn.v_proj",
    "blocks.*.attention.query_norm": "layers.*.self_attn.q_norm",
    "blocks.*.attention.key_norm": "layers.*.self_attn.k_norm",
    "blocks.*.attention.output": "layers.*.self_attn.o_proj",
    "blocks.*.feed_forward_norm": "layers.*.post_attention_layernorm",
    "blocks.*.feed_forward.gate": "layers.*.mlp.gate_proj",
    "blocks.*.feed_forward.hidden": "layers.*.mlp.up_proj",
    "blocks.*.feed_forward.output": "layers.*.mlp.down_proj",
    "norm": "norm",
}
_GPT_NEOX = {
    "embedding": "embed_in",
    "blocks.*.attention_norm": "layers.*.input_layernorm",
    "blocks.*.attention.query+key+value": "layers.*.attention.query_key_value",
    "blocks.*.attention.output": "layers.*.attention.dense",
    "blocks.*.feed_forward_norm": "layers.*.post_attention_layernorm",
    "blocks.*.feed_forward.hidden": "layers.*.mlp.dense_h_to_4h",
    "blocks.*.feed_forward.output": "layers.*.mlp.dense_4h_to_h",
    "norm": "final_layer_norm",
}
_GEMMA = {
    "blocks.*.attention_output_norm": "layers.*.post_attention_layernorm",
    "blocks.*.feed_forward_norm": "layers.*.pre_feedforward_layernorm",
    "blocks.*.feed_forward_output_norm": "layers.*.post_feedforward_layernorm",
}
_BERT = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "blocks.*.attention.query": "encoder.layer.*.attention.self.query",
    "blocks.*.attention.key": "encoder.layer.*.attention.self.key",
    "blocks.*.attention.value": "encoder.layer.*.attention.self.value",
    "blocks.*.attention.output": "encoder.layer.*.attention.output.dense",
    "blocks.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "blocks.*.feed_forward.hidden": "encoder.layer.*.intermediate.dense",
    "blocks.*.feed_forward.output": "encoder.layer.*.output.dense",
    "blocks.*.feed_forward_norm": "encoder.layer.*.output.LayerNorm",
    "projection": "pooler.dense",
}
_DISTILBERT = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "blocks.*.attention.query": "transformer.layer.*.attention.q_lin",
    "blocks.*.attention.key": "transformer.layer.*.attention.k_lin",
    "blocks.*.attention.value": "transformer.layer.*.attention.v_lin",
    "blocks.*.attention.output": "transformer.layer.*.attention.out_lin",
    "blocks.*.attention_norm": "transformer.layer.*.sa_layer_norm",
    "blocks.*.feed_forward.hidden": "transformer.layer.*.ffn.lin1",
    "blocks.*.feed_forward.output": "transformer.layer.*.ffn.lin2",
    "blocks.*.feed_forward_norm": "transformer.layer.*.output_layer_norm",
}
_MODERNBERT = {
    "embedding": "embeddings.tok_embeddings",
    "embedding_norm": "embeddings.norm",
    "blocks.*.attention_norm": "layers.*.attn_norm",
    "blocks.*.attention.query+key+value": "layers.*.attn.Wqkv",
    "blocks.*.attention.output": "layers.*.attn.Wo",
    "blocks.*.feed_forward_norm": "layers.*.mlp_norm",
    "blocks.*.feed_forward.gate+hidden": "layers.*.mlp.Wi",
    "blocks.*.feed_forward.output": "layers.*.mlp.Wo",
    "norm": "final_norm",
}
_MODERNBERT_HEAD = {
    "projection": "head.dense",
    "projection_norm": "head.norm",
}
_BART = {"encoder.embedding": "shared"} | _of_both({
    "positions": "embed_positions",
    "embedding_norm": "layernorm_embedding",
    "blocks.*.attention.query": "layers.*.self_attn.q_proj",
    "blocks.*.attention.key": "layers.*.self_attn.k_proj",
    "blocks.*.attention.value": "layers.*.self_attn.v_proj",
    "blocks.*.attention.output": "layers.*.self_attn.out_proj",
    "blocks.*.attention_norm": "layers.*.self_attn_layer_norm",
    "blocks.*.cross_attention.query": "layers.*.encoder_attn.q_proj",
    "blocks.*.cross_attention.key": "layers.*.encoder_attn.k_proj",
    "blocks.*.cross_attention.value": "layers.*.encoder_attn.v_proj",
    "blocks.*.cross_attention.output": "layers.*.encoder_attn.out_proj",
    "blocks.*.cross_attention_norm": "layers.*.encoder_attn_layer_norm",
    "blocks.*.feed_forward.hidden": "layers.*.fc1",
    "blocks.*.feed_forward.output": "layers.*.fc2",
    "blocks.*.feed_forward_norm": "layers.*.final_layer_norm",
})  # fmt: skip
_BART_HEAD = {
    "head": "lm_head",
    "head.bias": "final_logits_bias",  # not of lm_head
    "head_bias": "final_logits_bias",
}
_SEPARATE = {
    "encoder.embedding": "encoder.embed_tokens",
    "decoder.embedding": "decoder.embed_tokens",
}
_T5 = {"encoder.embedding": "shared"} | _of_both({
    "relative": "block.0.layer.0.SelfAttention.relative_attention_bias",
    "blocks.*.attention.query": "block.*.layer.0.SelfAttention.q",
    "blocks.*.attention.key": "block.*.layer.0.SelfAttention.k",
    "blocks.*.attention.value": "block.*.layer.0.SelfAttention.v",
    "blocks.*.attention.output": "block.*.layer.0.SelfAttention.o",
    "blocks.*.attention_norm": "block.*.layer.0.layer_norm",
    "norm": "final_layer_norm",
}) | _of("encoder", {
    "blocks.*.feed_forward.hidden": "block.*.layer.1.DenseReluDense.wi",
    "blocks.*.feed_forward.output": "block.*.layer.1.DenseReluDense.wo",
    "blocks.*.feed_forward_norm": "block.*.layer.1.layer_norm",
}) | _of("decoder", {
    "blocks.*.cross_attention.query": "block.*.layer.1.EncDecAttention.q",
    "blocks.*.cross_attention.key": "block.*.layer.1.EncDecAttention.k",
    "blocks.*.cross_attention.value": "block.*.layer.1.EncDecAttention.v",
    "blocks.*.cross_attention.output": "block.*.layer.1.EncDecAttention.o",
    "blocks.*.cross_attention_norm": "block.*.layer.1.layer_norm",
    "blocks.*.feed_forward.hidden": "block.*.layer.2.DenseReluDense.wi",
    "blocks.*.feed_forward.output": "block.*.layer.2.DenseReluDense.wo",
    "blocks.*.feed_forward_norm": "block.*.layer.2.layer_norm",
})  # fmt: skip
_T5_GATED = {
    "encoder.blocks.*.feed_forward.gate": "encoder.block.*.layer.1.DenseReluDense.wi_0",
    "encoder.blocks.*.feed_forward.hidden": "encoder.block.*.layer.1.DenseReluDense.wi_1",
    "decoder.blocks.*.feed_forward.gate": "decoder.block.*.layer.2.DenseReluDense.wi_0",
    "decoder.blocks.*.feed_forward.hidden": "decoder.block.*.layer.2.DenseReluDense.wi_1",
}

_LM_HEAD = {"head": "lm_head"}
_LLAMA_LIKE = Layers(
    "model.",
    _LLAMA,
    {"generator": _LM_HEAD},
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored=r".*rotary_emb\.inv_freq",
    half_split=True,
)
_GEMMA_LIKE = replace(_LLAMA_LIKE, table=_LLAMA | _GEMMA)
_BERT_LIKE = Layers(
    "bert.",
    _BERT,
    {
        "masked": {
            "projection": "cls.predictions.transform.dense",
            "projection_norm": "cls.predictions.transform.LayerNorm",
            "head_bias": "cls.predictions.bias",
        },
        "classifier": {"head": "classifier"},
    },
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=r"embeddings\.position_ids",
    kept=r"(pooler\.dense|cls\.seq_relationship)\.(weight|bias)",
)
_TWICE = dict.fromkeys(
    ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
    "shared.weight",
)
_BART_LIKE = Layers("model.", _BART, {"seq2seq": _BART_HEAD}, copies=_TWICE)
LAYERS = {
    "gpt2": Layers(
        "transformer.",
        _GPT2,
        {"generator": _LM_HEAD},
        copies={"lm_head.weight": "wte.weight"},
        ignored=r"h\.\d+\.attn\.(bias|masked_bias)",
        conv=True,
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA_LIKE),
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA_LIKE),
    "gpt_neox": Layers(
        "gpt_neox.",
        _GPT_NEOX,
        {"generator": {"head": "embed_out"}},
        copies={"embed_out.weight": "embed_in.weight"},
        ignored=r".*\.(rotary_emb\.inv_freq|attention\.(masked_)?bias)",
        head="embed_out",
        half_split=True,
        joined_in_heads=True,
    ),
    "bert": _BERT_LIKE,
    "roberta": replace(
        _BERT_LIKE,
        prefix="roberta.",
        heads={
            "masked": {
                "projection": "lm_head.dense",
                "projection_norm": "lm_head.layer_norm",
                "head_bias": "lm_head.bias",
            },
            "classifier": {"projection": "classifier.dense", "head": "classifier.out_proj"},
        },
        copies={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    ),
    "distilbert": Layers(
        "distilbert.",
        _DISTILBERT,
        {
            "masked": {
                "projection": "vocab_transform",
                "projection_norm": "vocab_layer_norm",
                "head_bias": "vocab_projector.bias",
            },
            "classifier": {"projection": "pre_classifier", "head": "classifier"},
        },
        copies={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    ),
    "modernbert": Layers(
        "model.",
        _MODERNBERT,
        {
            "masked": _MODERNBERT_HEAD | {"head_bias": "decoder.bias"},
            "classifier": _MODERNBERT_HEAD | {"head": "classifier"},
        },
        copies={"decoder.weight": "embeddings.tok_embeddings.weight"},
        half_split=True,
    ),
    "marian": replace(
        _BART_LIKE,
        variants={"decoder.embedding": _SEPARATE},
        ignored=r"(en|de)coder\.embed_positions\.weight",
    ),
    "bart": _BART_LIKE,
    "t5": Layers(
        "",
        _T5,
        {"seq2seq": _LM_HEAD},
        {"feed_forward.gate": _T5_GATED},
        _TWICE,
        # A table of old checkpoints that no version of the model has ever read.
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
}
