"""The wheel holds tlite and its experiments, and works without the repository."""

import shutil
import tarfile
import zipfile

import pytest

import tlite
from tests.helpers.python import ROOT, python
from tlite.runs.experiment_files import find_experiments

TINY = (
    "--steps 2 --evaluate-every 2 --width 8 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 4 --precision float32"
)


def build(kind, tree, folder):
    """Build with the installed hatchling, as `pip install` and `python -m build` do."""
    script = f"from hatchling import build; print(build.build_{kind}({str(folder)!r}))"
    code, out, err = python("-c", script, folder=tree)
    assert code == 0, err
    return folder / out.splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy the files that a wheel is built from, because building writes into their folder."""
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


def test_the_wheel_has_exactly_all_modules_and_experiments(wheel, tree, tmp_path):
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tlite").rglob("*.py")}
    shipped = [*ROOT.glob("experiments/*.py"), ROOT / "experiments/tools/gutenberg.py"]
    experiments = {f"tlite/_shipped/{path.relative_to(ROOT)}" for path in shipped}
    files = {"tlite/py.typed"} | {f"tlite/report/page.{kind}" for kind in ("css", "html", "js")}
    assert names(wheel) == modules | experiments | files
    with tarfile.open(build("sdist", tree, tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert names(build("wheel", unpacked, tmp_path)) == names(wheel)


def test_an_editable_install_precedes_a_folder_named_tlite(tree, tmp_path):
    zipfile.ZipFile(build("editable", tree, tmp_path)).extractall(tmp_path)
    script = f"import site; site.addsitedir({str(tmp_path)!r}); import tlite; print(tlite.__file__)"
    # Neither this environment's tlite nor that of the tests is on the path.
    result = python("-S", "-c", script, folder=tree.parent, PYTHONPATH="")
    assert result.out == f"{tree / 'tlite' / '__init__.py'}\n", result.err


CUSTOM = """
import dataclasses
from neighbour import WIDTH
from experiments import demo
model = dataclasses.replace(demo.experiment.model, width=WIDTH)
experiment = dataclasses.replace(demo.experiment, name="custom", model=model)
"""


def test_the_wheel_works_from_any_folder_without_the_repository(wheel, tmp_path):
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(installed)
    elsewhere.mkdir()
    (elsewhere / "custom.py").write_text(CUSTOM)
    (elsewhere / "neighbour.py").write_text("WIDTH = 8\n")
    script = f"""
import os
import sys
import tlite
assert tlite.__file__.startswith({str(installed)!r})
assert "jax" not in sys.modules
print(tlite.__version__)
sys.modules["sklearn"] = None  # extras are not installed
from tlite.cli import main
from tlite.runs.experiment_files import find_experiment, find_experiments, load_experiment
print(*(load_experiment(name).name for name in find_experiments()))
print(find_experiment("demo"))
assert tlite.load_experiment("demo").name == "demo"
tiny = "{TINY} --run".split()
assert main(["train", "demo", *tiny, "demo"]) == 0
assert main(["train", "custom.py", *tiny, "custom"]) == 0
os.mkdir("below")
os.chdir("below")
assert main("generate ../custom --prompt The --tokens 5".split()) == 0
import tlite.report  # reads the files of its page
"""
    environment = {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path)}
    code, out, err = python("-c", script, folder=elsewhere, **environment)
    assert code == 0, err
    version, names, path = out.splitlines()[:3]
    assert version == tlite.__version__
    assert set(names.split()) == {*find_experiments()}
    assert path == str(installed / "tlite/_shipped/experiments/demo.py")
    assert (elsewhere / "custom" / "config.json").is_file()


def test_public_names_are_listed_and_imported_lazily():
    for name in (*tlite.FOLDERS, *" ".join(tlite.MODULES.values()).split()):
        assert name in dir(tlite)
        assert getattr(tlite, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tlite.nothing  # noqa: B018
