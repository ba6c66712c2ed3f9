"""An encoder-decoder is that of PyTorch: logits, and gradients of every array."""

import math

import jax
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import assert_close
from tests.helpers.seq2seq import (
    EXPECTED,
    SMALL,
    SOURCE,
    TARGET,
    D,
    S,
    T,
    gradients_and_logits,
    small,
)
from tlite.models import Attention, Block, TranslatorHead

torch = pytest.importorskip("torch")


def of_attention(name, params):
    inward = [params.query, params.key, params.value]
    return {
        f"{name}.in_proj_weight": np.concatenate([np.asarray(p.kernel[...]).T for p in inward]),
        f"{name}.in_proj_bias": np.concatenate([np.asarray(p.bias[...]) for p in inward]),
        **of_linear(f"{name}.out_proj", params.output),
    }


def of_linear(name, params):
    kernel, bias = np.asarray(params.kernel[...]), np.asarray(params.bias[...])
    return {f"{name}.weight": kernel.T, f"{name}.bias": bias}


def of_norm(name, params):
    return {f"{name}.weight": params.scale[...], f"{name}.bias": params.bias[...]}


def of_stacks(model):
    """Our parameters (or their gradients) under the names of `torch.nn.Transformer`'s."""
    arrays = {}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        for index, block in enumerate(stack.blocks):
            name, norms = f"{side}.layers.{index}", [block.attention_norm, block.feed_forward_norm]
            arrays |= of_attention(f"{name}.self_attn", block.attention)
            if side == "decoder":
                arrays |= of_attention(f"{name}.multihead_attn", block.cross_attention)
                norms.insert(1, block.cross_attention_norm)
            arrays |= of_linear(f"{name}.linear1", block.feed_forward.hidden)
            arrays |= of_linear(f"{name}.linear2", block.feed_forward.output)
            for number, norm in enumerate(norms, 1):
                arrays |= of_norm(f"{name}.norm{number}", norm)
        if stack.config.block.pre_norm:
            arrays |= of_norm(f"{side}.norm", stack.norm)
    return arrays


def of_ends(model):
    """The embeddings and the output layer, as they are called here."""
    arrays = {"source table": model.encoder.embedding.table[...]}
    if model.config.head.embeddings == "separate":
        arrays["target table"] = model.decoder.embedding.table[...]
    if model.config.head.embeddings != "tied":
        arrays |= of_linear("head", model.head)
    return arrays


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    ("embeddings", "pre_norm"), [("tied", False), ("shared", True), ("separate", True)]
)
def test_logits_and_gradients_are_those_of_pytorch(embeddings, pre_norm):
    model = small(
        block=Block(pre_norm=pre_norm),
        attention=Attention(input_bias=True),
        head=TranslatorHead(embeddings),
        decoder_blocks=2,
    )
    gradients, logits = jax.tree.map(np.asarray, gradients_and_logits(model))
    model = jax.tree.map(np.asarray, model)

    def tensor(array):
        return torch.tensor(np.asarray(array, np.float64), requires_grad=True)

    transformer = torch.nn.Transformer(
        D,
        SMALL.num_heads,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=4 * D,
        dropout=0.0,
        batch_first=True,
        norm_first=pre_norm,
        dtype=torch.float64,
    )
    if not pre_norm:  # PyTorch puts a norm after the stacks there too
        transformer.encoder.norm = transformer.decoder.norm = None
    carried = {name: torch.tensor(np.asarray(a)) for name, a in of_stacks(model).items()}
    transformer.load_state_dict(carried)
    ends = {name: tensor(array) for name, array in of_ends(model).items()}
    source, target, expected = (
        torch.tensor(np.asarray(side), dtype=torch.int64) for side in (SOURCE, TARGET, EXPECTED)
    )
    table = ends["source table"]
    positions = tensor(reference.sinusoidal_positions(S, D))

    def embed(table, tokens):
        return math.sqrt(D) * table[tokens] + positions[: tokens.shape[1]]

    x = transformer(
        embed(table, source),
        embed(ends.get("target table", table), target),
        tgt_mask=torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1),
        src_key_padding_mask=source == 0,
        tgt_key_padding_mask=target == 0,
        memory_key_padding_mask=source == 0,
    )
    if embeddings == "tied":
        theirs = x @ table.T
    else:
        theirs = torch.nn.functional.linear(x, ends["head.weight"], ends["head.bias"])
    torch.nn.functional.cross_entropy(
        theirs.flatten(0, 1), expected.flatten(), ignore_index=0, label_smoothing=0.1
    ).backward()
    is_token = np.asarray(TARGET) != 0
    assert_close(logits[is_token], theirs.detach().numpy()[is_token])
    slopes = {name: p.grad.numpy() for name, p in transformer.named_parameters()}
    slopes |= {name: end.grad.numpy() for name, end in ends.items()}
    assert_close(of_stacks(gradients) | of_ends(gradients), slopes)
