"""Experiment files of one's own: their neighbours, their mistakes, and which file is run."""

import sys

import pytest

from tlite.errors import UserError
from tlite.runs.experiment_files import find_experiment, find_experiments, load_experiment

EXPERIMENT = """
import dataclasses
from experiments.shakespeare_post import experiment as post

experiment = dataclasses.replace(post, name={name})
"""


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def test_each_file_imports_neighbours_of_its_folder(tmp_path):
    """Also in a folder `experiments`, and after a neighbour was edited."""
    for folder, number in (("a", 16), ("b", 64), ("a", 3)):
        here = tmp_path / folder / "experiments"
        here.mkdir(parents=True, exist_ok=True)
        (here / "size.py").write_text(f"NUMBER = {number}\n")
        (here / "first.py").write_text("import size" + EXPERIMENT.format(name="f'{size.NUMBER}'"))
        text = "from experiments.first import experiment\n"
        assert load_experiment(write(here / "mine.py", text)).name == str(number)


def test_a_neighbour_does_not_hide_a_module_of_python(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    write(tmp_path / "colorsys.py", "import colorsys\n\nexperiment = colorsys.ONE_THIRD")
    with pytest.raises(UserError, match=r"colorsys\.py is of type float"):
        load_experiment(tmp_path / "colorsys.py")


def test_files_in_the_current_folder_precede_those_of_tlite(tmp_path):
    shipped, here = find_experiments(), tmp_path / "experiments"
    write(here / "demo.py", EXPERIMENT.format(name="'my demo'"))
    write(here / "first.py", EXPERIMENT.format(name="'first'"))
    import_first = "from experiments.first import experiment as first"
    write(here / "second.py", import_first + EXPERIMENT.format(name="first.name"))
    write(here / "__init__.py", "")
    assert list(find_experiments()) == sorted({*shipped, "demo", "first", "second"})
    assert find_experiment("my_text") == shipped["my_text"]
    names = [load_experiment(name).name for name in ("demo", "second", "my_text")]
    assert names == ["my demo", "first", "my_text"]


def test_a_file_named_without_its_ending_is_suggested(fails, tmp_path):
    write(tmp_path / "my_study.py", EXPERIMENT.format(name="'mine'"))
    assert "did you mean my_study.py?" in fails("train my_study")


MISTAKES = {
    "x = 1\nif x\n": "my.py, line 2: SyntaxError: expected ':'",
    "import my_helper": "my_helper.py, line 3: ZeroDivisionError: division by zero",
    "from experiments.nope import x": "line 1: ModuleNotFoundError: No module named 'experiments.",
    "raise ValueError('one\\ntwo')": "my.py, line 1: ValueError: one\n",
    "from tlite.models import GeneratorConfig\nGeneratorConfig(num_heads=0)": (
        "my.py, line 2: ValueError: num_heads must be at least 1, not 0"
    ),
    "from tlite.errors import UserError\nraise UserError('no data')": "my.py, line 2: no data",
    "x = '\0'": "my.py: SyntaxError: source code string cannot contain null bytes",
    "": "my.py has no `experiment`: add experiment = GeneratorExperiment(...)",
    "experiment = 3": "`experiment` in my.py is of type int, not an experiment",
    "from tlite.experiment import GeneratorExperiment as experiment": "my.py is of type type",
}


@pytest.mark.parametrize("content", MISTAKES)
def test_an_error_in_a_file_is_printed_with_its_line(content, fails, tmp_path):
    write(tmp_path / "my.py", content)
    write(tmp_path / "my_helper.py", "\n\n1 / 0")
    assert MISTAKES[content] in fails("train my.py")
