"""The summary names every layer with its count, and the total."""

import jax

from tlite import modules
from tlite.models import GeneratorConfig

KEY = jax.random.key(0)


def test_the_summary_of_a_layer_is_a_tree_of_shapes_and_counts():
    lines = modules.summary(modules.FeedForward(300, 40, key=KEY)).splitlines()
    assert [line.split() for line in lines if not line.startswith("-")] == [
        ["FeedForward", "24,340"],
        ["hidden:", "Linear", "12,040"],
        ["kernel", "300", "x", "40", "12,000"],
        ["bias", "40", "40"],
        ["output:", "Linear", "12,300"],
        ["kernel", "40", "x", "300", "12,000"],
        ["bias", "300", "300"],
        ["total:", "24,340", "parameters", "in", "4", "arrays"],
    ]


def test_the_summary_leaves_out_what_a_layer_does_not_have():
    assert "bias" not in modules.summary(modules.Linear(3, 5, bias=False, key=KEY))


def test_counts_of_leaves_sum_to_the_total():
    block = modules.EncoderBlock(GeneratorConfig(), key=KEY)
    *rows, _, total = modules.summary(block).splitlines()
    counts = [
        int(row.split()[-1].replace(",", ""))
        for row in rows
        if row.split()[0] in ("kernel", "bias", "scale")
    ]
    assert sum(counts) == modules.count_parameters(block)
    assert total == "total: 12,608 parameters in 13 arrays"
