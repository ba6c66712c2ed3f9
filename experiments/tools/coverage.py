"""Coverage of the 95 % intervals of `tlite.comparison` in simulated studies:

    .venv/bin/python -m experiments.tools.coverage

Seeds and examples are drawn anew in each study. The first table is of independent examples, by the
numbers of seeds S and examples (or blocks) N, and by the standard deviation that seeds give to the
mean relative to that which examples give. The second is of windows of a text, five seeds.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.signal import lfilter
from scipy.special import ndtr

from tlite.comparison.blocks import scores_of_one_run
from tlite.comparison.statistics import variance
from tlite.training.metrics import ExampleScores

SEEDS, EXAMPLES, RATIOS = (2, 3, 4, 5, 10, 20, 30), (2, 4, 10, 26, 200), (0.0, 0.5, 1.0, 2.0, 5.0)
EXAMPLE, RESIDUAL = 0.5, 0.3  # standard deviations of an example, and of each seed's on it
WINDOWS = 100, 676, 2000


def coverage(
    seeds: int, examples: int, ratio: float, studies: int = 4000, groups: int = 1
) -> tuple[float, float]:
    """Coverage of the interval for new seeds and examples, and of the wider of its two parts.

    This is the mean of P(|mean| <= half_width | half_width): the two are independent for normal
    scores. The simulation error is below 0.005.

    Args:
        ratio: standard deviation of the mean over seeds relative to that over examples.
        groups: 2 for runs of different seeds, each with `ratio`.
    """
    rng = np.random.default_rng([seeds, examples, int(10 * ratio)])
    seed = ratio * EXAMPLE * (seeds / examples) ** 0.5
    common = EXAMPLE * rng.standard_normal((studies, 1, examples))
    tables = []
    for _ in range(groups):
        own = RESIDUAL * rng.standard_normal((studies, seeds, examples), np.float32)
        tables.append(common + seed * rng.standard_normal((studies, seeds, 1)) + own)
        common = 0.0
    variances = variance(*tables)
    parts = variances.half_widths
    by_group = seed**2 / seeds + RESIDUAL**2 / (seeds * examples)
    deviation = (EXAMPLE**2 / examples + groups * by_group) ** 0.5
    return tuple(
        float(np.mean(2 * ndtr(half / deviation) - 1))
        for half in (variances.half_width, np.maximum(parts.seeds, parts.examples))
    )


def autoregressive(correlation: float) -> Callable:
    """Return a function that draws scores with this correlation of neighbours."""

    def draw(rng: np.random.Generator, windows: int) -> Float[np.ndarray, "W"]:
        scores = rng.standard_normal(windows)
        scores[0] /= (1 - correlation**2) ** 0.5
        return lfilter([1], [1, -correlation], scores)

    return draw


def scenes(length: int) -> Callable:
    """Return a function that draws scores that change after `length` windows on average."""

    def draw(rng: np.random.Generator, windows: int) -> Float[np.ndarray, "W"]:
        ends = rng.random(windows) < 1 / length
        return rng.standard_normal(windows + 1)[ends.cumsum()]

    return draw


TEXTS = {
    "independent": autoregressive(0.0),
    "AR(1) 0.7": autoregressive(0.7),
    "AR(1) 0.9": autoregressive(0.9),
    "AR(1) 0.95": autoregressive(0.95),
    "scenes of 30 windows": scenes(30),
    "scenes of 100 windows": scenes(100),
}


def text_coverage(draw: Callable, windows: int, studies: int = 1000) -> tuple[float, float]:
    """Coverage for new stretches of a text, five seeds; and the mean number of blocks."""
    rng, covered, blocks = np.random.default_rng(windows), 0, 0
    for _ in range(studies):
        own = 0.5 * rng.standard_normal((5, windows)) + 0.02 * rng.standard_normal((5, 1))
        scores = draw(rng, windows) + own
        table = scores_of_one_run(ExampleScores(1, np.ones(windows), {"loss": scores}), "loss").run
        covered += abs(table.mean()) <= variance(table).half_width
        blocks += table.shape[1]
    return covered / studies, blocks / studies


def main() -> None:
    print("$ python -m experiments.tools.coverage")
    print("coverage in %, in brackets of the wider part alone; columns: SD of seeds / of examples")
    print(f"  S    N  {''.join(f'{ratio:>15g}' for ratio in RATIOS)}")
    for seeds in SEEDS:
        for examples in EXAMPLES:
            pairs = (coverage(seeds, examples, ratio) for ratio in RATIOS)
            cells = (f"{100 * both:6.1f} ({100 * wider:.1f})" for both, wider in pairs)
            print(f"{seeds:3} {examples:4}  {''.join(f'{cell:>15}' for cell in cells)}")
    print("\nblocks of a text: coverage in %, in brackets the mean number of blocks")
    print(f"{'windows':>24} {''.join(f'{windows:>13,}' for windows in WINDOWS)}")
    for name, draw in TEXTS.items():
        pairs = (text_coverage(draw, windows) for windows in WINDOWS)
        cells = (f"{100 * covered:.1f} ({blocks:.0f})" for covered, blocks in pairs)
        print(f"{name:>24} {''.join(f'{cell:>13}' for cell in cells)}", flush=True)


if __name__ == "__main__":
    main()
