"""The shapes that are timed: width, depth and batch of nanoGPT-style generators."""

from dataclasses import dataclass

from tlite.models import GeneratorConfig


@dataclass(frozen=True)
class Setting:
    name: str
    width: int
    num_blocks: int
    num_heads: int
    context: int
    batch_size: int
    steps: int
    """Steps in one timed round."""
    vocabulary_size: int = 66
    dropout: float = 0.1

    def config(self, **changes) -> GeneratorConfig:
        """nanoGPT's architecture: pre-norm, GELU, learned positions, no biases, tied head."""
        return GeneratorConfig(
            vocabulary_size=self.vocabulary_size,
            context=self.context,
            width=self.width,
            num_heads=self.num_heads,
            num_blocks=self.num_blocks,
            dropout=self.dropout,
            norm_first=True,
            activation="gelu",
            bias=False,
            tied_head=True,
            **changes,
        )

    def flops_per_token(self, num_parameters: int) -> float:
        """6 N + 12 L D T of a training step (Chowdhery et al. 2022, appendix B).

        N leaves out the position table, which is looked up; the tied embedding counts once, as
        the head. Attention is counted over the whole context, as its products are computed.
        """
        multiplied = num_parameters - self.context * self.width
        return 6 * multiplied + 12 * self.num_blocks * self.width * self.context


TRAINING = [
    Setting("44k", 32, 3, 4, 64, 32, steps=200),
    Setting("0.8M", 128, 4, 4, 64, 12, steps=60),
    Setting("10.8M", 384, 6, 6, 256, 8, steps=3),
]
GENERATION = Setting("0.8M, context 512", 128, 4, 4, 512, 1, steps=0, dropout=0.0)
NEW_TOKENS = 500
