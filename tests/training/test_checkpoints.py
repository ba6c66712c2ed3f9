import errno
import json
import math
import os
import random
import resource
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tlite.errors import UserError
from tlite.training import TrainingConfig
from tlite.training import checkpoints as module
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


LOSSES = 3.0, 1.0, 2.0, 2.5, 2.2


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(folder, writing=True) as checkpoints:
        for step, loss in enumerate(LOSSES, 1):
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


@pytest.mark.parametrize(("asked", "step"), [(None, 5), (2, 2)])
def test_what_is_loaded_is_what_was_saved(saved, asked, step):
    found, loaded = Checkpoints(saved).load(ABSTRACT, asked)
    assert found == step
    assert_equal(loaded, step)


TENS = {"max_to_keep": 3, "evaluate_every": 10}
SCORES = [(10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5), (50, 2.2)]
ENDED = [(10, 1.0), (20, 2.0), (25, 0.5)]
NANS = list(enumerate([math.nan, 1.0, math.nan, math.inf, math.nan], 1))
KEPT = {
    "the best and the last": (TENS, SCORES, [20, 30, 40, 50], 20),
    "interruptions, better than all": (TENS, [*SCORES, (55, -1.0)], [20, 30, 40, 50, 55], 20),
    "and later": (TENS, [(9, -1.0), *SCORES, (55, -1.0), (60, 4.0)], [20, 40, 50, 60], 20),
    "an interruption alone": (TENS, [(7, 3.0)], [7], 7),
    "a score that is NaN": ({"max_to_keep": 1, "evaluate_every": 1}, NANS, [2, 5], 2),
    # so a run that is then given more steps has what it would have had
    "the end beside the others": (TENS | {"max_to_keep": 1, "steps": 25}, ENDED, [10, 20, 25], 25),
}


@pytest.mark.parametrize("case", KEPT)
def test_the_best_and_the_last_that_count_are_kept_and_one_between_until_the_next(tmp_path, case):
    changes, scores, kept, best = KEPT[case]
    config = TrainingConfig(**changes)
    with Checkpoints(tmp_path / "checkpoints", config, writing=True) as checkpoints:
        for step, score in scores:
            checkpoints.save(step, trees(step), score)
    assert (checkpoints.steps(), checkpoints.best_step()) == (kept, best)
    regular = [step for step in kept if config.is_regular(step)]
    assert checkpoints.regular_steps() == (regular or kept)
    if case == "the end beside the others":
        more = Checkpoints(tmp_path / "checkpoints", TrainingConfig(**TENS, steps=40))
        assert (more.regular_steps(), more.best_step()) == ([10, 20], 10)


def test_where_none_before_is_whole_one_after_is_used_and_none_at_all_is_told(saved, capsys):
    for step in (2, 4):
        flip_a_byte(largest_file(saved / str(step)))
    assert Checkpoints(saved).load(ABSTRACT, 2)[0] == 5
    assert "checkpoint 2 is damaged: using checkpoint 5 instead" in capsys.readouterr().err
    flip_a_byte(largest_file(saved / "5"))
    for asked in (None, 4):
        with pytest.raises(UserError, match=r"every checkpoint in \S* is damaged"):
            Checkpoints(saved).load(ABSTRACT, asked)


def test_an_array_that_is_not_loaded_is_not_read(saved):
    parameters = {"parameters": ABSTRACT["parameters"]}
    flip_a_byte(largest_file(saved / "5" / "optimizer"))
    assert Checkpoints(saved).load(parameters)[0] == 5
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4


@pytest.mark.parametrize("place", [(Checkpoints, "_is_whole"), (module, "_restore")])
def test_one_that_is_removed_while_it_is_read_is_not_damaged(saved, monkeypatch, capsys, place):
    before = getattr(*place)

    def removed(*arguments):
        if (saved / "5").is_dir():
            shutil.rmtree(saved / "5")
        return before(*arguments)

    monkeypatch.setattr(*place, removed)
    assert Checkpoints(saved).load(ABSTRACT)[0] == 4
    assert capsys.readouterr().err == ""


def test_the_seal_is_there_before_the_checkpoint_has_its_name(tmp_path, monkeypatch):
    seal, found = Checkpoints._seal, []

    def noted(checkpoints):
        found.append((tmp_path / "checkpoints" / "1").exists())
        seal(checkpoints)

    monkeypatch.setattr(Checkpoints, "_seal", noted)
    with Checkpoints(tmp_path / "checkpoints", writing=True) as checkpoints:
        checkpoints.save(1, trees(1), 1.0)
    assert found == [False]


def test_what_is_damaged_is_moved_aside_never_deleted_and_its_step_saved_anew(saved, capsys):
    flip_a_byte(largest_file(saved / "5"))
    content = largest_file(saved / "5").read_bytes()
    checkpoints = Checkpoints(saved, writing=True)
    step, _ = checkpoints.load(ABSTRACT)
    checkpoints.put_right(step)
    assert checkpoints.steps() == [2, 4]
    assert largest_file(saved / "damaged-5").read_bytes() == content
    assert f"moved to {saved / 'damaged-5'}" in capsys.readouterr().err
    checkpoints.save(5, trees(50), 0.5)
    checkpoints.wait()
    assert_equal(checkpoints.load(ABSTRACT)[1], 50)
    assert checkpoints.best_step() == 5
    flip_a_byte(largest_file(saved / "5"))
    checkpoints.put_right(4)
    assert (saved / "damaged-5-2").is_dir()


# What a kill leaves behind, and damage


def test_what_a_kill_kept_from_being_removed_is_removed_where_a_run_goes_on(tmp_path):
    with Checkpoints(
        tmp_path, TrainingConfig(max_to_keep=9, evaluate_every=1), writing=True
    ) as checkpoints:
        for step, loss in enumerate(LOSSES, 1):
            checkpoints.save(step, trees(step), loss)
    with Checkpoints(tmp_path, writing=True) as checkpoints:
        checkpoints.put_right(5)
        assert checkpoints.steps() == [2, 4, 5]
    assert {path.name for path in tmp_path.iterdir()} == {"2", "4", "5"}


def half_removed(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "parameters":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def exchanged(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("4"), folder)


def in_arrays(damage):
    return lambda folder: damage(largest_file(folder))


def in_seal(edit):
    def damage(folder: Path) -> None:
        path = folder / "checkpoint.json"
        path.write_text(edit(path.read_text()))

    return damage


DAMAGES = {
    "half removed": half_removed,
    "that of another step": exchanged,
    "arrays cut": in_arrays(cut),
    "a file removed": in_arrays(Path.unlink),
    "seal cut": in_seal(lambda text: text[: len(text) // 2]),
    "seal deep": in_seal(lambda text: "[" * 5000 + "]" * 5000),
    "no score": in_seal(lambda text: json.dumps(json.loads(text) | {"score": None})),
    "another score": in_seal(lambda text: text.replace("2.2", "0.2")),
}


@pytest.mark.parametrize(
    ("step", "damage"),
    [(5, damage) for damage in DAMAGES] + [(step, "half removed") for step in (2, 4)],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(saved, step, damage, capsys):
    """And training goes on."""
    DAMAGES[damage](saved / str(step))
    checkpoints = Checkpoints(saved, writing=True)
    found, loaded = checkpoints.load(ABSTRACT)
    assert found == (4 if step == 5 else 5)
    assert_equal(loaded, found)
    said = f"checkpoint {step} is damaged: using checkpoint {found} instead"
    assert (said in capsys.readouterr().err) == (step == 5)
    assert checkpoints.best_step() != step
    checkpoints.put_right(found)
    assert (saved / f"damaged-{step}" / "parameters").is_dir()
    for later in (6, 7, 8):
        checkpoints.save(later, trees(later), 3.0)
    checkpoints.close()
    kept = {2: [5, 7, 8], 4: [2, 7, 8], 5: [2, 7, 8]}
    assert checkpoints.steps() == kept[step]


def test_what_a_kill_left_half_written_or_half_removed_is_cleared_when_writing(saved):
    names = ["7.orbax-checkpoint-tmp", "3.deleting"]
    for name in names:
        (saved / name / "parameters").mkdir(parents=True)
    assert Checkpoints(saved).steps() == [2, 4, 5]
    assert all((saved / name).is_dir() for name in names)
    mine = [saved / "4.good", saved / "5.tar"]
    mine[0].mkdir()
    mine[1].touch()
    Checkpoints(saved, writing=True)
    assert sorted(path.name for path in saved.iterdir()) == ["2", "4", "4.good", "5", "5.tar"]


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
    few = len(os.listdir("/proc/self/fd")) + 1  # enough for us, too few for TensorStore
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        with pytest.raises(UserError, match=r"can't read \S*: .+"):
            Checkpoints(saved).load(ABSTRACT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


CHANGES = {
    "shape": lambda kernel: {"blocks.0.kernel": kernel.update(shape=(2, 600))},
    "type": lambda kernel: {"blocks.0.kernel": kernel.update(dtype=np.float16)},
    "missing": lambda kernel: {},
    "more": lambda kernel: {"blocks.0.kernel": kernel, "blocks.1.kernel": kernel},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_config_is_told_as_that(saved, change):
    kernels = CHANGES[change](ABSTRACT["parameters"]["blocks.0.kernel"])
    with pytest.raises(UserError, match=r"config.json is not of the model .*blocks\.[01]\.kernel"):
        Checkpoints(saved).load(ABSTRACT | {"parameters": kernels})


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


def test_a_flipped_bit_is_found_wherever_it_is(saved):
    chance, whole = random.Random(0), placed(on_a_mesh(None, "a"))
    paths = [p for p in sorted((saved / "5").rglob("*")) if p.is_file() and p.stat().st_size]
    of_the_renaming = [saved / "5" / name for name in module.WRITTEN_LATER]  # nobody reads them
    for _ in range(50):
        path = chance.choice(paths)
        content = path.read_bytes()
        place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        found, loaded = Checkpoints(saved).load(whole)
        assert found == (5 if path in of_the_renaming else 4), path
        assert_equal(loaded, found)
        path.write_bytes(content)
    assert Checkpoints(saved).load(whole)[0] == 5


# What can't be written


@pytest.fixture
def small_files():
    """No file may be larger than 8 kB, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def larger(step):
    kernel = np.random.default_rng(step).normal(size=(2, 10_000)).astype(np.float32)
    return trees(step) | {"parameters": {"blocks.0.kernel": kernel}}


def test_what_cannot_be_written_is_told_and_the_next_is_saved(tmp_path, small_files):
    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    checkpoints.save(1, trees(1), 1.0)
    checkpoints.wait()
    checkpoints.save(2, larger(2), 1.0)
    with pytest.raises(UserError, match=r"can't write \S* \(.*File too large"):
        checkpoints.wait()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    small_files()
    for step in (3, 4):
        checkpoints.save(step, trees(step), 2.0)
    checkpoints.close()
    assert checkpoints.steps() == [1, 3, 4]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "in other words"), "No space left on device"),
        (ValueError("NOT_FOUND: [OS error 28: No space left]\nmore"), "NOT_FOUND: .*No space left"),
    ],
)
def test_a_full_disk_is_told_as_that_and_leaves_nothing_half_written(
    tmp_path, monkeypatch, error, reason
):
    def fail(path):
        raise error

    checkpoints = Checkpoints(tmp_path / "checkpoints", writing=True)
    checkpoints.save(1, trees(1), 1.0)
    checkpoints.wait()
    monkeypatch.setattr(module, "sha256", fail)
    checkpoints.save(2, trees(2), 1.0)
    with pytest.raises(UserError, match=rf"can't write \S* \({reason}.*\)"):
        checkpoints.wait()
    checkpoints.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]


def test_of_two_errors_the_first_is_told(tmp_path, monkeypatch):
    def train(folder: Path) -> None:
        with Checkpoints(folder, writing=True) as checkpoints:
            checkpoints.save(1, trees(1), 1.0)
            raise ZeroDivisionError

    monkeypatch.setattr(module, "sha256", Path.readlink)  # which raises an OSError
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "checkpoints")
