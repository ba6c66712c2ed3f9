"""The encoder-decoder: its formula, PyTorch's, counted by hand, causal, cached as whole."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.functional import reference
from tests.functional.helpers import (
    assert_all_finite,
    assert_close,
    assert_gradients_are_causal,
    assert_same,
    exact,
    normal,
    own_places,
)
from tests.models.reference import plain
from tlite import functional as F
from tlite.functional import layers
from tlite.models import Seq2SeqConfig, TransformerSeq2Seq
from tlite.modules import count_parameters

KEY = jax.random.key(0)
V, S, T, D = 9, 7, 5, 8
SMALL = Seq2SeqConfig(
    vocabulary_size=V,
    source_vocabulary_size=V,
    context=S,
    width=D,
    num_heads=2,
    num_blocks=2,
    decoder_blocks=1,
    dropout=0.5,
    hidden_dropout=0.3,
)
ENCODER_BLOCK = 4 * D * D + D + 2 * 2 * D + (2 * 4 * D * D + 5 * D)
DECODER_BLOCK = ENCODER_BLOCK + 4 * D * D + D + 2 * D
SMALL_COUNT = V * D + 2 * ENCODER_BLOCK + DECODER_BLOCK

# Sources and targets of different lengths, filled up with 0.
SOURCE = jnp.array([[3, 1, 4, 1, 5, 8, 2], [2, 7, 1, 8, 0, 0, 0]])
WHOLE = jnp.array([[2, 6, 5, 3, 5, 8], [2, 7, 4, 0, 0, 0]])
TARGET, EXPECTED = WHOLE[:, :-1], WHOLE[:, 1:]

# Each switch, and by how many parameters it changes the small model.
SWITCHES = {
    "defaults": ({}, 0),
    "shared": ({"embeddings": "shared"}, D * V + V),
    "separate": (
        {"embeddings": "separate", "source_vocabulary_size": 11},
        (11 - V) * D + V * D + D * V + V,
    ),
    "norm_first": ({"norm_first": True}, 2 * 2 * D),
    "rms": ({"norm": "rms"}, -(2 * 2 + 3) * D),
    "gelu": ({"activation": "gelu"}, 0),
    "learned": ({"positions": "learned"}, 2 * S * D),
    "rotary": ({"positions": "rotary"}, 0),
    "qkv_bias": ({"qkv_bias": True}, (2 + 2) * 3 * D),
    "bias": ({"bias": False}, -2 * (D + 5 * D + 2 * D) - (2 * D + 5 * D + 3 * D)),
    "num_heads": ({"num_heads": 4}, 0),
    "head_width": ({"head_width": 6}, 4 * 4 * D * (2 * 6 - D)),
    "hidden_width": ({"hidden_width": 5}, -3 * (2 * D + 1) * (4 * D - 5)),
    "num_blocks": ({"num_blocks": 1}, -ENCODER_BLOCK),
    "decoder_blocks": ({"decoder_blocks": None}, DECODER_BLOCK),
    "all": (
        {
            "embeddings": "shared",
            "norm_first": True,
            "norm": "rms",
            "positions": "rotary",
            "bias": False,
        },
        D * V - 2 * 8 * D - 10 * D + 2 * D,
    ),
}
each_switch = pytest.mark.parametrize(("switches", "change"), SWITCHES.values(), ids=SWITCHES)
each_kind_of_positions = pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
both_orders = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


@functools.cache
def small(**switches):
    return drawn(dataclasses.replace(SMALL, **switches))


def drawn(config):
    """A model none of whose numbers is 0 or 1, as biases and norms are to begin with."""
    arrays, structure = jax.tree.flatten(TransformerSeq2Seq(config, key=KEY))
    arrays = [a + 0.2 * normal(*a.shape, seed=i) for i, a in enumerate(arrays)]
    return jax.tree.unflatten(structure, arrays)


def loss_and_logits(model):
    """The mean over the targets' tokens, with label smoothing."""
    logits = model(SOURCE, TARGET)
    total, count = F.cross_entropy(logits, EXPECTED, (EXPECTED != 0).astype(float), 0.1)
    return total / count, logits


gradients_and_logits = jax.grad(loss_and_logits, has_aux=True)


# Counts


@each_switch
def test_switches_change_the_count_as_by_hand_and_give_logits(switches, change):
    model = jax.eval_shape(
        lambda: TransformerSeq2Seq(dataclasses.replace(SMALL, **switches), key=KEY)
    )
    assert count_parameters(model) == SMALL_COUNT + change
    sides = jnp.zeros((3, 2, S), int), jnp.zeros((3, 2, T), int)
    logits = jax.eval_shape(lambda model: model(*sides), model)
    assert logits.shape == (3, 2, T, V)


def test_the_base_model_of_2017_holds_as_many_parameters_as_counted_by_hand():
    config = Seq2SeqConfig(
        vocabulary_size=37_000,
        source_vocabulary_size=37_000,
        width=512,
        num_heads=8,
        num_blocks=6,
        qkv_bias=True,
    )
    attention, norm = 4 * (512 * 512 + 512), 2 * 512
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    expected = 37_000 * 512 + 6 * (3 * attention + 2 * feed_forward + 5 * norm)
    model = jax.eval_shape(lambda: TransformerSeq2Seq(config, key=KEY))
    assert count_parameters(model) == expected == 63_082_496


@pytest.mark.parametrize(
    "name", [name for name, (_, change) in SWITCHES.items() if change == 0][1:]
)
def test_switches_that_keep_the_count_change_the_logits(name):
    changed = small(**SWITCHES[name][0])(SOURCE, TARGET)
    assert np.abs(changed - small()(SOURCE, TARGET)).max() > 1e-3


@pytest.mark.parametrize("width", [16, 256])
def test_scaled_embeddings_begin_with_the_deviation_of_positions(width):
    config = dataclasses.replace(
        SMALL, vocabulary_size=500, source_vocabulary_size=500, width=width
    )
    table = TransformerSeq2Seq(config, key=KEY).encoder.embedding.table[...]
    assert float(table.std() * config.embedding_scale) == pytest.approx(1, abs=0.05)
    given = dataclasses.replace(config, embedding_deviation=0.02)
    again = TransformerSeq2Seq(given, key=KEY).encoder.embedding.table[...]
    assert float(again.std()) == pytest.approx(0.02, abs=0.001)


# The formula


def formula(params, source, target):
    """The logits (T, V) of one source and target, in NumPy."""
    config = params.config
    settings = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_first,
        "norm": reference.rms_norm if config.norm == "rms" else reference.layer_norm,
    }
    if config.positions == "rotary":
        settings["angles"] = reference.rotary_angles(config.context, D // config.num_heads)

    def embed(stack, table, tokens):
        x = np.stack([math.sqrt(D) * table[token] for token in tokens])
        if config.positions == "rotary":
            return x
        if config.positions == "learned":
            return reference.add_positions(stack.positions.table, x)
        return reference.add_positions(reference.sinusoidal_positions(len(x), D), x)

    def mask(rows, columns, sees):
        grid = [[sees(t, s) for s in range(columns)] for t in range(rows)]
        return np.array([grid] * config.num_heads)

    def run(stack, block, x, *inputs):
        for parameters in stack.blocks:
            x = block(parameters, x, *inputs, **settings)
        return settings["norm"](stack.norm, x) if config.norm_first else x

    is_token = [token != config.pad_id for token in source]
    own = config.embeddings == "separate"
    table = params.encoder.embedding.table
    length, width = len(source), len(target)
    x = embed(params.encoder, table, source)
    memory = run(
        params.encoder,
        reference.encoder_block,
        x,
        mask(length, length, lambda t, s: is_token[s]),
    )
    x = embed(params.decoder, params.decoder.embedding.table if own else table, target)
    x = run(
        params.decoder,
        reference.decoder_block,
        x,
        memory,
        mask(width, width, lambda t, s: s <= t),
        mask(width, length, lambda t, s: is_token[s]),
    )
    return x @ table.T if config.embeddings == "tied" else reference.linear(params.head, x)


def formulas(params):
    """The logits (2, T, V) of the pairs."""
    return np.stack([formula(params, *pair) for pair in zip(SOURCE, TARGET, strict=True)])


FORMULAS = ["defaults", "shared", "separate", "norm_first", "rms", "learned", "rotary"]
FORMULAS += ["qkv_bias", "num_heads", "decoder_blocks", "all"]


@pytest.mark.parametrize("name", FORMULAS)
def test_logits_are_their_formula(name):
    model = small(**SWITCHES[name][0])
    assert_close(model(SOURCE, TARGET), formulas(plain(model)), 2e-5)


@both_orders
def test_gradients_along_a_direction_are_differences_of_the_formula(norm_first):
    model = small(norm_first=norm_first)
    arrays, structure = jax.tree.flatten(model)
    directions = [normal(*a.shape, seed=50 + i) for i, a in enumerate(arrays)]
    weights = normal(2, T, V, seed=99)

    def total(model):
        return (weights * model(SOURCE, TARGET)).sum()

    gradients = jax.tree.leaves(jax.grad(total)(model))
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    arrays, directions, weights = exact((arrays, directions, weights))

    def moved(step):
        pairs = zip(arrays, directions, strict=True)
        params = plain(jax.tree.unflatten(structure, [a + step * d for a, d in pairs]))
        return (weights * formulas(params)).sum()

    assert slope == pytest.approx((moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-4)


# PyTorch


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
        if stack.config.norm_first:
            arrays |= of_norm(f"{side}.norm", stack.norm)
    return arrays


def of_ends(model):
    """The embeddings and the output layer, as they are called here."""
    arrays = {"source table": model.encoder.embedding.table[...]}
    if model.config.embeddings == "separate":
        arrays["target table"] = model.decoder.embedding.table[...]
    if model.config.embeddings != "tied":
        arrays |= of_linear("head", model.head)
    return arrays


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("embeddings", ["tied", "shared", "separate"])
@both_orders
def test_logits_and_gradients_are_those_of_pytorch(norm_first, embeddings):
    torch = pytest.importorskip("torch")
    changes = {"qkv_bias": True, "decoder_blocks": 2, "embeddings": embeddings}
    model = small(norm_first=norm_first, **changes)
    gradients, logits = gradients_and_logits(model)

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
        norm_first=norm_first,
        dtype=torch.float64,
    )
    if not norm_first:  # PyTorch puts a norm after the stacks there too
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


# Causality and padding


@pytest.mark.parametrize("name", ["defaults", "separate", "norm_first", "learned", "rotary"])
def test_later_tokens_do_not_change_earlier_logits_by_a_bit(name):
    model = small(**SWITCHES[name][0])
    logits = model(SOURCE, TARGET)
    for t in range(1, T):
        changed = model(SOURCE, TARGET.at[:, t:].set((TARGET[:, t:] + 1) % V))
        assert_same(changed[:, :t], logits[:, :t])
        assert (changed[:, t] != logits[:, t]).any()


def with_rows(model, stack, rows):
    """The model with other rows at the start of a stack's embedding."""
    leaves, structure = jax.tree.flatten(model)
    table = jax.tree.leaves(stack.embedding)[0]
    changed = [leaf.at[: len(rows)].set(rows) if leaf is table else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, changed)


@each_kind_of_positions
@both_orders
def test_gradients_never_reach_later_tokens_and_always_earlier_ones(norm_first, positions):
    model = small(norm_first=norm_first, positions=positions, embeddings="separate")
    each_token_once = jnp.arange(T)

    def logits(rows):
        return with_rows(model, model.decoder, rows)(SOURCE[0], each_token_once)

    assert_gradients_are_causal(logits, model.decoder.embedding.table[:T])


@both_orders
def test_gradients_reach_every_token_of_the_source_and_no_padding(norm_first):
    model = small(norm_first=norm_first, embeddings="separate")
    table, source = model.encoder.embedding.table[...], jnp.tile(SOURCE[1], (2, 1))
    logits, pull_back = jax.vjp(
        lambda rows: with_rows(model, model.encoder, rows)(source, TARGET), table
    )
    is_read = jnp.isin(jnp.arange(V), SOURCE[1]).at[0].set(False)
    for t in range(T):
        (gradient,) = pull_back(jnp.zeros_like(logits).at[0, t].set(normal(V)))
        assert_same(gradient.any(-1), is_read)


@pytest.mark.parametrize("name", ["defaults", "all"])
def test_padding_of_either_side_does_not_change_what_is_written(name):
    model = small(**SWITCHES[name][0])
    logits = model(SOURCE, TARGET)
    alone = model(SOURCE[1, :4], TARGET[1, :3])
    assert_close(logits[1, :3], alone)


def test_a_source_of_nothing_but_padding_has_finite_logits_and_gradients():
    def total(model):
        return (model(jnp.zeros_like(SOURCE), TARGET) ** 2).sum()

    assert_all_finite(jax.value_and_grad(total)(small()))


@each_kind_of_positions
def test_the_order_of_the_source_matters(positions):
    model = small(positions=positions)
    swapped = SOURCE.at[:, :2].set(SOURCE[:, 1::-1])
    difference = model(swapped, TARGET) - model(SOURCE, TARGET)
    assert np.abs(difference).max() > 1e-3


# Caches


@pytest.mark.parametrize(
    "switches",
    [
        {"positions": "sinusoidal"},
        {"positions": "learned", "norm_first": True},
        {"positions": "rotary"},
        SWITCHES["all"][0] | {"head_width": 6},
    ],
    ids=lambda switches: "-".join(map(str, switches.values())),
)
def test_logits_of_a_target_extended_piece_by_piece_are_those_of_the_whole(switches):
    model, pieces = small(**switches), []
    memory, mask = model.encode(SOURCE)
    memories, caches = model.memory_caches(memory), model.empty_caches(2)
    for start, stop in [(0, 3), (3, 4), (4, T)]:
        logits, caches = model.extend(
            TARGET[:, start:stop], caches, memories, mask, jnp.full(2, start)
        )
        pieces.append(logits)
    assert_close(jnp.concatenate(pieces, axis=1), model(SOURCE, TARGET))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_targets_of_one_source_share_its_memory_and_caches(positions):
    model, beams = small(positions=positions), 3
    memory, memory_mask = model.encode(SOURCE)
    memories, caches = model.memory_caches(memory), model.empty_caches(2, capacity=beams * T)
    targets = (TARGET[:, None] + jnp.arange(beams)[:, None]) % V
    expected = model(jnp.repeat(SOURCE[:, None], beams, axis=1), targets)
    for t in range(T):
        logits, caches = model.extend(
            targets[..., t],
            caches,
            memories,
            memory_mask,
            jnp.int32(beams * t),
            positions=jnp.full((1, beams), t),
            mask=own_places(beams, T, t),
        )
        assert_close(logits, expected[..., t, :])


def test_caches_are_as_long_as_asked_for_or_as_the_context():
    model = small(decoder_blocks=2)
    for capacity in (None, 3):
        caches = model.empty_caches(4, 2, capacity=capacity)
        assert {cache.key.shape for cache in caches} == {(4, 2, 2, capacity or S, D // 2)}
        assert len(caches) == 2


# Batches, transformations, dropout


def test_a_pair_is_the_same_alone_as_in_a_batch():
    model, keys = small(norm_first=True), jax.random.split(KEY, 2)
    batched = model(SOURCE, TARGET, key=keys)
    assert_close(model(SOURCE[1], TARGET[1], key=keys[1]), batched[1])


def test_dropout_repeats_with_its_key_and_differs_without():
    model, keys = small(), jax.random.split(KEY)
    first, second = (model(SOURCE, TARGET, key=key) for key in keys)
    assert_same(model(SOURCE, TARGET, key=keys[0]), first)
    for other in (second, model(SOURCE, TARGET)):
        assert np.abs(first - other).max() > 1e-3


def test_every_dropout_of_a_call_has_a_key_of_its_own(monkeypatch):
    keys = []

    def random_bits(key, shape):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return F.random_bits(key, shape)

    monkeypatch.setattr(layers, "random_bits", random_bits)
    small()(SOURCE, TARGET, key=KEY)
    assert len(set(keys)) == len(keys) == (1 + 2 * 3) + (1 + 4)


@pytest.mark.parametrize("name", ["defaults", "separate", "shared", "learned", "all"])
def test_gradients_reach_every_parameter_and_are_finite(name):
    gradients, _ = gradients_and_logits(small(**SWITCHES[name][0]))
    assert_all_finite(gradients)
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("side", ["source", "target"])
@each_kind_of_positions
def test_too_many_tokens_are_refused_with_both_lengths(positions, side):
    sides = {"source": SOURCE[0], "target": TARGET[0]} | {side: jnp.ones(S + 1, int)}
    with pytest.raises(ValueError, match=r"length 8 .* length 7"):
        small(positions=positions)(**sides)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"decoder_blocks": 0}, "decoder_blocks must be at least 1, not 0"),
        ({"source_vocabulary_size": V + 1}, r"one vocabulary, not sizes \(9, 10\)"),
        ({"embeddings": "shared", "vocabulary_size": 5}, r"one vocabulary, not sizes \(5, 9\)"),
        ({"num_heads": 3}, "8 is not divisible by 3 heads"),
        ({"positions": "rotary", "head_width": 3}, "head width must be even"),
        ({"hidden_dropout": 1.0}, "not 1.0"),
    ],
)
def test_configs_that_cannot_be_are_refused(switches, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **switches)
