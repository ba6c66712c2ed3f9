"""Search space of `tlite tune`: a range or a list of choices for each field, and points to try."""

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
        """Return low (high / low)^fraction, as an integer or a float with 3 significant digits."""
        if fraction in (0, 1):
            return self.high if fraction else self.low
        value = self.low * (self.high / self.low) ** fraction
        if isinstance(self.low, int):
            return round(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def fraction(self, value: float) -> float:
        """Return the inverse of `point`: 0 for the low end, 1 for the high end."""
        return math.log(value / self.low) / math.log(self.high / self.low)


SearchSpace = dict[str, Range | tuple]
"""A range or a tuple of choices for each dotted field."""


def make_search_space(experiment: Any, values_by_field: Mapping[str, Any]) -> SearchSpace:
    """Return the search space, its values converted to the types of the fields.

    Args:
        values_by_field: by dotted name a tuple (low, high) for a range, or a list of choices.

    Raises:
        UserError: there is no such field, a value does not fit it, losses with its values can't be
            compared (other data, say), or there are fewer than two values.
    """
    space = {}
    for name, values in values_by_field.items():
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
    """Return at most `trials` different points to try.

    They are evenly spaced in the logarithm for a single range, all combinations of choices if there
    are no ranges and at most `trials` combinations, and else scrambled Sobol points (Owen 1998).

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
    """Return the value of an axis at a fraction in [0, 1) of its length."""
    return axis.point(fraction) if isinstance(axis, Range) else axis[int(fraction * len(axis))]


def describe_value(value: Any) -> str:
    """Return a value as text; a component as its class with the fields that are not defaults.

    A component as `to_dict` writes it is described by the name of its class alone.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(describe_value, value))
    if isinstance(value, dict):
        return str(value.get("name", value.get("kind", value)))
    if is_dataclass(value) and not isinstance(value, Range):
        values = {}
        for field in fields(value):
            has_factory = field.default_factory is not MISSING
            default = field.default_factory() if has_factory else field.default
            if repr(setting := getattr(value, field.name)) != repr(default):
                values[field.name] = setting
        settings = ", ".join(f"{name}={describe_value(v)}" for name, v in values.items())
        return f"{type(value).__name__}({settings})"
    if callable(value):
        return name_of(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_change(change: Change) -> str:
    """Return a change as text, such as learning_rate=0.00316, without the fields' parents."""
    pairs = ((name.rpartition(".")[2], describe_value(value)) for name, value in change.items())
    return " ".join(f"{name}={value}" for name, value in pairs)


def end_of_range_warnings(space: SearchSpace, change: Change, trials: int) -> list[str]:
    """Return a warning for each value that is less than half a grid step from an end of its range.

    Args:
        change: the best point.
        trials: number of points of the grid.
    """
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
