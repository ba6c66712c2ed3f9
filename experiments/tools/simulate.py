"""Simulated studies: coverage of the speedup's interval, and success of successive halving:

    .venv/bin/python -m experiments.tools.simulate

Losses fall as 1.2 + 8 steps^-0.45. To each are added normal effects of the example, of example and
variant, of the seed and of the run, and a residual, all as large as in runs of the 0.8M shape. In
the second table the loss is a parabola of the index of the learning rate; at early rungs its
minimum is displaced by a normal shift, which vanishes at the last step.
"""

import numpy as np
from jaxtyping import Float

from tlite.comparison.halving import rungs, survivors
from tlite.comparison.speedup import speedup

BUDGETS = 250, 500, 1000, 2000
EXAMPLES = 26
EXAMPLE_SD, INTERACTION_SD, SEED_SD, RUN_SD, RESIDUAL_SD = 0.1, 0.01, 0.006, 0.004, 0.02  # nats


def loss(steps: float) -> float:
    return 1.2 + 8.0 * steps**-0.45


def draw_study(
    rng: np.random.Generator,
    seeds: int,
    factor: float,
    paired: bool = True,
    examples: int = EXAMPLES,
) -> tuple[dict[int, Float[np.ndarray, "S N"]], Float[np.ndarray, "S N"]]:
    """Return scores by budget of a run `factor` times as fast as the reference, and the scores of
    the reference at the largest budget."""
    text, interaction = rng.normal(0, (EXAMPLE_SD, INTERACTION_SD), (examples, 2)).T
    seed, other = rng.normal(0, SEED_SD, (2, seeds, 1))

    def cells(mean: float, effect: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S N"]:
        by_cell = rng.normal(0, RESIDUAL_SD, (seeds, examples))
        return mean + text + effect + rng.normal(0, RUN_SD, (seeds, 1)) + by_cell

    effect = (seed if paired else other) + interaction
    run = {steps: cells(loss(factor * steps), effect) for steps in BUDGETS}
    return run, cells(loss(BUDGETS[-1]), seed)


def coverage(seeds: int, factor: float, paired: bool, studies: int = 1000) -> tuple[float, float]:
    """Return the coverage of the interval, and the median of its upper over its lower end."""
    rng, covered, ratios = np.random.default_rng([seeds, int(100 * factor), paired]), 0, []
    for _ in range(studies):
        result = speedup(*draw_study(rng, seeds, factor, paired), BUDGETS[-1], paired=paired)
        covered += result.low <= factor <= result.high
        ratios.append(result.high / result.low if result.low else np.inf)
    return covered / studies, float(np.median(ratios))


def simulate_halving(
    rng: np.random.Generator, seeds: int, curvature: float, values: int = 8, steps: int = 2000
) -> tuple[bool, float, float]:
    """Return whether the best value was selected, the cost relative to all runs, and the regret."""
    optimum, shift = rng.uniform(0.5, values - 1.5), rng.normal(0, 0.5)
    text, seed = rng.normal(0, EXAMPLE_SD, EXAMPLES), rng.normal(0, SEED_SD, (seeds, 1))
    effects = rng.normal(0, INTERACTION_SD, (values, EXAMPLES))
    by_run = rng.normal(0, RUN_SD, (values, seeds, 1))
    alive, cost, last = [*range(values)], 0, 0
    for rung, at in enumerate([*rungs(steps, values), steps], 1):
        cost, last = cost + len(alive) * (at - last), at
        best = optimum + shift * (1 - at / steps)
        scores = {
            value: curvature * (value - best) ** 2
            + (text + effects[value] + seed + by_run[value])
            + rng.normal(0, RESIDUAL_SD, (seeds, EXAMPLES))
            for value in alive
        }
        alive = survivors(scores, max(values // 2**rung, 1))
    regret = curvature * ((alive[0] - optimum) ** 2 - (round(optimum) - optimum) ** 2)
    return alive[0] == round(optimum), cost / (values * steps), regret


def main() -> None:
    print("Coverage of the speedup's 95 % interval, and its width (upper over lower end)")
    for seeds in (3, 5, 10):
        for paired in (True, False):
            cells = [coverage(seeds, factor, paired) for factor in (1.1, 1.5, 2.2)]
            texts = "  ".join(f"{100 * c:5.1f} % ({width:.2f})" for c, width in cells)
            print(f"{seeds:2} seeds, {'paired' if paired else 'unpaired':8}  {texts}")
    print("Successive halving of eight values: best selected, cost relative to all, regret in nats")
    for curvature in (0.01, 0.03, 0.1):
        for seeds in (1, 3, 5):
            rng = np.random.default_rng([seeds, int(1000 * curvature)])
            result = np.array([simulate_halving(rng, seeds, curvature) for _ in range(1000)])
            right, cost, regret = result.mean(0)
            label = f"curvature {curvature:.2f}, {seeds} seeds"
            print(f"{label}  {100 * right:5.1f} %  {cost:.2f}  {regret:.4f}")


if __name__ == "__main__":
    main()
