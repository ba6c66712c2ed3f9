import errno
import gc
import json
import os
import random
import resource
import shutil
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from tlite.errors import UserError
from tlite.terminal import quiet_libraries
from tlite.training import checkpoint_file, storage
from tlite.training.checkpoint_file import tree_digest
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


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(folder, writing=True) as checkpoints:
        for step, loss in enumerate([3.0, 1.0, 2.0, 2.5, 2.2], 1):
            checkpoints.save(step, trees(step), loss)
    return folder


@pytest.fixture
def saved(saved_once, tmp_path) -> Path:
    """Checkpoints of steps 1 to 5, the second the best."""
    return shutil.copytree(saved_once, tmp_path / "checkpoints")


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
    cut(saved / "5" / "checkpoint.json")
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4


def test_where_none_before_is_whole_one_after_is_used(saved, capsys):
    for step in (2, 4):
        flip_a_byte(largest_file(saved / str(step)))
    assert Checkpoints(saved).load(ABSTRACT, 2)[0] == 5
    assert "checkpoint 2 is damaged: using checkpoint 5 instead" in capsys.readouterr().err


def test_when_all_are_damaged_it_is_one_sentence(saved):
    for step in (2, 4, 5):
        flip_a_byte(largest_file(saved / str(step)))
    for asked in (None, 4):
        with pytest.raises(UserError, match=r"every checkpoint in \S* is damaged"):
            Checkpoints(saved).load(ABSTRACT, asked)


def test_one_that_is_removed_while_it_is_read_is_not_damaged(saved, monkeypatch, capsys):
    load = Checkpoints._load

    def removed(checkpoints, step, *arguments):
        if (saved / "5").is_dir():
            shutil.rmtree(saved / "5")
        return load(checkpoints, step, *arguments)

    monkeypatch.setattr(Checkpoints, "_load", removed)
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4
    assert capsys.readouterr().err == ""


def test_what_is_kept_does_not_depend_on_interruptions(tmp_path):
    scores = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: 2.2}
    kept = []
    for interruptions in ((), (2, 4, 4)):
        checkpoints = Checkpoints(tmp_path / str(len(interruptions)), writing=True, last=3)
        for step, score in scores.items():
            if step in interruptions:  # a little before, and better than all
                checkpoints.save(10 * step - 1, trees(0), -1.0, interrupted=True)
                checkpoints.wait()
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


def test_what_is_damaged_is_moved_aside_never_deleted_and_its_step_saved_anew(saved, capsys):
    flip_a_byte(largest_file(saved / "5"))
    content = largest_file(saved / "5").read_bytes()
    checkpoints = Checkpoints(saved, writing=True)
    step, _ = checkpoints.load(ABSTRACT)
    checkpoints.set_aside_damaged(step)
    assert checkpoints.steps() == [2, 4]
    assert largest_file(saved / "damaged-5").read_bytes() == content
    assert f"moved to {saved / 'damaged-5'}" in capsys.readouterr().err
    checkpoints.save(5, trees(50), 0.5)
    checkpoints.wait()
    assert_equal(checkpoints.load(ABSTRACT)[1], 50)
    assert checkpoints.best_step() == 5
    flip_a_byte(largest_file(saved / "5"))
    checkpoints.set_aside_damaged(4)
    assert (saved / "damaged-5-again").is_dir()


# What a kill leaves behind: Orbax used to remove old checkpoints in place


def half_removed(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "parameters":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def emptied(folder: Path) -> None:
    (folder / "checkpoint.json").write_text("")


def not_json(folder: Path) -> None:
    (folder / "checkpoint.json").write_text("[1, {")


def deeply_nested(folder: Path) -> None:
    (folder / "checkpoint.json").write_text("[" * 5000 + "]" * 5000)


def without_score(folder: Path) -> None:
    path = folder / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"score": None}))


@pytest.mark.parametrize(
    ("step", "spoil"),
    [(step, half_removed) for step in (2, 4, 5)]
    + [(5, spoil) for spoil in (emptied, not_json, deeply_nested, without_score)],
)
def test_a_checkpoint_that_is_not_whole_is_passed_over_and_training_goes_on(saved, spoil, step):
    spoil(saved / str(step))
    checkpoints = Checkpoints(saved, writing=True)
    found, loaded = checkpoints.load(ABSTRACT)
    assert found == (4 if step == 5 else 5)
    assert_equal(loaded, found)
    assert checkpoints.best_step() != step
    checkpoints.set_aside_damaged(found)
    assert (saved / f"damaged-{step}" / "parameters").is_dir()
    for later in (6, 7, 8):
        checkpoints.save(later, trees(later), 3.0)
    checkpoints.close()
    kept = {2: [5, 7, 8], 4: [2, 7, 8], 5: [2, 7, 8]}
    assert checkpoints.steps() == kept[step]


def test_what_a_kill_left_half_written_or_half_removed_is_cleared_when_writing(saved):
    names = ["7.writing", "3.deleting", "7.orbax-checkpoint-tmp", "7.writing.orbax-checkpoint-tmp"]
    for name in names:
        (saved / name / "parameters").mkdir(parents=True)
    assert Checkpoints(saved).steps() == [2, 4, 5]
    assert all((saved / name).is_dir() for name in names)
    mine = [saved / "4.good", saved / "5.tar"]
    mine[0].mkdir()
    mine[1].touch()
    Checkpoints(saved, writing=True)
    assert sorted(path.name for path in saved.iterdir()) == ["2", "4", "4.good", "5", "5.tar"]


def test_exchanged_checkpoints_are_damaged(saved):
    (saved / "4").rename(saved / "x")
    (saved / "5").rename(saved / "4")
    (saved / "x").rename(saved / "5")
    assert Checkpoints(saved).load(ABSTRACT)[0] == 2


def test_an_edited_score_is_damage(saved):
    path = saved / "5" / "checkpoint.json"
    path.write_text(path.read_text().replace("2.2", "0.2"))
    assert Checkpoints(saved).best_step() == 2


# What can't be read is not damaged


def file_of(folder: Path, kind: str) -> Path:
    return folder / "checkpoint.json" if kind == "description" else largest_file(folder)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EACCES, "description"), (errno.EACCES, "arrays"), (errno.EIO, "arrays")],
)
def test_an_error_of_the_system_stops_with_a_sentence_and_nothing_is_lost(
    saved, monkeypatch, code, kind
):
    unreadable, open_file = file_of(saved / "5", kind), Path.open

    def refuse(path, *arguments, **settings):
        if path == unreadable:
            raise OSError(code, os.strerror(code), str(path))
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", refuse)
    checkpoints = Checkpoints(saved, writing=True)
    with pytest.raises(UserError, match=rf"can't read {unreadable}: {os.strerror(code)}"):
        checkpoints.load(ABSTRACT)
    monkeypatch.undo()
    assert checkpoints.steps() == [2, 4, 5]
    assert_equal(checkpoints.load(ABSTRACT)[1], 5)


def test_too_many_open_files_are_told_as_that(saved):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    Checkpoints(saved).load(ABSTRACT)
    few = len(os.listdir("/proc/self/fd")) + 2  # enough for us, too few for TensorStore
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        with pytest.raises(UserError, match=r"can't read \S*: (Too many open files|.* in Orbax)"):
            Checkpoints(saved).load(ABSTRACT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("change", ["shape", "missing", "more"])
def test_a_changed_config_is_told_as_that(saved, change):
    abstract = {name: dict(tree) for name, tree in ABSTRACT.items()}
    kernel = abstract["parameters"].pop("blocks.0.kernel")
    if change == "shape":
        abstract["parameters"]["blocks.0.kernel"] = kernel.update(shape=(2, 600))
    elif change == "more":
        abstract["parameters"] |= {"blocks.0.kernel": kernel, "blocks.1.kernel": kernel}
    with pytest.raises(UserError, match=r"config.json is not of the model .*blocks\.[01]\.kernel"):
        Checkpoints(saved).load(abstract)


@pytest.mark.parametrize("tree", ["parameters", "optimizer"])
def test_another_type_is_told_as_that(saved, tree):
    abstract = {name: dict(arrays) for name, arrays in ABSTRACT.items()}
    name = next(iter(abstract[tree]))
    abstract[tree][name] = abstract[tree][name].update(dtype=np.float16)
    with pytest.raises(UserError, match=rf"its {name} is of float32, not float16"):
        Checkpoints(saved).load(abstract)


# Arrays on devices


def on_a_mesh(*kernel) -> dict:
    """Shardings; all of the arrays but the kernel are whole on each of the devices."""
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    whole = NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(lambda _: whole, SHAPES, is_leaf=is_shape)
    shardings["parameters"]["blocks.0.kernel"] = NamedSharding(mesh, PartitionSpec(*kernel))
    return shardings


def placed(shardings: dict) -> dict:
    return jax.tree.map(lambda a, s: a.update(sharding=s), ABSTRACT, shardings)


@pytest.mark.parametrize("kernel", [(), (None, ("a", "b"))])
def test_arrays_may_be_used_up_as_soon_as_they_are_saved(tmp_path, kernel):
    used_up = jax.jit(lambda arrays: jax.tree.map(lambda a: 0 * a, arrays), donate_argnums=0)
    with Checkpoints(tmp_path / "checkpoints", writing=True) as checkpoints:
        for step in (1, 2):
            arrays = jax.device_put(trees(step), on_a_mesh(*kernel))
            checkpoints.save(step, arrays, 1.0)
            jax.block_until_ready(used_up(arrays))
    for step in (1, 2):
        assert_equal(Checkpoints(tmp_path / "checkpoints").load(ABSTRACT, step)[1], step)


@pytest.mark.parametrize("kernel", [(), (None, ("a", "b"))])
def test_what_is_loaded_lies_where_it_is_wanted(saved, kernel):
    wanted = on_a_mesh(*kernel)
    found, loaded = Checkpoints(saved).load(placed(wanted))
    assert found == 5
    assert_equal(loaded, 5)
    assert jax.tree.map(lambda a: a.sharding, loaded) == wanted


def test_large_arrays_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CHUNK", 1000)
    with Checkpoints(tmp_path / "checkpoints", writing=True) as checkpoints:
        checkpoints.save(1, trees(1), 1.0)
    assert_equal(Checkpoints(tmp_path / "checkpoints").load(placed(on_a_mesh(None, "a")))[1], 1)


def test_special_numbers_keep_their_bits(tmp_path):
    """A zero need not be written, but a negative one is another."""
    bits = np.uint32([0x80000000, 0x7FC00001, 0xFFC00000, 0x7F800000, 0, 1]).reshape(2, 3)
    arrays = trees(1) | {"optimizer": {"0": np.zeros(2, np.float32), "1.bias": bits.view("f4")}}
    arrays["parameters"] = {"blocks.0.kernel": np.full((2, 300), -0.0, np.float32)}
    with Checkpoints(tmp_path / "checkpoints", writing=True) as checkpoints:
        checkpoints.save(1, arrays, 1.0)
    loaded = jax.device_get(Checkpoints(tmp_path / "checkpoints").load(ABSTRACT)[1])
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a.view("u4"), b.view("u4")), loaded, arrays
    )


# A flipped byte


@pytest.fixture
def large(saved, monkeypatch) -> Path:
    """Checkpoints whose arrays are in files that are too large to have a SHA-256."""
    fingerprint = checkpoint_file._fingerprint

    def by_size(path: Path):
        return path.stat().st_size if path.parent.name == "d" else fingerprint(path)

    monkeypatch.setattr(checkpoint_file, "_fingerprint", by_size)
    with Checkpoints(saved, writing=True) as checkpoints:
        for step in (6, 7, 8):
            arrays = jax.device_put(trees(step), on_a_mesh(None, "a"))
            checkpoints.save(step, arrays, 2.0)
    return saved


def flip(chance: random.Random, path: Path) -> bytes:
    content = path.read_bytes()
    place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
    path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
    return content


def test_a_flipped_bit_is_found_wherever_it_is(saved):
    chance, whole = random.Random(0), placed(on_a_mesh(None, "a"))
    paths = [p for p in sorted((saved / "5").rglob("*")) if p.is_file() and p.stat().st_size]
    for _ in range(50):
        path = chance.choice(paths)
        content = flip(chance, path)
        found, loaded = Checkpoints(saved).load(whole)
        assert found == 4, path
        assert_equal(loaded, 4)
        path.write_bytes(content)
    assert Checkpoints(saved).load(whole)[0] == 5


def test_a_flipped_bit_of_a_large_file_is_found_or_was_of_no_array(large, caplog, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    quiet_libraries()  # as a command does
    chance, whole = random.Random(0), placed(on_a_mesh(None, "a"))
    paths, steps = sorted((large / "8").rglob("d/*")), []
    for number in range(30):
        path = chance.choice(paths) if number % 2 else max(paths, key=lambda p: p.stat().st_size)
        content = flip(chance, path)
        found, loaded = Checkpoints(large).load(whole)
        assert_equal(loaded, found)
        steps.append(found)
        path.write_bytes(content)
    assert steps[::2].count(7) > 9  # some bits mean nothing
    assert Checkpoints(large).load(whole)[0] == 8
    gc.collect()
    assert "tensorstore" not in caplog.text  # for the user it is one line


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_large_file_that_is_not_whole_is_damage(large, damage):
    damage(largest_file(large / "8"))
    assert Checkpoints(large).load(ABSTRACT)[0] == 7


def test_an_array_that_is_not_what_was_saved_is_damage(large):
    """As if a flipped bit had come through all of Orbax's checks."""
    path = large / "8" / "checkpoint.json"
    record = json.loads(path.read_text())
    record.pop("sha256")
    digest = record["digests"]["optimizer"]["1.bias"]
    record["digests"]["optimizer"]["1.bias"] = f"{int(digest, 16) ^ 1:016x}"
    path.write_text(json.dumps(record | {"sha256": checkpoint_file._content_digest(record)}))
    assert Checkpoints(large).load(ABSTRACT)[0] == 7
    parameters = {"parameters": ABSTRACT["parameters"]}  # which are whole
    assert Checkpoints(large).load(parameters)[0] == 8


def test_a_large_file_that_cannot_be_read_is_not_damaged(large, monkeypatch):
    unreadable, open_file = largest_file(large / "8"), Path.open
    unreadable.write_bytes(bytes(unreadable.stat().st_size))  # what Orbax can't make sense of

    def refuse(path, *arguments, **settings):
        if path == unreadable:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=rf"can't read {unreadable}: Permission denied"):
        Checkpoints(large).load(ABSTRACT)
    monkeypatch.undo()


# Handles, threads


def test_many_saves_leak_neither_handles_nor_threads(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    counts = []
    for step in range(1, 41):
        checkpoints.save(step, trees(step), 1.0)
        checkpoints.wait()
        counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    checkpoints.close()
    for early, late in zip(
        zip(*counts[5:20], strict=True), zip(*counts[20:], strict=True), strict=True
    ):
        assert max(late) <= max(early)


def test_a_full_disk_is_told_as_that_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(*_):
        raise ValueError("RESOURCE_EXHAUSTED: write failed [OS error 28: No space left on device]")

    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    checkpoints.save(1, trees(1), 1.0)
    checkpoints.wait()
    monkeypatch.setattr("tlite.training.storage.ocp.save_checkpointables", full)
    checkpoints.save(2, trees(2), 1.0)
    with pytest.raises(UserError, match=r"can't write \S* \(No space left on device\)"):
        checkpoints.wait()
    checkpoints.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]


def test_of_two_errors_the_first_is_told(tmp_path):
    def train(folder: Path) -> None:
        with Checkpoints(folder, writing=True) as checkpoints:
            checkpoints._pending = checkpoints._writer.submit(folder.mkdir)  # is there
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "checkpoints")


def test_another_exhausted_resource_is_not_called_a_full_disk(tmp_path, monkeypatch):
    def exhausted(*_):
        raise ValueError("RESOURCE_EXHAUSTED: Failed to open: Too many open files")

    monkeypatch.setattr("tlite.training.storage.ocp.save_checkpointables", exhausted)
    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    checkpoints.save(1, trees(1), 1.0)
    with pytest.raises(UserError, match=r"\(Too many open files\)"):
        checkpoints.wait()


# Checkpoints from before 22 November 2026, which Orbax's own manager wrote


@pytest.fixture(scope="module")
def old_once(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("old") / "checkpoints"
    with ocp.training.Checkpointer(folder) as orbax:
        for step, score in ((1, 2.0), (2, 1.0), (3, 3.0)):
            digests = {name: tree_digest(tree) for name, tree in trees(step).items()}
            metrics = {"score": score, "interrupted": False}
            metadata = {"sha256": digests}
            orbax.save_checkpointables(step, trees(step), metrics=metrics, custom_metadata=metadata)
    return folder


@pytest.fixture
def old(old_once, tmp_path) -> Path:
    """Steps 1 to 3, the second the best, as tlite wrote them then."""
    return shutil.copytree(old_once, tmp_path / "checkpoints")


def test_old_checkpoints_load_and_are_gone_on_with(old):
    checkpoints = Checkpoints(old, writing=True)
    assert checkpoints.best_step() == 2
    assert_equal(checkpoints.load(ABSTRACT)[1], 3)
    for step in (4, 5):
        checkpoints.save(step, trees(step), 4.0)
    checkpoints.close()
    assert checkpoints.steps() == [2, 4, 5]


@pytest.mark.parametrize(
    ("name", "damage"),
    [("metrics/metrics", cut), ("_CHECKPOINT_METADATA", Path.unlink), ("parameters", flip_a_byte)],
)
def test_a_damaged_old_checkpoint_gives_way_to_the_one_before(old, damage, name):
    path = old / "3" / name
    damage(largest_file(path) if path.is_dir() else path)
    assert Checkpoints(old).load(ABSTRACT)[0] == 2


@pytest.mark.parametrize("gone", ["parameters", "optimizer"])
def test_an_old_checkpoint_that_is_half_removed_gives_way_to_the_one_before(old, gone):
    shutil.rmtree(old / "3" / gone)
    assert Checkpoints(old).load(ABSTRACT)[0] == 2


def test_old_checkpoints_load_onto_a_mesh(old):
    wanted = on_a_mesh(None, "a")
    found, loaded = Checkpoints(old).load(placed(wanted))
    assert found == 3
    assert_equal(loaded, 3)
    assert jax.tree.map(lambda a: a.sharding, loaded) == wanted


def test_a_checkpoint_without_digests_loads_and_its_files_are_checked(saved):
    """As they were for a day in November 2026."""
    for step in (4, 5):
        path = saved / str(step) / "checkpoint.json"
        record = json.loads(path.read_text())
        del record["sha256"], record["digests"]
        path.write_text(json.dumps(record | {"sha256": checkpoint_file._content_digest(record)}))
    assert_equal(Checkpoints(saved).load(placed(on_a_mesh(None, "a")))[1], 5)
    flip_a_byte(largest_file(saved / "5"))
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4


def test_large_files_of_earlier_checkpoints_are_checked_by_their_sha256(saved, monkeypatch):
    """Until 22 November 2026 every file had one, whatever its size."""
    monkeypatch.setattr(checkpoint_file, "LARGE", 100)
    with Checkpoints(saved) as checkpoints:
        assert checkpoints.load(ABSTRACT)[0] == 5
        path = largest_file(saved / "5")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        assert checkpoints.load(ABSTRACT)[0] == 4
