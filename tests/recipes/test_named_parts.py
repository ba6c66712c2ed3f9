"""What is told of a model's parts: its attention, and all that is the user's own."""

from dataclasses import dataclass

import pytest

from tlite import functional as F
from tlite.models import Attention, Block, FeedForward, GeneratorConfig, LogisticConfig
from tlite.models.config import named_parts

HERE = "of test_named_parts.py"


def attend(query, key, value, mask=None):
    return F.scaled_dot_product_attention(query, key, value, mask)


def squash(x):
    return x


@dataclass(frozen=True)
class Tempered(Attention):
    pass


@dataclass(frozen=True)
class Parallel(Block):
    pass


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (GeneratorConfig(attention="mixed", norm="rms"), {"attention": "mixed"}),
        (GeneratorConfig(attention=Attention("exact", rows=8)), {"attention": "exact by 8 rows"}),
        (GeneratorConfig(attention=attend), {"attention": f"attend {HERE}"}),
        (
            GeneratorConfig(attention=Tempered(), block=Parallel()),
            {"attention": f"Tempered {HERE}", "block": f"Parallel {HERE}"},
        ),
        (
            GeneratorConfig(feed_forward=FeedForward(activation=squash), norm=squash),
            {
                "attention": "auto",
                "activation": f"squash {HERE}",
                "norm": f"squash {HERE}",
            },
        ),
        (LogisticConfig(), {}),
    ],
    ids=["library", "rows", "function", "parts", "inside", "none"],
)
def test_attention_and_what_is_the_users_are_told(config, told):
    assert dict(named_parts(config)) == told
