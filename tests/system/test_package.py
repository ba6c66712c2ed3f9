"""A wheel: all of tlite and its experiments are inside, and train where there is no repository."""

import shutil
import tarfile
import zipfile

import jax
import pytest

import tlite
from tests.helpers.python import ROOT, python
from tlite.runs.experiment_files import find_experiments

TINY = (
    "--steps 2 --evaluate-every 2 --width 8 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 4 --precision float32"
)


def build(kind, tree, folder):
    """What `pip install` and `python -m build` call, with the hatchling that is installed."""
    script = f"from hatchling import build; print(build.build_{kind}({str(folder)!r}))"
    code, out, err = python("-c", script, folder=tree)
    assert code == 0, err
    return folder / out.splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The part of the repository that a wheel is built from; building writes into it."""
    pytest.importorskip("hatchling", reason="no hatchling to build with")
    tree = tmp_path_factory.mktemp("beside") / "tlite"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("tlite", "experiments"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    return tree


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


def names(wheel):
    return {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}


def test_the_wheel_has_every_module_and_experiment_and_no_more(wheel):
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tlite").rglob("*.py")}
    shipped = [*ROOT.glob("experiments/*.py"), ROOT / "experiments/tools/gutenberg.py"]
    experiments = {f"tlite/_shipped/{path.relative_to(ROOT)}" for path in shipped}
    files = {"tlite/py.typed"} | {f"tlite/report/page.{kind}" for kind in ("css", "html", "js")}
    assert names(wheel) == modules | experiments | files


def test_a_wheel_by_way_of_the_sdist_is_the_same(wheel, tree, tmp_path):
    with tarfile.open(build("sdist", tree, tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert names(build("wheel", unpacked, tmp_path)) == names(wheel)


def test_an_editable_install_wins_over_the_clone_s_folder(tree, tmp_path):
    zipfile.ZipFile(build("editable", tree, tmp_path)).extractall(tmp_path)
    script = f"import site; site.addsitedir({str(tmp_path)!r}); import tlite; print(tlite.__file__)"
    # Without this environment's own tlite, or the tests'.
    ran = python("-S", "-c", script, folder=tree.parent, PYTHONPATH="")
    assert ran.out == f"{tree / 'tlite' / '__init__.py'}\n", ran.err


OWN = """
import dataclasses
from neighbour import WIDTH
from experiments import demo
model = dataclasses.replace(demo.experiment.model, width=WIDTH)
experiment = dataclasses.replace(demo.experiment, name="own", model=model)
"""


def test_without_the_repository_all_works_from_any_folder(wheel, tmp_path):
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(installed)
    elsewhere.mkdir()
    (elsewhere / "own.py").write_text(OWN)
    (elsewhere / "neighbour.py").write_text("WIDTH = 8\n")
    script = f"""
import os
import sys
import tlite
assert tlite.__file__.startswith({str(installed)!r})
assert "jax" not in sys.modules
print(tlite.__version__)
sys.modules["sklearn"] = None  # the extras are not there
from tlite.cli import main
from tlite.runs.experiment_files import find_experiment, find_experiments, load_experiment
print(*(load_experiment(name).name for name in find_experiments()))
print(find_experiment("demo"))
assert tlite.load_experiment("demo").name == "demo"
tiny = "{TINY} --run".split()
assert main(["train", "demo", *tiny, "demo"]) == 0
assert main(["train", "own.py", *tiny, "own"]) == 0
os.mkdir("below")
os.chdir("below")
assert main("generate ../own --prompt The --tokens 5".split()) == 0
assert main("inspect ../demo".split()) == 0
"""
    kept = {
        "PYTHONPATH": str(installed),
        "XDG_CACHE_HOME": str(tmp_path),
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    code, out, err = python("-c", script, folder=elsewhere, **kept)
    assert code == 0, err
    version, loaded, found = out.splitlines()[:3]
    assert version == tlite.__version__
    assert set(loaded.split()) == {*find_experiments()}
    assert found == str(installed / "tlite/_shipped/experiments/demo.py")
    assert (elsewhere / "own" / "config.json").is_file()
    assert list(elsewhere.glob("demo/**/*.html"))


def test_what_there_is_is_listed_and_comes_when_it_is_asked_for():
    listed = dir(tlite)
    for name in ("functional", "models", "inspection", "pictures", "load", "__version__"):
        assert name in listed
    for name in (*tlite.FOLDERS, *tlite.FUNCTIONS):
        assert getattr(tlite, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tlite.nothing  # noqa: B018
