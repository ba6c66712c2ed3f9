"""Scores with standard deviation and 95 % interval, as text."""

import numpy as np
from jaxtyping import Bool, Float


def spread(values: np.ndarray, style: str) -> str:
    """Return mean and standard deviation over replicas (M,) as text."""
    deviation = f" (SD {values.std(ddof=1):{style}})" if len(values) > 1 else ""
    return f"{values.mean():{style}}{deviation}"


def interval(scores: Float[np.ndarray, "M N"], examples: str, style: str) -> str:
    """Return the 95 % interval of the mean as text: ± half width and its parts.

    Args:
        scores: by seed and example, or block of examples (`comparison.statistics.variance`).
        examples: name of the examples: texts, pairs, or "text" for blocks of one text.
    """
    from tlite.comparison.blocks import population_phrase  # SciPy is slow to import
    from tlite.comparison.statistics import Difference, variance

    seeds, number = scores.shape
    mean = Difference(scores.mean(), variance(scores), (seeds, seeds), examples=number)
    half_width, (by_seeds, by_examples) = mean.half_width, mean.half_widths_by_source
    if half_width is None:
        return f"95 % for {population_phrase(examples)}, with this seed: ± {by_examples:{style}}"
    parts = f"(seeds {by_seeds:{style}}, {examples} {by_examples:{style}})"
    return f"95 % for new seeds and {population_phrase(examples)}: ± {half_width:{style}} {parts}"


def accuracy_interval(right: Bool[np.ndarray, "M N"], examples: str) -> str:
    """Return `interval` of an accuracy in percent; Wilson's interval if all are right or none."""
    from scipy.stats import binomtest  # slow to import

    if right.any() and not right.all():
        return interval(100.0 * right, examples, ".1f")
    number = right.shape[1]
    low, high = binomtest(int(right[0].all()) * number, number).proportion_ci(method="wilson")
    return f"95 % for new {examples}: {100 * low:.1f} to {100 * high:.1f} (Wilson)"
