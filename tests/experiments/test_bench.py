from types import SimpleNamespace

import pytest

from experiments.benchmarks.bench import check_parameters, compare
from tlite.errors import UserError


def contender(name, parameters=10, seconds=(1.0, 1.0)):
    return SimpleNamespace(
        name=name,
        ready={"parameters": parameters, "compile_seconds": 0.0},
        seconds=lambda: list(seconds),
    )


def test_models_of_different_sizes_are_an_error():
    assert check_parameters([contender("a"), contender("b")]) == 10
    with pytest.raises(UserError, match="differ"):
        check_parameters([contender("a"), contender("b", parameters=11)])


def test_ratios_are_those_of_the_fastest_of_each_side():
    ours = [contender("slow", seconds=(9, 9)), contender("quick", seconds=(1, 2))]
    theirs = [contender("eager", seconds=(4, 4)), contender("compiled", seconds=(6, 6))]
    result = compare(ours, theirs, num_tokens=100)
    assert result["best"] == ["quick", "eager"]
    assert result["ratios"] == [4, 2]
