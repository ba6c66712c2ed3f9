"""Search space of `tlite tune`: ranges and choices by dotted field, and the points to try."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from tlite.config import convert_value
from tlite.errors import UserError
from tlite.user_code import name_of

Change = dict[str, Any]
"""Values of an experiment's fields by dotted name, as for `override`."""


@dataclass(frozen=True)
class Range:
    """A logarithmic range of a float or an integer, both ends included."""

    low: float | int
    high: float | int

    def __post_init__(self):
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"a logarithmic range needs 0 < LOW < HIGH, not {self}")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def point(self, fraction: float) -> float | int:
        """Return low (high / low)^fraction as an integer, or as a float of three digits."""
        if fraction in (0, 1):
            return self.high if fraction else self.low
        value = self.low * (self.high / self.low) ** fraction
        if isinstance(self.low, int):
            return round(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def fraction(self, value: float) -> float:
        """Return the position of a value, from 0 at the low end to 1 at the high one."""
        return math.log(value / self.low) / math.log(self.high / self.low)


SearchSpace = dict[str, Range | tuple]
"""A range or choices by dotted field."""


def make_search_space(experiment: Any, fields: Mapping[str, Any]) -> SearchSpace:
    """Return the search space of ranges (low, high) and lists of choices by dotted field.

    Raises:
        UserError: there is no such field, a value does not fit it, its losses could not be
            compared (another data set, say), or there are fewer than two values.
    """
    space = {}
    for name, values in fields.items():
        try:
            if name.split(".")[0] in ("data", "tokenizer"):
                raise ValueError("losses of other data or tokenizers can't be compared")
            if name in ("training.steps", "training.seed", "training.seeds"):
                raise ValueError("all trials have the same steps and seeds")
            space[name] = make_axis(experiment, name, values)
        except ValueError as error:
            reason = str(error).removeprefix(f"{name}: ")
            raise UserError(f"can't tune {name}: {reason}") from error
    if not space:
        raise UserError("name a field to tune, as in --vary learning-rate 1e-4..1e-1")
    return space


def make_axis(experiment: Any, name: str, values: Any) -> Range | tuple:
    """Return the `Range` of a tuple (low, high), or the tuple of choices of a list."""
    if not isinstance(values, tuple):
        choices = tuple(convert_value(experiment, name, value) for value in values)
        if len(choices) < 2:
            raise ValueError("two or more values are needed, or a range (low, high)")
        return choices
    ends = tuple(convert_value(experiment, name, value) for value in values)
    if len(ends) != 2 or not all(type(end) in (int, float) for end in ends):
        raise ValueError(f"a range is two numbers (low, high), not {values}; choices are a list")
    return Range(*ends)


def sample_space(space: SearchSpace, trials: int) -> list[Change]:
    """Return the points to try, without duplicates.

    They are `trials` points of a single range, evenly spaced in the logarithm; all combinations of
    choices if these are at most `trials`; else scrambled Sobol points (Owen 1998).

    Raises:
        UserError: `trials` is below 2, or there is only one point.
    """
    if trials < 2:
        raise UserError(f"trials must be at least 2, not {trials}")
    axes = [*space.values()]
    has_range = any(isinstance(axis, Range) for axis in axes)
    if not has_range and math.prod(map(len, axes)) <= trials:
        points = [*itertools.product(*axes)]
    elif has_range and len(axes) == 1:
        points = [(axes[0].point(i / (trials - 1)),) for i in range(trials)]
    else:
        from scipy.stats import qmc  # takes half a second to import

        exponent = math.ceil(math.log2(trials))
        sobol = qmc.Sobol(len(axes), seed=0).random_base2(exponent)[:trials]
        points = [tuple(map(pick, axes, row)) for row in sobol.tolist()]
    points = list({repr(point): point for point in points}.values())
    if len(points) < 2:
        raise UserError(f"there is a single point to try: {describe_change(space)}")
    return [dict(zip(space, point, strict=True)) for point in points]


def pick(axis: Range | tuple, fraction: float) -> Any:
    """Return the value at a position in [0, 1) of an axis."""
    return axis.point(fraction) if isinstance(axis, Range) else axis[int(fraction * len(axis))]


def describe_value(value: Any) -> str:
    """Return a value as text, a component with the fields that are not its class's defaults.

    A component in the form that `to_dict` writes is described by its class's name alone.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(describe_value, value))
    if isinstance(value, dict):
        return str(value.get("name", value.get("kind", value)))
    if is_dataclass(value) and not isinstance(value, Range):
        values = {}
        for field in fields(value):
            is_made = field.default_factory is not MISSING
            default = field.default_factory() if is_made else field.default
            if repr(setting := getattr(value, field.name)) != repr(default):
                values[field.name] = setting
        settings = ", ".join(f"{name}={describe_value(v)}" for name, v in values.items())
        return f"{type(value).__name__}({settings})"
    if callable(value):
        return name_of(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_change(change: Change) -> str:
    """Return a change as text: learning_rate=0.00316, by the last part of each dotted name."""
    pairs = ((name.rpartition(".")[2], describe_value(value)) for name, value in change.items())
    return " ".join(f"{name}={value}" for name, value in pairs)


def end_of_range_warnings(space: SearchSpace, change: Change, trials: int) -> list[str]:
    """Return a sentence for each value within half the spacing of points of a range's end."""
    warnings = []
    for name, axis in space.items():
        if not isinstance(axis, Range):
            continue
        fraction = axis.fraction(change[name])
        if min(fraction, 1 - fraction) < 0.5 / trials:
            end = "low" if fraction < 0.5 else "high"
            warnings.append(
                f"the best {name}, {describe_value(change[name])}, is at the {end} end of the "
                f"range {axis}: a wider range may have a better one"
            )
    return warnings
