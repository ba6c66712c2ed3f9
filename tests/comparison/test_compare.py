"""`compare`: what is printed and written, where, and that nothing else is touched."""

import json

import jax
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.fake_runs import GENERATOR, fake_run, fake_study, varied
from tlite.comparison import compare
from tlite.comparison.statistics import required_seeds

FINAL = np.array([1.5, 1.6, 1.55])
WRITTEN = [
    "comparison.csv", "comparison.json", "comparison.md", "curves-flops.png",
    "curves-minutes.png", "curves-steps.png", "curves-tokens.png", "differences.png", "index.html",
]  # fmt: skip
BETTER = "is 0.110 ± 0.025 (over seeds, on these texts) nats better than"


@pytest.fixture
def runs(tmp_path):
    finals = {"a": FINAL, "b": FINAL - [0.1, 0.11, 0.12]}
    return [fake_run(tmp_path / name, GENERATOR, final) for name, final in finals.items()]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """With pictures that are not drawn, which takes a second; `test_curves` does it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = [name for name in WRITTEN if name.endswith(".png")]
    pictures = {name: (f"caption of {name}", b"picture") for name in names}
    monkeypatch.setattr("tlite.comparison.curves.draw", lambda results: pictures)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_rerun_replaces_its_files_and_no_run_changes(runs, tmp_path, capsys):
    to, before = tmp_path / "to" / "there", [contents(run) for run in runs]
    compare(runs, to)
    told = capsys.readouterr().out
    assert f"b {BETTER} a, 3 paired seeds" in told
    assert f"written into {to}: " in told
    assert listed(to) == WRITTEN
    (to / "mine.txt").write_text("kept")
    whole = contents(to)
    (to / "index.html").write_text("old")
    compare(runs, to)
    assert contents(to) == whole
    assert [contents(run) for run in runs] == before


def test_runs_have_a_new_folder_each_time_a_study_its_own(runs, tmp_path, capsys):
    compare(runs)
    compare(runs)
    folders = list((tmp_path / "here" / "runs" / "comparison").iterdir())
    assert [listed(folder) for folder in folders] == [WRITTEN] * 2
    study = fake_study(tmp_path, {"base": "a", "rms": "b"})
    capsys.readouterr()
    compare([study])
    assert f"rms {BETTER} base" in capsys.readouterr().out
    assert listed(study / "comparison") == WRITTEN
    compare([study, runs[1]], tmp_path / "both")
    assert "b is 0.110" in capsys.readouterr().out


def test_required_seeds_are_printed_for_a_smallest_effect_only(runs, tmp_path, capsys):
    compare(runs, tmp_path / "to")
    assert "to show" not in capsys.readouterr().out
    assert entry(tmp_path / "to")["required_seeds"] is None
    compare(runs, tmp_path / "to", smallest_effect=0.02)
    number = entry(tmp_path / "to")["required_seeds"]
    assert f"; to show 0.02 nats: {number} seeds each" in capsys.readouterr().out
    assert number == required_seeds(0.02, 0.01**2)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        assert f"{wrong:g}" in complaint(compare, runs, tmp_path / "to", smallest_effect=wrong)


def entry(folder):
    return json.loads((folder / "comparison.json").read_text())["entries"][1]


@pytest.mark.parametrize("format", ["markdown", "csv", "json"])
def test_other_formats_are_printed_as_they_are_written(runs, tmp_path, capsys, format):
    compare(runs, tmp_path / "to", format)
    name = {"markdown": "comparison.md"}.get(format, f"comparison.{format}")
    told = capsys.readouterr()
    assert told.out == (tmp_path / "to" / name).read_text()
    assert told.err.startswith(f"written into {tmp_path / 'to'}: ")


def test_nothing_to_compare_is_told(tmp_path):
    assert "name the folders" in complaint(compare, [])
    study = fake_study(tmp_path / "s", {"late": "late"}, failed=["broken"])
    assert complaint(compare, [study]) == (
        "there is nothing to compare: late has not begun; broken failed: it was not finite"
    )


def test_a_place_that_cannot_be_written_is_told_after_the_table(runs, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "file" in complaint(compare, runs, tmp_path / "file")
    assert "b is 0.110" in capsys.readouterr().out


def test_a_write_that_fails_leaves_what_was_there(runs, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    to = tmp_path / "to"
    compare(runs, to)
    before = {path: path.read_bytes() for path in to.glob("[!.]*")}
    monkeypatch.setattr("os.fsync", full)
    assert "No space left on device" in complaint(compare, runs, to)
    assert before == {path: path.read_bytes() for path in to.glob("[!.]*")}


def test_nothing_is_compiled(tmp_path, caplog):
    """Of a model only the shapes are looked at: here one that no other test has looked at."""
    run = fake_run(tmp_path / "run", varied(GENERATOR, {"width": 26}), FINAL)
    with jax.log_compiles():
        compare([run], tmp_path / "to", "json")
        assert "Compiling" not in caplog.text
        jax.jit(lambda x: x + 26)(FINAL)
        assert "Compiling" in caplog.text  # as it is told
    content = json.loads((tmp_path / "to" / "comparison.json").read_text())
    assert all(entry["parameters"] for entry in content["entries"])
