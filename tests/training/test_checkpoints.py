import errno
import json
import math
import os
import random
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.helpers.complaints import complaint
from tlite.models.low_rank import LowRank, merge_low_rank
from tlite.training import TrainingConfig
from tlite.training import checkpoints as module
from tlite.training.checkpoints import DELETING, MANIFEST, Checkpoints
from tlite.training.run_dir import METRICS

DEVICE = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def abstract(shape):
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=DEVICE)


ABSTRACT = {
    "parameters": {"blocks.0.kernel": abstract((2, 300))},
    "optimizer": {"0": abstract((2,)), "1.bias": abstract((2, 3))},
}
LOSSES = 3.0, 1.0, 2.0, 2.5, 2.2


def trees(seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda a: random.normal(size=a.shape).astype(np.float32), ABSTRACT)


def save(checkpoints, step, score, arrays=None):
    checkpoints.save(step, arrays or trees(step))
    checkpoints.record_score(step, score)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(folder, writing=True) as checkpoints:
        for step, loss in enumerate(LOSSES, 1):
            save(checkpoints, step, loss)
    return folder


@pytest.fixture
def saved(saved_once, tmp_path) -> Path:
    """Checkpoints 2 (the best), 4 and 5 of five saved ones; 1 and 3 were deleted."""
    return shutil.copytree(saved_once, tmp_path / "checkpoints")


def largest_file(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip_a_byte(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def assert_equal(loaded, step):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(loaded), trees(step))


TENS = {"max_to_keep": 3, "evaluate_every": 10}
ENDING = {"max_to_keep": 1, "evaluate_every": 10, "steps": 25}
SCORES = [(10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5), (50, 2.2)]
MIXED = [(9, -1.0), *SCORES, (55, -1.0), (60, 4.0)]
TIED = [(10, 2.0), (20, 1.0), (30, 1.0), (40, 3.0), (50, 3.0), (60, 3.0)]
NANS = list(enumerate([math.nan, 1.0, math.nan, math.inf, math.nan], 1))
BEST_MEAN = {"average_last": 2, "best_metric": "average_loss", "evaluate_every": 10}
RETENTION = {  # changes of the config, (step, score) of saves, steps left, best step
    "the best and the latest": (TENS, SCORES, [20, 30, 40, 50], 20),
    "those of the best mean": (BEST_MEAN | {"max_to_keep": 1}, SCORES, [10, 20, 40, 50], 20),
    "an interruption, better than all": (TENS, MIXED[:-1], [20, 30, 40, 50, 55], 20),
    "interruptions and later checkpoints": (TENS, MIXED, [20, 40, 50, 60], 20),
    "an interruption alone": (TENS, [(7, 3.0)], [7], 7),
    "a score that is NaN": ({"max_to_keep": 1, "evaluate_every": 1}, NANS, [2, 5], 2),
    "the first of equal scores": (TENS, TIED, [20, 40, 50, 60], 20),
    # An extended run has the checkpoints that it would have had.
    "an end outside the schedule": (ENDING, [(10, 1.0), (20, 2.0), (25, 0.5)], [10, 20, 25], 25),
}


@pytest.mark.parametrize("case", RETENTION)
def test_best_and_latest_scheduled_checkpoints_are_kept(tmp_path, case):
    changes, scores, steps, best = RETENTION[case]
    config = TrainingConfig(**changes)
    with Checkpoints(tmp_path / "checkpoints", config, writing=True) as checkpoints:
        for step, score in scores:
            save(checkpoints, step, score)
    assert {path.name for path in checkpoints.folder.iterdir()} == {*map(str, steps)}
    assert (checkpoints.steps(), checkpoints.best_step()) == (steps, best)
    scheduled = [step for step in steps if config.is_eval_step(step)]
    assert checkpoints.eval_steps() == (scheduled or steps)
    if case == "an end outside the schedule":
        more = Checkpoints(tmp_path / "checkpoints", TrainingConfig(**TENS, steps=40))
        assert (more.eval_steps(), more.best_step()) == ([10, 20], 10)


def test_the_mean_of_low_rank_updates_is_that_of_merged_ones(tmp_path):
    low_rank, random = LowRank("kernel", rank=2), np.random.default_rng(0)
    shapes = {"kernel": (2, 4, 3), "kernel.lora_a": (2, 4, 2), "kernel.lora_b": (2, 2, 3)}
    merged = []
    with Checkpoints(tmp_path / "checkpoints", writing=True) as checkpoints:
        for step in (1, 2, 3):
            arrays = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
            checkpoints.save(step, {"parameters": arrays})
            merged.append(merge_low_rank(low_rank, arrays)["kernel"])
        checkpoints.wait()
        arrays = {name: abstract(shape) for name, shape in shapes.items()}
        mean = checkpoints.load_mean(arrays, [2, 3], low_rank)
    assert mean.keys() == shapes.keys()
    kernel = merge_low_rank(low_rank, mean)["kernel"]
    np.testing.assert_allclose(kernel, (merged[1] + merged[2]) / 2, rtol=1e-5, atol=1e-6)


def test_a_mean_without_one_of_its_checkpoints_is_an_error(saved, capsys):
    flip_a_byte(largest_file(saved / "4" / "parameters"))
    arrays = ABSTRACT["parameters"]
    message = complaint(Checkpoints(saved).load_mean, arrays, [2, 4])
    assert message.startswith(f"checkpoint 4 in {saved} is damaged or missing")
    assert capsys.readouterr().err == ""  # no other checkpoint is used


def test_arrays_that_are_not_loaded_are_not_verified(saved):
    parameters = {"parameters": ABSTRACT["parameters"]}
    flip_a_byte(largest_file(saved / "5" / "optimizer"))
    assert Checkpoints(saved).load(parameters)[0] == 5
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4


@pytest.mark.parametrize("function", [(Checkpoints, "_is_intact"), (module, "_restore")])
def test_a_checkpoint_removed_while_it_is_read_is_not_damaged(saved, monkeypatch, capsys, function):
    original = getattr(*function)

    def remove_first(*arguments):
        if (saved / "5").is_dir():
            shutil.rmtree(saved / "5")
        return original(*arguments)

    monkeypatch.setattr(*function, remove_first)
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4
    assert capsys.readouterr().err == ""


def test_a_damaged_checkpoint_is_moved_and_its_step_saved_again(saved, capsys):
    flip_a_byte(largest_file(saved / "5"))
    content = largest_file(saved / "5").read_bytes()
    checkpoints = Checkpoints(saved, writing=True)
    step, _ = checkpoints.load(ABSTRACT)
    checkpoints.quarantine_damaged(step)
    assert checkpoints.steps() == [2, 4]
    assert largest_file(saved / "damaged-5").read_bytes() == content
    assert f"moved to {saved / 'damaged-5'}" in capsys.readouterr().err
    save(checkpoints, 5, 0.5, trees(50))
    checkpoints.wait()
    assert_equal(checkpoints.load(ABSTRACT)[1], 50)
    assert checkpoints.best_step() == 5
    flip_a_byte(largest_file(saved / "5"))
    checkpoints.quarantine_damaged(4)
    assert (saved / "damaged-5-2").is_dir()


def replace_by_step_4(folder: Path, name: str = ".") -> None:
    shutil.rmtree(folder / name)
    shutil.copytree(folder.with_name("4") / name, folder / name)


def edit_file(name, edit):
    return lambda folder: (folder / name).write_text(edit((folder / name).read_text()))


DAMAGES = {
    "half removed": lambda folder: shutil.rmtree(folder / "metrics"),
    "that of another step": replace_by_step_4,
    "arrays of another step": lambda folder: replace_by_step_4(folder, "parameters"),
    "a file removed": lambda folder: largest_file(folder).unlink(),
    "manifest cut": edit_file(f"optimizer/{MANIFEST}", lambda text: text[: len(text) // 2]),
    "manifest removed": lambda folder: (folder / "parameters" / MANIFEST).unlink(),
    "metrics cut": edit_file(METRICS, lambda text: text[: len(text) // 2]),
    "metrics deep": edit_file(METRICS, lambda _: "[" * 5000 + "]" * 5000),
    "no score": edit_file(METRICS, lambda _: json.dumps({"step": 5})),
    "another score": edit_file(METRICS, lambda text: text.replace("2.2", "0.2")),
}


@pytest.mark.parametrize(
    ("step", "damage"),
    [(5, damage) for damage in DAMAGES] + [(step, "half removed") for step in (2, 4)],
)
def test_training_resumes_from_the_nearest_intact_checkpoint(saved, step, damage, capsys):
    DAMAGES[damage](saved / str(step))
    checkpoints = Checkpoints(saved, writing=True)
    intact, loaded = checkpoints.load(ABSTRACT)
    assert intact == (4 if step == 5 else 5)
    assert_equal(loaded, intact)
    warning = f"checkpoint {step} is damaged: using checkpoint {intact} instead"
    assert (warning in capsys.readouterr().err) == (step == 5)
    assert checkpoints.best_step() != step
    checkpoints.quarantine_damaged(intact)
    assert (saved / f"damaged-{step}" / "parameters").is_dir()
    for later in (6, 7, 8):
        save(checkpoints, later, 3.0)
    checkpoints.close()
    assert checkpoints.steps() == ([5, 7, 8] if step == 2 else [2, 7, 8])


def test_a_removed_checkpoint_falls_back_to_an_earlier_one(saved, capsys):
    assert Checkpoints(saved).load(ABSTRACT, 3)[0] == 2
    assert "checkpoint 3 is no longer there: using checkpoint 2" in capsys.readouterr().err


def test_without_an_intact_earlier_checkpoint_a_later_one_loads(saved, capsys):
    for step in (2, 4):
        flip_a_byte(largest_file(saved / str(step)))
    assert Checkpoints(saved).load(ABSTRACT, 2)[0] == 5
    assert "checkpoint 2 is damaged: using checkpoint 5 instead" in capsys.readouterr().err
    flip_a_byte(largest_file(saved / "5"))
    assert "is damaged" in complaint(Checkpoints(saved).load, ABSTRACT, 4)


def test_unfinished_folders_are_removed_by_a_run_that_trains(saved):
    unfinished, others = {"7.orbax-checkpoint-tmp", f"3{DELETING}"}, {"4.good", "5.tar"}
    for name in unfinished | others:
        (saved / name / "parameters").mkdir(parents=True)
    for names, is_writing in ((unfinished, False), (set(), True)):
        assert Checkpoints(saved, writing=is_writing).steps() == [2, 4, 5]
        assert {path.name for path in saved.iterdir()} == {"2", "4", "5"} | others | names


@pytest.mark.parametrize(
    ("code", "name"),
    [(errno.EACCES, METRICS), (errno.EACCES, f"parameters/{MANIFEST}"), (errno.EIO, "")],
)
def test_an_unreadable_file_is_an_error_and_nothing_is_lost(saved, monkeypatch, code, name):
    unreadable = saved / "5" / name if name else largest_file(saved / "5")
    open_file = Path.open

    def refuse(path, *arguments, **settings):
        if path == unreadable:
            raise OSError(code, os.strerror(code), str(path))
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", refuse)
    checkpoints = Checkpoints(saved, writing=True)
    message = f"can't read {unreadable}: {os.strerror(code)}"
    assert complaint(checkpoints.load, ABSTRACT).startswith(message)
    monkeypatch.undo()
    assert checkpoints.steps() == [2, 4, 5]
    assert_equal(checkpoints.load(ABSTRACT)[1], 5)


def test_arrays_of_another_config_are_an_error(saved):
    kernel = abstract((2, 300))
    for wrong in (
        {"blocks.0.kernel": abstract((2, 600))},
        {"blocks.0.kernel": kernel.update(dtype=np.float16)},
        {},
        {"blocks.0.kernel": kernel, "blocks.1.kernel": kernel},
    ):
        message = complaint(Checkpoints(saved).load, ABSTRACT | {"parameters": wrong})
        assert re.search(r"config.json does not describe the model .*blocks\.[01]\.kernel", message)


def on_a_mesh(*kernel) -> dict:
    """Return shardings; all arrays but the kernel are replicated."""
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    replicated = NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(lambda _: replicated, ABSTRACT)
    shardings["parameters"]["blocks.0.kernel"] = NamedSharding(mesh, PartitionSpec(*kernel))
    return shardings


def placed(shardings: dict) -> dict:
    return jax.tree.map(lambda a, s: a.update(sharding=s), ABSTRACT, shardings)


@pytest.mark.parametrize("kernel", [(), (None, ("a", "b"))])
def test_arrays_may_be_donated_after_save_and_keep_shardings(tmp_path, kernel):
    donate = jax.jit(lambda arrays: jax.tree.map(lambda a: 0 * a, arrays), donate_argnums=0)
    shardings = on_a_mesh(*kernel)
    with Checkpoints(tmp_path / "checkpoints", writing=True) as checkpoints:
        for step in (1, 2):
            arrays = jax.device_put(trees(step), shardings)
            checkpoints.save(step, arrays)
            jax.block_until_ready(donate(arrays))
    for step in (1, 2):
        _, loaded = Checkpoints(tmp_path / "checkpoints").load(placed(shardings), step)
        assert_equal(loaded, step)
        assert jax.tree.map(lambda a: a.sharding, loaded) == shardings


def test_any_flipped_bit_is_detected(saved):
    rng, sharded = random.Random(0), placed(on_a_mesh(None, "a"))
    paths = [p for p in sorted((saved / "5").rglob("*")) if p.is_file() and p.stat().st_size]
    never_read = "_CHECKPOINT_METADATA", "commit_success.txt"  # Orbax writes them at the rename
    for path in [p for p in paths if p.name not in never_read] + rng.choices(paths, k=30):
        content = path.read_bytes()
        index, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
        path.write_bytes(content[:index] + bytes([content[index] ^ bit]) + content[index + 1 :])
        step, loaded = Checkpoints(saved).load(sharded)
        assert step == (5 if path.name in never_read else 4), path
        assert_equal(loaded, step)
        path.write_bytes(content)
    assert Checkpoints(saved).load(sharded)[0] == 5


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "in other words"), "No space left on device"),
        (ValueError("NOT_FOUND: [OS error 28: No space left]\nmore"), "NOT_FOUND: .*No space left"),
    ],
)
def test_a_full_disk_is_an_error_and_leaves_nothing_unfinished(saved, monkeypatch, error, reason):
    """Manifests are written before the checkpoint gets its name."""

    def fail(path):
        assert not (saved / "6").exists()
        raise error

    checkpoints = Checkpoints(saved, writing=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "sha256", fail)
        checkpoints.save(6, trees(6))
        assert re.search(rf"can't write \S* \({reason}.*\)", complaint(checkpoints.wait))
    assert {path.name for path in saved.iterdir()} == {"2", "4", "5"}
    save(checkpoints, 7, 2.0)
    assert checkpoints.steps() == [2, 5, 7]
    shutil.rmtree(saved)
    assert "checkpoints was removed" in complaint(checkpoints.save, 8, trees(8))
    assert not saved.exists()


def test_the_error_that_ended_the_training_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "sha256", Path.readlink)  # which raises an OSError
    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    checkpoints.save(1, trees(1))
    with pytest.raises(ZeroDivisionError), checkpoints:
        raise ZeroDivisionError
