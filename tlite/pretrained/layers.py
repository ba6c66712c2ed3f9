"""Layers of tlite and of Hugging Face, side by side: one table for each family, read both ways.

A line names a layer of ours and one of theirs, `*` standing for a block's number. Our ending says
what is done: `kernel` (in, out) is the transpose of their `weight`, unless they store it as ours
("Conv1D" of GPT-2); `scale` and `table` are their `weight`, `bias` is their `bias`. Layers joined
by + are one of theirs, side by side, or of some families side by side in each head. A line may
also name one whole array; of several lines that have an array the last holds. Of families that turn
the halves of a head's columns (i, i + K/2) the columns are reordered to our pairs (2i, 2i+1).
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

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


def _lines(table: Table) -> Table:
    """Write out alternatives in braces: {"{a,b}.x": "y_{c,d}"} is {"a.x": "y_c", "b.x": "y_d"}."""

    def spelled(line: str) -> Iterator[str]:
        alternatives = (part.split(",") for part in re.split("[{}]", line))
        return map("".join, itertools.product(*alternatives))

    pairs = (zip(spelled(ours), spelled(theirs), strict=True) for ours, theirs in table.items())
    return dict(itertools.chain.from_iterable(pairs))


def _of_both(table: Table) -> Table:
    """The layers of an encoder and of a decoder; LAST is the place of a block's last layer."""
    return {
        f"{side}.{ours}": f"{side}.{theirs}".replace("LAST", last)
        for side, last in (("encoder", "1"), ("decoder", "2"))
        for ours, theirs in _lines(table).items()
    }


_GPT2 = _lines({
    "embedding": "wte",
    "positions": "wpe",
    "blocks.*.{attention,feed_forward}_norm": "h.*.ln_{1,2}",
    "blocks.*.attention.query+key+value": "h.*.attn.c_attn",
    "blocks.*.attention.output": "h.*.attn.c_proj",
    "blocks.*.feed_forward.{hidden,output}": "h.*.mlp.c_{fc,proj}",
    "norm": "ln_f",
})  # fmt: skip
_LLAMA = _lines({
    "embedding": "embed_tokens",
    "blocks.*.{attention,feed_forward}_norm": "layers.*.{input,post_attention}_layernorm",
    "blocks.*.attention.{query,key,value,output}": "layers.*.self_attn.{q,k,v,o}_proj",
    "blocks.*.attention.{query,key}_norm": "layers.*.self_attn.{q,k}_norm",
    "blocks.*.feed_forward.{gate,hidden,output}": "layers.*.mlp.{gate,up,down}_proj",
    "norm": "norm",
})  # fmt: skip
_GPT_NEOX = _lines({
    "embedding": "embed_in",
    "blocks.*.{attention,feed_forward}_norm": "layers.*.{input,post_attention}_layernorm",
    "blocks.*.attention.query+key+value": "layers.*.attention.query_key_value",
    "blocks.*.attention.output": "layers.*.attention.dense",
    "blocks.*.feed_forward.{hidden,output}": "layers.*.mlp.dense_{h_to_4h,4h_to_h}",
    "norm": "final_layer_norm",
})  # fmt: skip
_GEMMA = _lines({
    "blocks.*.attention_output_norm": "layers.*.post_attention_layernorm",
    "blocks.*.feed_forward{,_output}_norm": "layers.*.{pre,post}_feedforward_layernorm",
})  # fmt: skip
_BERT = _lines({
    "{embedding,positions,segments}": "embeddings.{word,position,token_type}_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "blocks.*.attention.{query,key,value}": "encoder.layer.*.attention.self.{query,key,value}",
    "blocks.*.attention{.output,_norm}": "encoder.layer.*.attention.output.{dense,LayerNorm}",
    "blocks.*.feed_forward.{hidden,output}": "encoder.layer.*.{intermediate,output}.dense",
    "blocks.*.feed_forward_norm": "encoder.layer.*.output.LayerNorm",
    "projection": "pooler.dense",
})  # fmt: skip
_DISTILBERT = _lines({
    "{embedding,positions}": "embeddings.{word,position}_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "blocks.*.attention.{query,key,value,output}": "transformer.layer.*.attention.{q,k,v,out}_lin",
    "blocks.*.{attention,feed_forward}_norm": "transformer.layer.*.{sa,output}_layer_norm",
    "blocks.*.feed_forward.{hidden,output}": "transformer.layer.*.ffn.{lin1,lin2}",
})  # fmt: skip
_MODERNBERT = _lines({
    "embedding{,_norm}": "embeddings.{tok_embeddings,norm}",
    "blocks.*.{attention,feed_forward}_norm": "layers.*.{attn,mlp}_norm",
    "blocks.*.attention.query+key+value": "layers.*.attn.Wqkv",
    "blocks.*.{attention,feed_forward}.output": "layers.*.{attn,mlp}.Wo",
    "blocks.*.feed_forward.gate+hidden": "layers.*.mlp.Wi",
    "norm": "final_norm",
})  # fmt: skip
_MODERNBERT_HEAD = _lines({"projection{,_norm}": "head.{dense,norm}"})
_BART = {"encoder.embedding": "shared"} | _of_both({
    "positions": "embed_positions",
    "embedding_norm": "layernorm_embedding",
    "blocks.*.{,cross_}attention.{query,key,value,output}":
        "layers.*.{self,encoder}_attn.{q,k,v,out}_proj",
    "blocks.*.{,cross_}attention_norm": "layers.*.{self,encoder}_attn_layer_norm",
    "blocks.*.feed_forward.{hidden,output}": "layers.*.{fc1,fc2}",
    "blocks.*.feed_forward_norm": "layers.*.final_layer_norm",
})  # fmt: skip
_BART_HEAD = {
    "head": "lm_head",
    "head.bias": "final_logits_bias",  # not of lm_head
    "head_bias": "final_logits_bias",
}
_SEPARATE = _lines({"{encoder,decoder}.embedding": "{encoder,decoder}.embed_tokens"})
_T5 = {"encoder.embedding": "shared"} | _of_both({
    "relative": "block.0.layer.0.SelfAttention.relative_attention_bias",
    "blocks.*.{,cross_}attention.{query,key,value,output}":
        "block.*.layer.{0.Self,1.EncDec}Attention.{q,k,v,o}",
    "blocks.*.{,cross_}attention_norm": "block.*.layer.{0,1}.layer_norm",
    "blocks.*.feed_forward.{hidden,output}": "block.*.layer.LAST.DenseReluDense.{wi,wo}",
    "blocks.*.feed_forward_norm": "block.*.layer.LAST.layer_norm",
    "norm": "final_layer_norm",
})  # fmt: skip
_T5_GATED = _of_both({
    "blocks.*.feed_forward.{gate,hidden}": "block.*.layer.LAST.DenseReluDense.{wi_0,wi_1}",
})  # fmt: skip

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
            "masked": _lines(
                {
                    "projection{,_norm}": "vocab_{transform,layer_norm}",
                    "head_bias": "vocab_projector.bias",
                }
            ),
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


# Arrays


ENDINGS = {
    ".kernel": ".weight",
    ".scale": ".weight",
    ".table": ".weight",
    ".bias": ".bias",
    "": "",  # of a line that names an array
}


def counterparts(
    family: str, kind: str, names: list[str], prefix: str = ""
) -> dict[str, list[str]]:
    """{theirs: [ours, ...]}: of which arrays of ours each of theirs is made, in this order.

    Args:
        prefix: of their names, but for a head's; without it they are those of a bare model.
    """
    layers, known, joined = LAYERS[family], set(names), " ".join(names)
    table = dict(layers.table)
    for part, lines in layers.variants.items():
        table |= lines if part in joined else {}
    table = {ours: prefix + theirs for ours, theirs in table.items()} | layers.heads.get(kind, {})
    blocks = dict.fromkeys(re.findall(r"\bblocks\.(\d+)\.", joined))
    found: dict[str, str] = {}
    for ours, theirs in table.items():
        stem, _, last = ours.rpartition(".")
        for block, layer in itertools.product(blocks if "*" in ours else [""], last.split("+")):
            name = f"{stem}.{layer}".lstrip(".").replace("*", block)
            for mine, other in ENDINGS.items():
                if name + mine in known:
                    found[name + mine] = theirs.replace("*", block) + other
    places: dict[str, list[str]] = {}
    for name, theirs in found.items():
        places.setdefault(theirs, []).append(name)
    return places


def to_ours(
    family: str, theirs: str, array: np.ndarray, shapes: Mapping[str, tuple[int, ...]], width: int
) -> dict[str, np.ndarray]:
    """Our arrays, `shapes` of them, that one of theirs holds, in the order of `shapes`.

    Args:
        width: the width K of a head, in which rotary columns are reordered.

    Raises:
        ValueError: the shapes don't agree.
    """
    names = list(shapes)
    if theirs == "final_logits_bias":  # (1, V)
        array = array.reshape(shapes[names[0]])
    array = array.T if _transposed(family, theirs, names[0]) else array
    ends = np.cumsum([shapes[name][-1] for name in names])
    whole = (*shapes[names[0]][:-1], int(ends[-1]))
    if array.shape != whole:
        raise ValueError(f"the shape {array.shape}, not {whole}")
    if LAYERS[family].joined_in_heads and len(names) > 1:
        array = _reorder(array, whole[-1] // (len(names) * width), len(names), width)
    parts = zip(names, np.split(array, ends[:-1], axis=-1), strict=True)
    return {n: _reorder(part, 2, width // 2) if _turned(family, n) else part for n, part in parts}


def to_theirs(family: str, theirs: str, arrays: Mapping[str, np.ndarray], width: int) -> np.ndarray:
    """The inverse of `to_ours`."""
    names = list(arrays)
    parts = [_reorder(a, width // 2, 2) if _turned(family, n) else a for n, a in arrays.items()]
    array = np.concatenate(parts, axis=-1)
    if LAYERS[family].joined_in_heads and len(names) > 1:
        array = _reorder(array, len(names), array.shape[-1] // (len(names) * width), width)
    if theirs == "final_logits_bias":
        return array.reshape(1, -1)
    return array.T if _transposed(family, theirs, names[0]) else array


def _transposed(family: str, theirs: str, ours: str) -> bool:
    in_block = re.search(r"\.\d+\.", theirs) is not None
    return ours.endswith("kernel") and not (LAYERS[family].conv and in_block)


def _turned(family: str, name: str) -> bool:
    of_scores = re.search(r"(?<!cross_)attention\.(query|key)(_norm)?\.", name)
    return LAYERS[family].half_split and of_scores is not None


def _reorder(array: np.ndarray, rows: int, columns: int, size: int = 1) -> np.ndarray:
    """Of each stretch of columns, as (rows, columns, size), the transpose (columns, rows, size).

    With (2, K/2) each head's half-split columns 0, K/2, 1, K/2 + 1, ...: to pairs; with (K/2, 2)
    back. With (H, 3, K) each head's query, key and value: to those of all heads.
    """
    stretches = array.reshape(*array.shape[:-1], -1, rows, columns, size)
    return np.swapaxes(stretches, -3, -2).reshape(array.shape)
