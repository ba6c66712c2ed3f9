"""An encoder-decoder is that of PyTorch: logits, and gradients of every array."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import assert_close
from tests.helpers.models import drawn
from tlite import functional as F
from tlite.models import (
    Attention,
    Block,
    FeedForward,
    Seq2Seq,
    Seq2SeqConfig,
    TranslatorHead,
)

torch = pytest.importorskip("torch")
V, S, T, D, HEADS = 9, 7, 5, 8, 2
SOURCE = np.array([[3, 1, 4, 1, 5, 8, 2], [2, 7, 1, 8, 0, 0, 0]])
TARGET = np.array([[2, 6, 5, 3, 5, 8], [2, 7, 4, 0, 0, 0]])
INPUTS, EXPECTED = TARGET[:, :-1], TARGET[:, 1:]


@jax.jit
def gradients_and_logits(model):
    """Of the mean loss over the targets' tokens, with label smoothing."""

    def loss(model):
        source, inputs, expected = map(jnp.asarray, (SOURCE, INPUTS, EXPECTED))
        logits = model(source, inputs)
        total, count = F.cross_entropy(logits, expected, (expected != 0).astype(float), 0.1)
        return total / count, logits

    return jax.grad(loss, has_aux=True)(model)


def layer(name, params):
    """The arrays of a linear layer or a norm."""
    weight = params.scale[...] if hasattr(params, "scale") else np.asarray(params.kernel[...]).T
    return {f"{name}.weight": weight, f"{name}.bias": params.bias[...]}


def attention_layer(name, params):
    parts = [layer("in", p) for p in (params.query, params.key, params.value)]
    joined = {f"{name}.in_proj_{k}": np.concatenate([p[f"in.{k}"] for p in parts])
              for k in ("weight", "bias")}  # fmt: skip
    return joined | layer(f"{name}.out_proj", params.output)


def arrays_by_name(model):
    """The arrays (or their gradients) by PyTorch's names: of the stacks, and of both ends."""
    stacks = {}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        for index, block in enumerate(stack.blocks):
            name, norms = f"{side}.layers.{index}", [block.attention_norm, block.feed_forward_norm]
            stacks |= attention_layer(f"{name}.self_attn", block.attention)
            if side == "decoder":
                stacks |= attention_layer(f"{name}.multihead_attn", block.cross_attention)
                norms.insert(1, block.cross_attention_norm)
            stacks |= layer(f"{name}.linear1", block.feed_forward.hidden)
            stacks |= layer(f"{name}.linear2", block.feed_forward.output)
            for number, norm in enumerate(norms, 1):
                stacks |= layer(f"{name}.norm{number}", norm)
        if stack.config.block.pre_norm:
            stacks |= layer(f"{side}.norm", stack.norm)
    ends = {"source table": model.encoder.embedding.table[...]}
    if model.config.head.embeddings == "separate":
        ends["target table"] = model.decoder.embedding.table[...]
    if model.config.head.embeddings != "tied":
        ends |= layer("head", model.head)
    return stacks, ends


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    ("embeddings", "pre_norm"), [("tied", False), ("shared", True), ("separate", True)]
)
def test_logits_and_gradients_are_those_of_pytorch(embeddings, pre_norm):
    config = Seq2SeqConfig(
        V, S, source_vocabulary_size=V, width=D, num_heads=HEADS, num_blocks=2, decoder_blocks=2,
        dropout=0.5, feed_forward=FeedForward(dropout=0.3), block=Block(pre_norm=pre_norm),
        attention=Attention(qkv_bias=True), head=TranslatorHead(embeddings),
    )  # fmt: skip
    model = drawn(Seq2Seq, config)
    gradients, logits = jax.tree.map(np.asarray, gradients_and_logits(model))
    stacks, ends = arrays_by_name(jax.tree.map(np.asarray, model))
    transformer = torch.nn.Transformer(
        D, HEADS, 2, 2, 4 * D, 0.0, batch_first=True, norm_first=pre_norm, dtype=torch.float64
    )
    if not pre_norm:  # PyTorch puts a norm after the stacks there too
        transformer.encoder.norm = transformer.decoder.norm = None
    transformer.load_state_dict({n: torch.tensor(np.asarray(a)) for n, a in stacks.items()})
    ends = {n: torch.tensor(np.float64(a), requires_grad=True) for n, a in ends.items()}
    source, inputs, expected = map(torch.tensor, (SOURCE, INPUTS, EXPECTED))
    table, positions = ends["source table"], torch.tensor(reference.sinusoidal_positions(S, D))

    def embed(table, tokens):
        return math.sqrt(D) * table[tokens] + positions[: tokens.shape[1]]

    x = transformer(
        embed(table, source),
        embed(ends.get("target table", table), inputs),
        tgt_mask=torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1),
        src_key_padding_mask=source == 0,
        tgt_key_padding_mask=inputs == 0,
        memory_key_padding_mask=source == 0,
    )
    weight, bias = ends.get("head.weight", table), ends.get("head.bias")
    theirs = torch.nn.functional.linear(x, weight, bias)
    torch.nn.functional.cross_entropy(
        theirs.flatten(0, 1), expected.flatten(), ignore_index=0, label_smoothing=0.1
    ).backward()
    is_token = INPUTS != 0
    assert_close(logits[is_token], theirs.detach().numpy()[is_token])
    named = {**dict(transformer.named_parameters()), **ends}
    of_stacks, of_ends = arrays_by_name(gradients)
    assert_close(of_stacks | of_ends, {name: p.grad.numpy() for name, p in named.items()})
