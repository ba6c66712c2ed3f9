"""Points to try: evenly spaced, rounded, combined, or Sobol points; wrong input is named."""

import itertools
import math
from functools import partial

import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tlite.comparison.search_space import (
    Range,
    describe_change,
    end_of_range_warnings,
    make_search_space,
    sample_space,
)
from tlite.data import BuiltinText
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig, Norm

EXPERIMENT = GeneratorExperiment("x", BuiltinText(), model=GeneratorConfig(context=8))
RATE = "training.learning_rate"


def points(fields, trials=8):
    return sample_space(make_search_space(EXPERIMENT, fields), trials)


def test_a_single_range_is_evenly_spaced_in_the_logarithm():
    rates = [[p[RATE] for p in points({RATE: (1e-4, 1e-1)}, trials)] for trials in (4, 8)]
    assert rates[0] == [1e-4, 1e-3, 1e-2, 1e-1]
    assert rates[1][3] == float(f"{1e-4 * 1000 ** (3 / 7):.3g}")
    widths = [point["model.width"] for point in points({"model.width": (4, 8)}, 20)]
    assert widths == [4, 5, 6, 7, 8]  # integers are rounded, and tried once


def test_choices_are_combined_if_there_are_few():
    fields = {"model.norm": ["layer", "rms"], "training.schedule": ["constant", "cosine"]}
    names = [describe_change(point).split() for point in points(fields, 4)]
    pairs = itertools.product(("layer", "rms"), ("constant", "cosine"))
    assert names == [[f"norm={norm}", f"schedule={schedule}"] for norm, schedule in pairs]
    assert len(points(fields, 3)) <= 3


def test_names_of_functions_and_components_are_stable():
    """A name with an address would make another tuning, and other folders, in each process."""
    functions = [optax.sgd, partial(optax.adamw, b2=0.9, weight_decay=0)]
    norms = [Norm(epsilon=1e-6), Norm(epsilon=1e-3)]
    fields = {"training.optimizer": functions, "model.norm": norms}
    first, *_, last = map(describe_change, points(fields))
    assert first == "optimizer=sgd of optax norm=Norm(epsilon=1e-06)"
    assert last == "optimizer=adamw of optax (b2=0.9, weight_decay=0) norm=Norm(epsilon=0.001)"


@given(st.floats(1e-8, 1.0), st.floats(1.0001, 1e4), st.floats(0, 1))
def test_rounded_points_stay_in_their_range(low, ratio, fraction):
    axis = Range(low, low * ratio)
    assert axis.low <= axis.point(fraction) <= axis.high


def test_several_axes_are_sampled_once_in_each_eighth():
    sampled, again = (points({RATE: (1e-4, 1e-1), "model.norm": ["layer", "rms"]}, 8) for _ in "ab")
    eighths = [int(8 * math.log(point[RATE] / 1e-4) / math.log(1000)) for point in sampled]
    assert sorted(eighths) == list(range(8))
    assert {point["model.norm"] for point in sampled} == {"layer", "rms"}
    assert sampled == again


@pytest.mark.parametrize(("value", "end"), [(1e-4, "low"), (1e-1, "high"), (1.93e-3, "")])
def test_a_value_at_an_end_of_its_range_is_warned_of(value, end):
    warnings = " ".join(end_of_range_warnings({RATE: Range(1e-4, 1e-1)}, {RATE: value}, 8))
    assert f"at the {end} end of the range 0.0001..0.1" in warnings if end else not warnings


MISTAKES = {
    "reversed": ({RATE: (0.1, 0.001)}, 8, "0 < LOW < HIGH, not 0.1..0.001"),
    "zero": ({RATE: (0.0, 1.0)}, 8, "not 0..1"),
    "one choice": ({"model.norm": ["rms"]}, 8, "two or more values"),
    "no number": ({"model.norm": ("layer", "rms")}, 8, "a range is two numbers"),
    "wrong type": ({RATE: ["a", "b"]}, 8, "expected float, not 'a'"),
    "no field": ({"training.lr": (1e-3, 1.0)}, 8, "no field 'training.lr'"),
    "data": ({"data.validation_fraction": (0.1, 0.2)}, 8, "can't be compared"),
    "steps": ({"training.steps": [10, 20]}, 8, "the same steps and seeds"),
    "one trial": ({RATE: (1e-3, 1.0)}, 1, "trials must be at least 2, not 1"),
    "one point": ({"model.norm": ["rms", "rms"]}, 8, "a single point to try: norm=rms rms"),
    "nothing": ({}, 8, "name a field to tune"),
}


@pytest.mark.parametrize(("fields", "trials", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_wrong_search_space_is_one_message(fields, trials, message):
    assert message in complaint(points, fields, trials)
