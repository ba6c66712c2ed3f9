"""A token that is not in the vocabulary is refused by every model, where its value is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_same
from tests.helpers.models import call, drawn
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
    for model in calls(config):
        assert np.isfinite(model(jnp.array([1, 10, 2]))).all()
        for tokens in (jnp.array([1, 11, 99]), jnp.array([[1, 2], [11, 2]])):
            with pytest.raises(ValueError, match="no token 11: the vocabulary has 0 to 10"):
                model(tokens)


@pytest.mark.parametrize("config", [*PADDED, *WHOLE], ids=lambda config: type(config).__name__)
def test_a_token_below_zero_is_padding_or_refused(config):
    for model in calls(config):
        if config in PADDED:
            assert np.isfinite(model(jnp.array([1, 2, -1]))).all()
        else:
            with pytest.raises(ValueError, match="no token -1: the vocabulary has 0 to 10"):
                model(jnp.array([1, -1, 2]))


@pytest.mark.parametrize("token", [11, -1, -12])
def test_in_a_compiled_program_what_is_no_token_gives_nan(token):
    table, tokens = jnp.ones((11, 4)), np.array([token, 10])
    for embed in (jax.jit(F.embed), jax.vmap(F.embed, (None, 0))):
        assert_same(np.isnan(embed(table, tokens)).all(-1), [True, False])
    logits = call(drawn(make_model, WHOLE[0]), tokens)
    assert np.isnan(logits).any()
    with pytest.raises(ValueError, match=f"no token {token}"):
        jax.grad(lambda table: F.embed(table, jnp.asarray(tokens)).sum())(table)


def test_nothing_is_refused_where_there_is_no_token():
    F.check_tokens(jnp.zeros((0, 3), int), 5)
    F.check_tokens(jnp.array(4), 5)
    with pytest.raises(ValueError, match="no token 5"):
        F.check_tokens(jnp.array(5), 5)
