"""Initial values by word, initializer and pattern."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite.errors import UserError
from tlite.models import CausalLM, GeneratorConfig, Loop, Norm
from tlite.models.init import (
    draw_initial_values,
    has_initializer,
    init_linear,
    init_norm,
    resolve_init,
)
from tlite.models.parameters import is_matrix, named_arrays, stack_blocks

CONFIG = GeneratorConfig(vocabulary_size=50, context=8, width=64, num_heads=4, num_blocks=3)
KEY = jax.random.key(1)
ARRAYS = named_arrays(CausalLM(CONFIG, rng=jax.random.key(0)))


def drawn(init, arrays=ARRAYS):
    init = resolve_init(init)
    inits = {name: init for name, a in arrays.items() if has_initializer(init, name, a)}
    return draw_initial_values(arrays, KEY, inits)


def test_default_keeps_every_value():
    assert all(a is ARRAYS[name] for name, a in drawn("default").items())


@dataclasses.dataclass(frozen=True)
class UnitNorm:
    def init(self, rng, config):
        return None

    def __call__(self, params, x):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def test_a_component_without_parameters_is_not_switched_off():
    logits = []
    for norm in (UnitNorm(), lambda params, x: x):
        config = GeneratorConfig(7, 8, width=8, num_heads=2, num_blocks=1, norm=norm)
        logits.append(CausalLM(config, rng=KEY)(jnp.arange(5)))
    assert (logits[0] != logits[1]).any()


def test_an_offset_that_is_an_integer_has_a_scale_of_floats():
    object.__setattr__(norm := Norm("rms"), "offset", 1)  # types are checked in tests alone
    config = GeneratorConfig(norm=norm)
    assert init_norm(KEY, config).scale.dtype == jnp.float32


@pytest.mark.parametrize("word", ["glorot", "normal", "gpt2", "orthogonal"])
def test_words_have_their_standard_deviation(word):
    for name, a in drawn(word).items():
        inputs, outputs = a.shape if a.ndim == 2 else (1, 1)
        is_output = name.startswith("blocks") and name.endswith("output.kernel")
        expected = {
            "glorot": (2 / (inputs + outputs)) ** 0.5,
            "normal": 0.02,
            "gpt2": 0.02 / 6**0.5 if is_output else 0.02,
            "orthogonal": max(inputs, outputs) ** -0.5,
        }[word]
        if is_matrix(name, a) or (word in ("normal", "gpt2") and name.endswith("table")):
            assert np.std(a) == pytest.approx(expected, rel=0.1)
            assert not np.array_equal(a, ARRAYS[name])
        else:
            assert a is ARRAYS[name]


def test_stacked_blocks_get_the_values_of_separate_ones():
    config = GeneratorConfig(50, 8, 64, num_heads=4, num_blocks=3, loop=Loop(scan=True))
    stacked = drawn("gpt2", named_arrays(CausalLM(config, rng=jax.random.key(0))))
    for name, a in stack_blocks(drawn("gpt2")).items():
        np.testing.assert_array_equal(stacked[name], a)


@pytest.mark.parametrize("name", ["blocks.0.feed_forward.experts", "blocks.feed_forward.experts"])
@pytest.mark.parametrize("word", ["glorot", "orthogonal"])
def test_each_matrix_of_a_stack_is_drawn_alone(word, name):
    shape = (2, 4, 32, 48) if "blocks.0" not in name else (4, 32, 48)
    experts = np.asarray(drawn(word, {name: jnp.ones(shape)})[name]).reshape(-1, 32, 48)
    assert len({a.tobytes() for a in experts}) == len(experts)
    for a in experts:
        if word == "orthogonal":
            np.testing.assert_allclose(a @ a.T, np.eye(32), atol=1e-5)
        else:
            assert np.std(a) == pytest.approx((2 / (32 + 48)) ** 0.5, rel=0.1)


def test_initializers_of_other_shapes_and_values_are_refused():
    with pytest.raises(ValueError, match="shape"):
        drawn(lambda key, shape, dtype: jnp.zeros(shape[0], dtype))
    for wrong in ("xavier", 3, int, ("*", "normal")):
        with pytest.raises(ValueError, match="init must be"):
            resolve_init(wrong)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_a_linear_layer_without_inputs_or_outputs_is_an_error(sizes):
    with pytest.raises(UserError, match="{} inputs and {} outputs".format(*sizes)):
        init_linear(KEY, *sizes)
