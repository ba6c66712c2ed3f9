"""`compare` prints and writes its results, and changes no run."""

import json
from unittest.mock import Mock

import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.fake_runs import GENERATOR, fake_run, fake_study
from tlite.comparison import compare
from tlite.comparison.statistics import required_seeds

FINAL = np.array([1.5, 1.6, 1.55])
WRITTEN = [
    "comparison.csv", "comparison.json", "comparison.md", "curves-flops.png",
    "curves-minutes.png", "curves-steps.png", "curves-tokens.png", "differences.png", "index.html",
]  # fmt: skip
BETTER = "better, difference -0.110 nats, 95 % CI [-0.135, -0.085] (3 paired seeds"


@pytest.fixture
def runs(tmp_path):
    finals = {"a": FINAL, "b": FINAL - [0.1, 0.11, 0.12]}
    return [fake_run(tmp_path / name, GENERATOR, final) for name, final in finals.items()]


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    """Work in an empty folder, and do not draw pictures, which takes a second."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = [name for name in WRITTEN if name.endswith(".png")]
    pictures = {name: (f"caption of {name}", b"picture") for name in names}
    monkeypatch.setattr("tlite.comparison.curves.draw", lambda results: pictures)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def file_names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_rerun_replaces_its_files_and_no_run_changes(runs, tmp_path, capsys):
    output, before = tmp_path / "to" / "there", [contents(run) for run in runs]
    compare(runs, output)
    printed = capsys.readouterr().out
    assert f"b vs a: {BETTER})" in printed
    assert f"written into {output}: " in printed
    assert file_names(output) == WRITTEN
    (output / "mine.txt").write_text("kept")
    written = contents(output)
    (output / "index.html").write_text("old")
    compare(runs, output)
    assert contents(output) == written
    assert [contents(run) for run in runs] == before


def test_runs_get_a_new_folder_each_time_and_a_study_its_own(runs, tmp_path, capsys):
    compare(runs)
    compare(runs)
    folders = list((tmp_path / "here" / "runs" / "comparison").iterdir())
    assert [file_names(folder) for folder in folders] == [WRITTEN] * 2
    study = fake_study(tmp_path, {"base": "a", "rms": "b"})
    compare([study])
    assert f"rms vs base: {BETTER})" in capsys.readouterr().out
    assert file_names(study / "comparison") == WRITTEN
    compare([study, runs[1]], tmp_path / "both")
    assert f"b vs {tmp_path.name}/base: {BETTER}" in capsys.readouterr().out


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
    return json.loads((folder / "comparison.json").read_text())["runs"][1]


@pytest.mark.parametrize("format", ["markdown", "csv", "json"])
def test_other_formats_are_printed_as_they_are_written(runs, tmp_path, capsys, format):
    compare(runs, tmp_path / "to", format)
    name = {"markdown": "comparison.md"}.get(format, f"comparison.{format}")
    printed = capsys.readouterr()
    assert printed.out == (tmp_path / "to" / name).read_text()
    assert printed.err.startswith(f"written into {tmp_path / 'to'}: ")


def test_nothing_to_compare_is_an_error(tmp_path):
    study = fake_study(tmp_path / "s", {"late": "late"}, failed=["broken"])
    for name in ("late", "broken"):
        assert name in complaint(compare, [study])


def test_a_failed_write_keeps_old_files_and_prints_the_table(runs, tmp_path, monkeypatch, capsys):
    output = tmp_path / "to"
    compare(runs, output)
    before = {path: path.read_bytes() for path in output.glob("[!.]*")}
    capsys.readouterr()
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert "No space left on device" in complaint(compare, runs, output)
    assert before == {path: path.read_bytes() for path in output.glob("[!.]*")}
    assert f"b vs a: {BETTER}" in capsys.readouterr().out
