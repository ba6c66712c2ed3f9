"""Variants on the command line: grids of options, a file's own, and what is refused."""

import json
import operator
import shlex

import pytest

from tests.helpers.lines import read_line
from tlite.cli.experiment_files import load_variants
from tlite.errors import UserError
from tlite.models import Learned, Norm, Rotary

FILE = """
import dataclasses
from experiments.demo import experiment

variants = {variants}
"""
WIDE = "dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, width=128))"
MISTAKES = {
    "--vary": "--vary needs an option's name and values",
    "--vary norm layer": "--vary norm needs at least two values",
    "--vary nrom layer rms": "no option 'nrom' of the experiment to vary: did you mean norm?",
    "--vary model a b": "no option 'model'",
    "--vary width 8 eight": "^╭─ Value error ",
    "--vary norm rms layer --norm rms": "--norm is given twice",
    "--vary norm_first True False --block.pre-norm": "--norm-first is given twice",
    "--vary block.pre-norm True False --norm-first": "--block.pre-norm is given twice",
    "--vary positions.offset 0 1": "no option 'positions.offset' .*: did you mean positions",
    "--vary norm_first True yes": "norm-first takes True and False, not 'yes'",
    "--vary num_heads 1 2 --vary num-heads 4 8": "--num-heads is given twice",
    "--vary norm layer rms layer": "needs at least two values, all different",
    "--vary learning-rate 1e-3 0.001": "learning-rate=1e-3 and learning-rate=0.001 are the same",
    "--vary num-heads 4 3": "^num-heads=3: a width of 64 is not divisible by 3 heads",
    "--vary dropout 0.1 1.5": r"^dropout=1.5: .*\[0, 1\)",
    "--vary norm layer rms --only lyer": "no variant 'lyer': did you mean layer?",
    "--only layer": "there are no variants, so none that is called 'layer'",
    f"--vary seed {' '.join(map(str, range(1001)))}": "would be 1,001 variants: at most 1,000",
}


WHERE = {
    "learning_rate": "training.learning_rate",
    "clip-norm": "training.clip_norm",
    "norm_first": "model.block.pre_norm",
    "block.pre-norm": "model.block.pre_norm",
    "norm-bias": "model.norm.bias",
    "windows": "model.attention.windows",
    "positions.base": "model.positions.base",
    "positions.scaling": "model.positions.scaling.method",
}
"""Where an option's value is; in the experiment itself unless it says so."""


@pytest.fixture
def file(tmp_path):
    """A file that exports variants."""

    def write(variants):
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(variants=variants))
        return path

    return write


def read(line, name="demo"):
    return read_line("demo", shlex.split(line), *load_variants(name))[0]


@pytest.mark.parametrize("line", MISTAKES)
def test_what_can_not_be_varied_is_told_in_a_sentence(line):
    with pytest.raises(UserError, match=MISTAKES[line].replace("?", r"\?")) as told:
        read(line)
    assert "\n" not in str(told.value).partition("╭")[0]


def test_a_mistake_is_told_by_the_command_before_anything_is_made(fails, tmp_path):
    assert "did you mean norm?" in fails("train demo --vary nrom layer rms")
    assert list(tmp_path.iterdir()) == []


def test_a_grid_has_every_combination_and_the_first_is_the_reference():
    line = "--vary norm layer rms --vary positions learned rotary --width 16 --run here"
    found, asked = read_line("demo", shlex.split(line), *load_variants("demo"))
    assert list(found) == ["layer learned", "layer rotary", "rms learned", "rms rotary"]
    models = [experiment.model for experiment in found.values()]
    combinations = [(model.norm, model.positions, model.width) for model in models]
    assert combinations[0] == (Norm("layer"), Learned(), 16)
    assert combinations[-1] == (Norm("rms"), Rotary(), 16)
    assert str(asked.run) == "here"


@pytest.mark.parametrize(
    ("line", "names", "read_as"),
    [
        ("learning_rate 1e-3 3e-3", ["learning-rate=1e-3", "learning-rate=3e-3"], [0.001, 0.003]),
        ("norm_first True False", ["norm-first=True", "norm-first=False"], [True, False]),
        ("norm-bias True None", ["norm-bias=True", "norm-bias=None"], [True, None]),
        ("clip-norm None 1", ["clip-norm=None", "clip-norm=1"], [None, 1.0]),
        ("windows '0 32' 0", ["windows=0_32", "windows=0"], [(0, 32), (0,)]),
        ("positions.base 7 8", ["positions.base=7", "positions.base=8"], [7.0, 8.0]),
        (
            "block.pre-norm True False",
            ["block.pre-norm=True", "block.pre-norm=False"],
            [True, False],
        ),
        ("positions.scaling linear yarn", ["linear", "yarn"], ["linear", "yarn"]),
        ("prompt 'a/b' 'a b'", ["prompt=1", "prompt=2"], ["a/b", "a b"]),
        ("prompt '' x", ["prompt=1", "prompt=2"], ["", "x"]),
        (f"prompt {'y' * 50} x", ["prompt=1", "prompt=2"], ["y" * 50, "x"]),
    ],
)
def test_values_are_read_as_those_of_the_option_and_named_plainly(line, names, read_as):
    found = read(f"--vary {line}")
    assert list(found) == names
    path = WHERE.get(field := line.split()[0], field.replace("-", "_"))
    assert [operator.attrgetter(path)(experiment) for experiment in found.values()] == read_as


def test_a_value_that_two_fields_share_is_named_with_its_field():
    found = read("--vary norm rms layer --vary prompt rms a")
    assert next(iter(found)) == "norm=rms prompt=rms"


def test_a_base_that_makes_no_sense_alone_is_no_hindrance():
    found = read("--width 10 --head-width 4 --vary num-heads 5 3")
    assert [e.model.num_heads for e in found.values()] == [5, 3]


def test_the_variants_of_a_file_take_the_options_and_keep_their_own_fields(file):
    path = file(f"{{'plain': experiment, 'twice as wide': {WIDE}}}")
    found = read("--norm rms --seeds 3", path)
    assert [(e.model.width, e.model.norm, e.training.seeds) for e in found.values()] == [
        (64, Norm("rms"), 3),
        (128, Norm("rms"), 3),
    ]
    assert {e.model.width for e in read("--width 32", path).values()} == {32}


def test_variants_of_a_file_are_varied_too(file):
    path = file(f"{{'plain': experiment, 'wide': {WIDE}}}")
    found = read("--vary norm layer rms", path)
    assert list(found) == ["plain layer", "plain rms", "wide layer", "wide rms"]
    assert found["wide rms"].model.width == 128


def test_some_variants_alone(file):
    path = file(f"{{'a': experiment, 'b': {WIDE}, 'c c': experiment}}")
    assert list(read("--only 'c c' --only a", path)) == ["a", "c c"]
    alone = read("--only b", path)
    assert {name: e.model.width for name, e in alone.items()} == {"b": 128}


@pytest.mark.parametrize(
    ("variants", "sentence"),
    [
        ("[experiment]", "must be a dictionary of experiments, not a list"),
        ("{}", "must be at least two, not 0"),
        ("{'a': experiment}", "must be at least two, not 1"),
        ("{'a': experiment, 'b': 3}", "the variant 'b' in .*mine.py is of type int"),
        ("{'a': experiment, '': experiment}", "not ''"),
        ("{'a': experiment, ' b': experiment}", "not ' b'"),
        ("{'a': experiment, 3: experiment}", "not 3"),
        ("{'a': experiment, 'b/c': experiment}", "not 'b/c'"),
        ("{'a': experiment, '..': experiment}", r"not '\.\.'"),
        ("{'a': experiment, '-b': experiment}", "not '-b'"),
        ("{'a': experiment, 'b\\n': experiment}", r"not 'b\\n'"),
        ("{'a': experiment, 'b' * 300: experiment}", "is too long"),
        (
            "{'a': experiment, 'b': __import__('experiments.numbers').numbers.experiment}",
            "is a TranslatorExperiment, but `experiment` a GeneratorExperiment",
        ),
    ],
)
def test_what_are_no_variants_is_told(file, variants, sentence):
    with pytest.raises(UserError, match=sentence) as told:
        load_variants(file(variants))
    assert "\n" not in str(told.value)


def test_help_says_that_there_are_variants(works, file):
    file(f"{{'plain': experiment, 'wide': {WIDE}}}")
    told = works("train mine.py --help")
    assert "Its variants: plain, wide." in told
    assert "--only" in told
    assert "--vary" in works("train --help")


@pytest.fixture
def study(tmp_path):
    """A folder that looks like a study's with two runs."""
    folder = tmp_path / "study"
    for run in ("layer", "rms"):
        (folder / run).mkdir(parents=True)
        (folder / run / "config.json").write_text("{}")
    (folder / "study.json").write_text(json.dumps({"name": "x", "variants": []}))
    return folder


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_study_where_a_run_is_wanted_names_its_runs(fails, study, command):
    assert "a study of runs: name one of layer, rms" in fails(f"{command} {study}")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--steps 9", "no option --steps for a study, but for a run in it"),
        ("", "no two variants of different names"),
    ],
)
def test_what_a_study_can_not_be_resumed_with_is_told(fails, study, option, sentence):
    assert sentence in fails(f"train --resume {study} {option}")
