from pathlib import Path

import jax
import numpy as np
import pytest

from tlite.errors import UserError
from tlite.training.checkpoints import Checkpoints

SHAPES = {"parameters": {"blocks.0.kernel": (2, 300)}, "optimizer": {"0": (2,), "1.bias": (2, 3)}}


def is_shape(node):
    return isinstance(node, tuple)


def trees(seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: random.normal(size=shape).astype(np.float32), SHAPES, is_leaf=is_shape
    )


ABSTRACT = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(
        shape, np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    ),
    SHAPES,
    is_leaf=is_shape,
)


@pytest.fixture
def saved(tmp_path) -> Path:
    """Checkpoints of steps 1 to 5, the second the best."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    for step, loss in enumerate([3.0, 1.0, 2.0, 2.5, 2.2], 1):
        checkpoints.save(step, trees(step), loss)
    checkpoints.wait()
    checkpoints.close()
    return tmp_path / "checkpoints"


def largest_file(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def cut(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def assert_equal(loaded, step):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(loaded), trees(step))


def test_the_best_and_the_last_two_are_kept(saved):
    checkpoints = Checkpoints(saved)
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best_step() == 2


@pytest.mark.parametrize(("asked", "step"), [(None, 5), (5, 5), (4, 4), (2, 2)])
def test_what_is_loaded_is_what_was_saved(saved, asked, step):
    found, loaded = Checkpoints(saved).load(ABSTRACT, asked)
    assert found == step
    assert_equal(loaded, step)


@pytest.mark.parametrize("damage", [cut, flip_a_byte, Path.unlink])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(saved, damage, capsys):
    damage(largest_file(saved / "5"))
    found, loaded = Checkpoints(saved).load(ABSTRACT)
    assert found == 4
    assert_equal(loaded, 4)
    assert "checkpoint 5 is damaged: using checkpoint 4 instead" in capsys.readouterr().err


def test_metadata_that_is_damaged_is_damage_too(saved, capsys):
    cut(saved / "5" / "_CHECKPOINT_METADATA")
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4


def test_when_all_are_damaged_it_is_one_sentence(saved):
    for step in (2, 4, 5):
        flip_a_byte(largest_file(saved / str(step)))
        if step == 4:
            with pytest.raises(UserError, match=r"every checkpoint in .* up to 4 is damaged"):
                Checkpoints(saved).load(ABSTRACT, 4)
    with pytest.raises(UserError, match=r"every checkpoint in \S* is damaged"):
        Checkpoints(saved).load(ABSTRACT)


def test_what_is_kept_does_not_depend_on_interruptions(tmp_path):
    scores = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: 2.2}
    kept = []
    for interruptions in ((), (2, 4, 4)):
        checkpoints = Checkpoints(tmp_path / str(len(interruptions)), writing=True, last=3)
        for step, score in scores.items():
            if step in interruptions:  # a little before, and better than all
                checkpoints.save(10 * step - 1, trees(0), -1.0, interrupted=True)
                assert 10 * step - 1 in checkpoints.steps()
                assert 10 * step - 1 not in checkpoints.regular_steps()
            checkpoints.save(10 * step, trees(step), score)
        checkpoints.wait()
        kept.append((checkpoints.steps(), checkpoints.regular_steps(), checkpoints.best_step()))
        checkpoints.close()
    assert kept[0] == kept[1] == ([20, 30, 40, 50], [20, 30, 40, 50], 20)


def test_where_only_an_interruption_was_saved_it_is_best_and_last(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    checkpoints.save(7, trees(0), 3.0, interrupted=True)
    checkpoints.wait()
    assert checkpoints.steps() == checkpoints.regular_steps() == [7]
    assert checkpoints.best_step() == 7
    checkpoints.close()


def test_what_comes_after_a_step_can_be_dropped_and_saved_anew(saved):
    checkpoints = Checkpoints(saved, writing=True)
    checkpoints.drop_after(4)
    assert checkpoints.steps() == [2, 4]
    checkpoints.save(5, trees(50), 0.5)
    checkpoints.wait()
    assert_equal(checkpoints.load(ABSTRACT)[1], 50)
    assert checkpoints.best_step() == 5
