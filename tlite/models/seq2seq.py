"""Encoder-decoder for translation ("Attention is all you need", section 3.1)."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

import tlite.functional as F
from tlite.config import Config, check_size
from tlite.models.block import Aux, add_aux, apply_layer
from tlite.models.components import Embedding, FeedForward, OutputLayer, Sinusoidal
from tlite.models.config import (
    MAX_BLOCKS,
    FeedForwardField,
    PositionsField,
    TransformerConfig,
    component,
)
from tlite.models.init import init_output_layer
from tlite.models.inputs import (
    BlockInputs,
    LayerCache,
    bidirectional_inputs,
    cached_inputs,
    causal_inputs,
)
from tlite.models.parameters import set_params
from tlite.models.transformer import (
    Transformer,
    embed,
    empty_caches,
    list_blocks,
    run_blocks,
    token_logits,
)

START_ID, END_ID = 2, 3  # of `text.PairTokenizer`


@dataclass(frozen=True)
class SpecialTokens(Config, counts="pad_id"):
    """Ids of special tokens."""

    pad_id: int = 0
    """Padding of short sequences, which no token attends to."""
    bos_id: int | None = None
    """First token of a target; None: the tokenizer's start token."""
    eos_id: int | None = None
    """Last token of a target; None: the tokenizer's end token."""
    forced_bos_id: int | None = None
    """First token of every translation; None: the most probable one."""

    def __post_init__(self):
        super().__post_init__()
        if self.pad_id == (END_ID if self.eos_id is None else self.eos_id):
            raise ValueError(f"pad_id and eos_id can't both be {self.pad_id}")


@dataclass(frozen=True)
class TranslatorHead(OutputLayer, positive="scale"):
    """Output layer of an encoder-decoder."""

    embeddings: Literal["separate", "shared", "tied"] = "tied"
    """Tables of source and target: separate, one shared, or one tied to the output layer too."""
    scale: float = 1.0
    """Factor of the vectors before the output layer."""


@dataclass(frozen=True)
class Seq2SeqConfig(TransformerConfig, counts="source_vocabulary_size"):
    """Sizes and components of an encoder-decoder (`Seq2Seq`).

    `vocabulary_size` is the target's, `num_blocks` the encoder's. The defaults are the base
    model of 2017, scaled down.
    """

    source_vocabulary_size: int = 0
    """Number of source tokens; 0: the tokenizer's."""
    decoder_blocks: int | None = None
    """Blocks of the decoder; None: `num_blocks`."""
    embedding: Embedding = Embedding(scale=True)
    """Token embedding."""
    positions: PositionsField = component("positions", Sinusoidal())
    """Position encoding: added to the embedding, rotating queries and keys, or a bias of scores."""
    feed_forward: FeedForwardField = component("feed_forward", FeedForward(dropout=0.1))
    """Feed-forward layer."""
    head: TranslatorHead = TranslatorHead()
    """Output layer."""
    special_tokens: SpecialTokens = SpecialTokens()
    """Ids of special tokens."""

    def __post_init__(self):
        super().__post_init__()
        check_size("decoder_blocks", self.num_decoder_blocks, MAX_BLOCKS)
        sizes = self.vocabulary_size, self.source_vocabulary_size
        if self.head.embeddings != "separate" and sizes[0] != sizes[1]:
            raise ValueError(f"a shared embedding needs one vocabulary, not sizes {sizes}")

    @property
    def num_decoder_blocks(self) -> int:
        return self.num_blocks if self.decoder_blocks is None else self.decoder_blocks


Memories = tuple[list[Any], Bool[Array, "*batch 1 1 S"]]
"""Each decoder block's cache of the encoder's output, and the source's mask."""


class TreeInputs(NamedTuple):
    """Arrays of T tokens that belong to T hypotheses of one source, which share a cache."""

    positions: Int[Array, "*#batch T"]
    key_positions: Int[Array, "*#batch C"]
    """Positions of the tokens in the cache."""
    mask: Bool[Array, "..."]
    """(..., T, C): True for the cache slots of the token's hypothesis; the slots start to
    start + T - 1 hold the new tokens."""


class Seq2Seq(nnx.Module):
    """Encoder-decoder: source (..., S) and target (..., T) to logits (..., T, V) of next tokens."""

    def __init__(self, config: Seq2SeqConfig, *, rng: Key[Array, ""]):
        encoder_key, decoder_key, head_key = jax.random.split(rng, 3)
        is_separate = config.head.embeddings == "separate"
        separate = dataclasses.replace(config, head=TranslatorHead("separate"))
        encoder = dataclasses.replace(separate, vocabulary_size=config.source_vocabulary_size)
        decoder = dataclasses.replace(config, num_blocks=config.num_decoder_blocks)
        self.encoder = Transformer(encoder, rng=encoder_key)
        self.decoder = Transformer(
            decoder, rng=decoder_key, embedding=is_separate, cross_attention=True, is_causal=True
        )
        tied = config.head.embeddings == "tied"
        set_params(self, init_output_layer(head_key, config, tied=tied))
        self.config = config

    def __call__(
        self,
        source: Int[Array, "*batch S"],
        target: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the token after each of the target's.

        Args:
            rng: dropout key, or one per example; None: evaluation.
            tap: called as x = tap(name, x) on the values inside.

        Raises:
            ValueError: more tokens than the model's context.
        """
        return self.logits_and_aux(source, target, rng=rng, tap=tap)[0]

    def logits_and_aux(
        self,
        source: Int[Array, "*batch S"],
        target: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> tuple[Float[Array, "*batch T V"], Aux]:
        """Logits, and the sums of the scalars that layers of encoder and decoder add."""
        scope = F.scoped(tap, "encoder")
        memory, mask, encoder_aux = self.encode_with_aux(source, F.fold_in(rng, 0), scope)
        inputs = causal_inputs(target.shape[-1])
        inputs = dataclasses.replace(inputs, memory=memory, memory_mask=mask)
        x, rng = self.embed_target(target), F.fold_in(rng, 1)
        x, _, aux = run_blocks(self.decoder, x, inputs, rng=rng, tap=F.scoped(tap, "decoder"))
        return self.logits(x, tap), add_aux(encoder_aux, aux)

    def encode(
        self, source: Int[Array, "*batch S"], *, rng=None, tap: F.Tap = F.no_tap
    ) -> tuple[Float[Array, "*batch S D"], Bool[Array, "*batch 1 1 S"]]:
        """Return the encoder's output and the mask of tokens that are no padding."""
        return self.encode_with_aux(source, rng, tap)[:2]

    def encode_with_aux(
        self, source: Int[Array, "*batch S"], rng: Key[Array, "..."] | None, tap: F.Tap
    ) -> tuple[Float[Array, "*batch S D"], Bool[Array, "*batch 1 1 S"], Aux]:
        """Return the result of `encode`, and the sums of the scalars of the encoder's layers."""
        valid = source != self.config.special_tokens.pad_id
        x, inputs = embed(self.encoder, source), bidirectional_inputs(valid)
        x, _, aux = run_blocks(self.encoder, x, inputs, rng=rng, tap=tap)
        return x, valid[..., None, None, :], aux

    def memories(self, source: Int[Array, "*batch S"]) -> Memories:
        """Return each decoder block's cache of the encoder's output, and the source's mask."""
        memory, mask = self.encode(source)
        token, caches = memory[..., :1, :], []  # its output is not used
        blocks = zip(list_blocks(self.decoder), self.decoder.config.blocks, strict=True)
        for params, config in blocks:
            layer, inputs = params.cross_attention, BlockInputs(mask)
            _, cache, _ = apply_layer(
                config.attention, layer, token, inputs, config=config, memory=memory
            )
            caches.append(cache)
        return caches, mask

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[LayerCache],
        memories: Memories,
        start: Int[Array, "*#batch"],
        *,
        tree: TreeInputs | None = None,
        valid: Bool[Array, "*#batch T"] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> tuple[Float[Array, "*batch T V"], list[LayerCache]]:
        """Logits of T more tokens of a target with `start` tokens in the caches; new caches.

        With `tree` the T tokens do not follow each other (tree decoding).
        """
        memory_caches, memory_mask = memories
        inputs = cached_inputs(tokens.shape[-1], caches, start, self.config.context, valid)
        arrays = {} if tree is None else tree._asdict()
        inputs = dataclasses.replace(inputs, memory_mask=memory_mask, **arrays)
        x = self.embed_target(tokens, inputs.positions)
        both = [c | {"cross_attention": m} for c, m in zip(caches, memory_caches, strict=True)]
        scope = F.scoped(tap, "decoder")
        x, both, _ = run_blocks(self.decoder, x, inputs, caches=both, tap=scope)
        caches = [{n: v for n, v in c.items() if n != "cross_attention"} for c in both]
        return self.logits(x, tap), caches

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[LayerCache]:
        """Return for each decoder block cache entries of zeros with `capacity` positions."""
        return empty_caches(self.decoder, *batch, capacity=capacity, cross_attention=True)

    def embed_target(self, tokens, positions=None) -> Float[Array, "*batch T D"]:
        """Embed target tokens, by the source's table unless they have their own."""
        is_separate = self.config.head.embeddings == "separate"
        table = None if is_separate else self.encoder.embedding.table[...]
        return embed(self.decoder, tokens, positions, table=table)

    def logits(
        self, x: Float[Array, "*batch T D"], tap: F.Tap = F.no_tap
    ) -> Float[Array, "*batch T V"]:
        """Return the logits of final vectors: a linear layer, or products with the embedding."""
        head = self.config.head
        x = x if head.scale == 1 else head.scale * x
        logits = token_logits(self, self.encoder.embedding, x, tied=head.embeddings == "tied")
        return F.scoped(tap, "")("logits", logits)
