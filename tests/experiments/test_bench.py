from types import SimpleNamespace

import jax
import pytest

from experiments.benchmarks import gpt2_worker
from experiments.benchmarks.bench import check_parameters, compare
from experiments.benchmarks.settings import TRAINING
from tlite.errors import UserError
from tlite.models import CausalLM, count_parameters


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


@pytest.mark.parametrize("setting", TRAINING, ids=lambda s: s.name)
def test_flops_are_those_of_the_products_of_a_step(setting):
    """Counted layer by layer: 2 a multiplication, forward once and backward twice."""
    width, context = setting.width, setting.context
    block = 4 * width * width + 8 * width * width + 2 * context * width
    products = setting.num_blocks * block + width * setting.vocabulary_size
    assert setting.flops_per_token() == pytest.approx(6 * products, rel=0.01)


def test_the_large_shape_is_gpt_2():
    config = gpt2_worker.config()
    shapes = jax.eval_shape(lambda: CausalLM(config, rng=jax.random.key(0)))
    assert count_parameters(shapes) == 124_439_808
