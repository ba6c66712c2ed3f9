import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite.models import GeneratorConfig, TransformerGenerator
from tlite.training import Trainer, TrainingConfig, language_task, precision

MODEL = GeneratorConfig(vocabulary_size=11, context=8, width=16, num_heads=2, num_blocks=1)
TRAINING = TrainingConfig(batch_size=8, learning_rate=1e-2)
TEXT = jnp.asarray(np.tile(np.arange(5), 100))


def train(**changes):
    trainer = Trainer(language_task(MODEL), dataclasses.replace(TRAINING, **changes), TEXT)
    return trainer.train(trainer.init(), 0, 40)


def test_only_the_matrices_of_linear_layers_become_bfloat16():
    model = TransformerGenerator(MODEL, key=jax.random.key(0))
    mixed = precision.with_precision(model, "mixed")
    assert mixed.blocks[0].attention.query.kernel.dtype == jnp.bfloat16
    assert mixed.head.kernel.dtype == jnp.bfloat16
    others = mixed.embedding.table, mixed.head.bias, mixed.blocks[0].attention_norm.scale
    assert all(leaf.dtype == jnp.float32 for leaf in others)
    assert mixed(jnp.arange(8)).dtype == jnp.float32
    back = precision.with_precision(mixed, "float32")
    assert {leaf.dtype for leaf in jax.tree.leaves(back)} == {jnp.dtype("float32")}


def test_mixed_precision_learns_as_float32_does_and_keeps_float32_parameters():
    (members, mixed), (_, plain) = train(precision="mixed"), train(precision="float32")
    assert {leaf.dtype for leaf in jax.tree.leaves(members.optimizer)} <= {
        jnp.dtype("float32"),
        jnp.dtype("int32"),
    }
    assert members.parameters.dtype == jnp.float32
    assert (mixed["loss"] != plain["loss"]).any()
    np.testing.assert_allclose(mixed["loss"], plain["loss"], atol=0.05)


def test_float32_is_taken_as_asked():
    assert precision.choose_precision("float32") == ("float32", "float32")


@pytest.mark.parametrize(
    ("seconds", "chosen", "said"),
    [({"float32": 2.0, "bfloat16": 1.0}, "mixed", "2.0 x faster"),
     ({"float32": 1.0, "bfloat16": 3.0}, "float32", "3.0 x slower")],
)  # fmt: skip
def test_mixed_is_taken_only_where_it_is_faster(monkeypatch, seconds, chosen, said):
    monkeypatch.setattr(precision, "_seconds", lambda dtype: seconds[jnp.dtype(dtype).name])
    found, reason = precision.choose_precision("mixed")
    assert found == chosen
    assert said in reason


def test_mixed_gives_way_where_the_compiler_refuses(monkeypatch):
    def refuse(dtype):
        if dtype == jnp.bfloat16:
            raise RuntimeError("Unsupported element type for DotThunk")
        return 1.0

    monkeypatch.setattr(precision, "_seconds", refuse)
    found, reason = precision.choose_precision("mixed")
    assert found == "float32"
    assert "refuses" in reason
