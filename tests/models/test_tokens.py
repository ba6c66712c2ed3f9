"""A token that is not in the vocabulary is refused by every model, where its value is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.models import drawn
from tlite import functional as F
from tlite.models import (
    BlocksConfig,
    ClassifierConfig,
    GeneratorConfig,
    LogisticConfig,
    MaskedConfig,
    Seq2SeqConfig,
    make_model,
)

SIZES = {"vocabulary_size": 11, "context": 8, "width": 8, "num_heads": 2, "num_blocks": 1}
PADDED = (  # below 0 is padding
    BlocksConfig(**SIZES),
    ClassifierConfig(num_classes=2, **SIZES),
    MaskedConfig(**SIZES),
    LogisticConfig(vocabulary_size=11, num_classes=2),
    LogisticConfig(vocabulary_size=11, num_classes=2, bigrams=5),
)
WHOLE = GeneratorConfig(**SIZES), Seq2SeqConfig(source_vocabulary_size=11, **SIZES)


def calls(config):
    """What is called with tokens: a translator with its source, and with its target."""
    model = drawn(make_model, config)
    if isinstance(config, Seq2SeqConfig):
        return [lambda t: model(t, jnp.ones_like(t)), lambda t: model(jnp.ones_like(t), t)]
    return [model]


@pytest.mark.parametrize("config", [*PADDED, *WHOLE], ids=lambda config: type(config).__name__)
def test_a_token_past_the_vocabulary_is_named(config):
    for call in calls(config):
        assert np.isfinite(call(jnp.array([1, 10, 2]))).all()
        for tokens in (jnp.array([1, 11, 99]), jnp.array([[1, 2], [11, 2]])):
            with pytest.raises(ValueError, match="no token 11: the vocabulary has 0 to 10"):
                call(tokens)


@pytest.mark.parametrize("config", [*PADDED, *WHOLE], ids=lambda config: type(config).__name__)
def test_a_token_below_zero_is_padding_or_refused(config):
    for call in calls(config):
        if config in PADDED:
            assert np.isfinite(call(jnp.array([1, 2, -1]))).all()
        else:
            with pytest.raises(ValueError, match="no token -1: the vocabulary has 0 to 10"):
                call(jnp.array([1, -1, 2]))


def test_in_a_compiled_program_nothing_is_looked_at_and_nothing_is_computed():
    table = jnp.ones((11, 4))
    assert jnp.isnan(jax.jit(F.embed)(table, jnp.array([11]))).all()
    assert jnp.isnan(jax.vmap(F.embed, (None, 0))(table, jnp.array([11]))).all()
    program, plain = (
        jax.make_jaxpr(f)(table, jnp.array([1, 2]))
        for f in (F.embed, lambda t, i: jnp.take(t, i, axis=0))
    )
    assert str(program) == str(plain)
    with pytest.raises(ValueError, match="no token 11"):
        jax.grad(lambda table: F.embed(table, jnp.array([11])).sum())(table)


def test_nothing_is_refused_where_there_is_no_token():
    F.check_tokens(jnp.zeros((0, 3), int), 5)
    F.check_tokens(jnp.array(4), 5)
    with pytest.raises(ValueError, match="no token 5"):
        F.check_tokens(jnp.array(5), 5)
