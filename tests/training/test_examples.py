"""examples.npz: read back as it was kept, without what fills batches up; damaged it is none."""

import numpy as np
import pytest

from tlite.errors import UserError
from tlite.training.metrics import EXAMPLES, read_examples, save_examples

COUNT = np.array([[8.0, 8, 3, 0, 0]] * 2, np.float32)
LOSS = np.arange(10, dtype=np.float32).reshape(2, 5)


def test_what_is_kept_is_read_back_without_what_fills_batches_up(tmp_path):
    save_examples(tmp_path, 40, {"loss": LOSS, "count": COUNT})
    save_examples(tmp_path, 50, {"loss": LOSS, "count": COUNT})
    found = read_examples(tmp_path)
    assert found.step == 50
    np.testing.assert_array_equal(found.count, [8, 8, 3])
    np.testing.assert_array_equal(found.sums["loss"], LOSS[:, :3])
    assert [path.name for path in tmp_path.iterdir()] == [EXAMPLES]


def test_every_cut_and_flip_is_noticed_or_changes_nothing(tmp_path):
    save_examples(tmp_path, 40, {"loss": LOSS, "count": COUNT})
    content, right = (tmp_path / EXAMPLES).read_bytes(), read_examples(tmp_path)
    assert read_examples(tmp_path / "nowhere") is None
    for place in range(0, len(content), 7):
        flipped = content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]
        for damaged in (content[:place], flipped):
            (tmp_path / EXAMPLES).write_bytes(damaged)
            found = read_examples(tmp_path)
            if found is not None and set(found.sums) == {"loss"}:
                assert found.step == right.step
                np.testing.assert_array_equal(found.sums["loss"], right.sums["loss"])


def test_objects_are_not_read(tmp_path):
    np.savez(tmp_path / EXAMPLES, step=1, count=np.ones(1), loss=np.array([[{}]], object))
    assert read_examples(tmp_path) is None


def test_a_place_that_is_gone_is_told(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        save_examples(tmp_path / "nowhere", 1, {"loss": LOSS, "count": COUNT})
