"""What `help` says."""

import doctest
import inspect

import pytest

from tlite import functional as F
from tlite.models import GeneratorConfig, TransformerGenerator, parts
from tlite.models.probe import probe


@pytest.mark.parametrize("part", ["Norm", "Attention", "FeedForward", "Positions", "Block"])
def test_the_example_of_a_part_works_and_passes_the_trial_before_a_run(part):
    names = {**vars(parts), "GeneratorConfig": GeneratorConfig}
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(parts, part), part, globs=names)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    probe(example.globs["config"], TransformerGenerator)


def test_functional_lists_its_functions():
    assert {"scaled_dot_product_attention", "causal_mask", "block", "sample"} <= {*F.__all__}
    functions = [value for name in F.__all__ if inspect.isfunction(value := getattr(F, name))]
    assert all(function.__doc__ for function in functions)
    asking = [f for f in functions if "params" in inspect.signature(f).parameters]
    assert all("params" in f.__doc__ for f in asking)  # what they must have
