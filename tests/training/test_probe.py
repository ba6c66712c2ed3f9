"""A user's functions are tried before a run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.helpers.functions import hinge, sign_momentum, triangle
from tlite import functional as F
from tlite.errors import UserError
from tlite.training import ParameterGroup, TrainingConfig
from tlite.training.probe import PARAMETERS, probe_init, probe_loss, probe_training


def probe(config, num_classes=7):
    probe_training(config)
    probe_loss(config, num_classes)
    probe_init(config, {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in PARAMETERS.items()})


SCALE = 1.0
GOOD = [
    {"optimizer": sign_momentum},
    {"optimizer": optax.sgd},
    {"optimizer": partial(optax.adamw, b2=0.95)},
    {"optimizer": optax.contrib.muon},
    {"optimizer": optax.adafactor},
    {"schedule": triangle},
    {"schedule": optax.cosine_decay_schedule(1.0, 5000)},
    {"schedule": optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 5000), "learning_rate": 1.0},
    {"loss": hinge},
    {"schedule": lambda step: 1.0, "steps": 8, "warmup_steps": 100},
    {"groups": (ParameterGroup("*", optimizer=sign_momentum),)},
    {"init": jax.nn.initializers.orthogonal()},
    {"init": lambda key, shape, dtype: jax.random.normal(key, shape, dtype)},
    {"groups": (ParameterGroup("*.scale", init=jax.nn.initializers.zeros),)},
]


@pytest.mark.parametrize("changes", GOOD, ids=lambda changes: next(iter(changes)))
def test_functions_that_keep_their_contract_pass(changes):
    probe(TrainingConfig(**changes))


def scaled(logits, targets):
    return SCALE * F.token_cross_entropy(logits, targets)


def test_a_loss_may_read_another_value_in_a_second_run(monkeypatch):
    probe(TrainingConfig(loss=scaled))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    probe(TrainingConfig(loss=scaled))


def growing_state(learning_rate):
    update = lambda g, state, params: (g, jnp.append(state, 0.0))  # noqa: E731
    return optax.GradientTransformation(lambda params: jnp.zeros(1), update)


def forgetful(learning_rate):
    """Keeps its momentum outside of the state."""
    memory = {}

    def update(g, state, params=None):
        memory.update({n: np.asarray(a) for n, a in g.items()})
        return g, state

    return optax.GradientTransformation(lambda params: (), update)


def still(learning_rate):
    return optax.set_to_zero()


def unkeyed(key, shape, dtype):
    return np.random.default_rng().normal(size=shape).astype(dtype)


OPTIMIZER = "must be a function of the learning rate"
TEXT_STATE = optax.GradientTransformation(lambda _: "count", lambda g, state, _: (g, state))
INFINITE = optax.stateless(lambda g, _: jax.tree.map(lambda a: a / 0.0, g))
BAD = [
    ({"optimizer": lambda rate: TEXT_STATE}, "has a str in its state"),
    ({"schedule": lambda step: "0.5"}, "returns the text '0.5'"),
    ({"schedule": lambda step: 1.0 if step < 2 else 0.5}, "use jnp.where in place of if"),
    ({"loss": lambda logits, targets: 1.0 * (logits.argmax(-1) != targets)}, "has no gradient"),
    ({"optimizer": lambda rate: optax.sgd(0.1)}, "does not use the learning rate"),
    ({"optimizer": partial(optax.adamw, 3e-4)}, "adamw"),
    ({"optimizer": lambda rate: optax.sgd(-rate)}, "does not descend"),
    ({"schedule": lambda step: 1 - step / 100}, "negative"),
    ({"optimizer": lambda rate: rate}, OPTIMIZER),
    ({"optimizer": lambda: optax.sgd(0.1)}, OPTIMIZER),
    ({"optimizer": lambda rate: optax.sgd(0.1 if rate > 0.1 else rate)}, "use jnp.where"),
    ({"optimizer": lambda rate: INFINITE}, "not finite"),
    ({"optimizer": still}, "changes no parameter"),
    ({"optimizer": growing_state}, "state"),
    ({"optimizer": forgetful}, "optimizer forgetful"),
    ({"optimizer": partial(optax.contrib.schedule_free_adamw)}, "schedule_free"),
    ({"schedule": lambda step: 1 / (step - step)}, "not finite"),
    ({"schedule": lambda step: jnp.ones(2)}, "schedule"),
    ({"schedule": optax.cosine_decay_schedule(1e-3, 500)}, "learning_rate"),
    ({"loss": lambda logits, targets: logits.mean()}, "shape"),
    ({"loss": lambda logits, targets: -hinge(logits, targets)}, "does not fall"),
    ({"loss": lambda logits, targets: jnp.log(-jnp.abs(logits[..., 0]))}, "not finite"),
    ({"groups": (ParameterGroup("*", optimizer=still),)}, r"groups\[0\].optimizer still"),
    ({"init": lambda key, shape: jnp.zeros(shape)}, "must be a function of .key, shape, dtype."),
    ({"init": lambda key, shape, dtype: jax.random.normal(key, shape[:1])}, "returns the shape"),
    ({"init": lambda key, shape, dtype: jnp.ones(shape, jnp.int32)}, "returns int32 in place of"),
    ({"init": lambda key, shape, dtype: jnp.full(shape, jnp.inf, dtype)}, "not finite"),
    ({"init": jax.nn.initializers.zeros}, "init zeros gives the same values for each key"),
    ({"init": unkeyed}, "init unkeyed gives other values for the same key"),
    ({"groups": (ParameterGroup("*.scale", init=unkeyed),)}, r"groups\[0\].init unkeyed"),
]


def test_a_loss_may_have_an_array_of_the_classes():
    prior = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    probe(TrainingConfig(loss=lambda logits, y: F.token_cross_entropy(logits + prior, y)), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    BAD,
    ids=lambda each: each if isinstance(each, str) else next(iter(each)),
)
def test_functions_that_break_their_contract_are_named(changes, message):
    with pytest.raises(UserError, match=message):
        probe(TrainingConfig(**changes))
