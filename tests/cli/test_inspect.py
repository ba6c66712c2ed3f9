"""`tlite inspect`: where it draws. The pictures are tested in system/test_inspect_run.py."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.inspected import undrawn

pytest.importorskip("sklearn")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def trained(classifier, tmp_path_factory):
    """A copy: pictures go into the run."""
    copy = tmp_path_factory.mktemp("inspected") / "run"
    return SimpleNamespace(run=shutil.copytree(classifier.run, copy))


@pytest.fixture(autouse=True)
def empty_pictures(monkeypatch):
    """Pictures are files with nothing in them: to draw them takes long."""
    undrawn(monkeypatch)


@pytest.mark.parametrize("options", ["", " --text 'The sound is superb.' --replica 1"])
def test_inspect_prints_the_number_of_pictures_and_the_page(tlite, trained, options):
    code, out, err = tlite("inspect {run}" + options)
    assert (code, err) == (0, "")
    folder = trained.run / "inspection"
    number = len(list(folder.glob("*.png")))
    assert number > 5
    page = folder / "index.html"
    assert out == f"{number} pictures in {folder}; all of them on one page: {page}\n"
    assert page.stat().st_size > 1000


def test_a_page_needs_neither_memory_nor_optimizer_of_training(works, trained, without_training):
    works("inspect {run}")
    assert without_training == {"parameters"}


def test_pictures_do_not_replace_other_files(works, fails):
    for _ in range(2):
        assert works("inspect {run} --to mine").endswith("mine/index.html\n")
    (other := Path("other")).mkdir()
    (other / "cat.png").touch()
    assert "other has files that are not from inspect" in fails("inspect {run} --to other")
    assert [*other.iterdir()] == [other / "cat.png"]
