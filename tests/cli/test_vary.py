"""Variants on the command line: grids of options, variants of a file, and their errors."""

import ast
import json
import operator
import shlex
from functools import partial

import pytest

from tests.helpers.complaints import complaint
from tests.helpers.lines import read_line
from tlite.cli.overrides import read_search_space
from tlite.errors import UserError
from tlite.models import Learned, Norm, Rotary
from tlite.runs.experiment_files import load_variants

FILE = """
import dataclasses
from experiments.demo import experiment

variants = {variants}
"""
WIDE = "dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, width=128))"
VALUES = [
    ("learning_rate 1e-3 3e-3", "learning-rate=1e-3 learning-rate=3e-3", "training.learning_rate"),
    (
        "attention.windows '0 8' 0",
        "attention.windows=0_8 attention.windows=0",
        "model.attention.windows",
    ),
    ("loop.scan True False", "loop.scan=True loop.scan=False", "model.loop.scan"),
    ("positions.scaling linear yarn", "linear yarn", "model.positions.scaling.method"),
    ("prompt 'a/b' 'a b'", "prompt=1 prompt=2", "prompt"),
    (f"prompt {'y' * 50} ''", "prompt=1 prompt=2", "prompt"),
]
"""Arguments of --vary, names of the variants, and path of the varied field."""


@pytest.fixture
def file(tmp_path):
    """A file that exports variants."""

    def write(variants):
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(variants=variants))
        return path

    return write


def read(line, name="demo"):
    return read_line(shlex.split(line), *load_variants(name))[0]


def test_a_grid_has_every_combination_the_reference_first():
    line = "--vary norm layer rms --vary positions learned rotary --width 16 --run here"
    variants, options = read_line(shlex.split(line), *load_variants("demo"))
    assert list(variants) == ["layer learned", "layer rotary", "rms learned", "rms rotary"]
    models = [experiment.model for experiment in variants.values()]
    combinations = [(model.norm, model.positions, model.width) for model in models]
    assert combinations[0] == (Norm("layer"), Learned(), 16)
    assert combinations[-1] == (Norm("rms"), Rotary(), 16)
    assert str(options.run) == "here"


@pytest.mark.parametrize(("line", "names", "path"), VALUES)
def test_varied_values_are_read_as_options_and_label_variants(line, names, path):
    variants = read(f"--vary {line}")
    assert list(variants) == names.split()
    for word, experiment in zip(shlex.split(line)[1:], variants.values(), strict=True):
        value = operator.attrgetter(path)(experiment)
        value = " ".join(map(str, value)) if isinstance(value, tuple) else value
        assert value == (word if isinstance(value, str) else ast.literal_eval(word))


def test_an_option_is_varied_once():
    for line in (
        "--vary width 8 16 --vary width 32 64",
        "--vary width 8 16 --vary model.width 4 2",
    ):
        assert "varied twice" in complaint(read, line)
    experiment, _ = load_variants("demo")
    space = [("learning-rate", "1e-4..1e-1")]
    grid = [("training.learning_rate", "1e-3", "1e-2")]
    read_space = partial(read_search_space, experiment, space, "--tune-each", grid)
    assert "sets this option already" in complaint(read_space)


def test_a_base_may_be_invalid_if_its_variants_are_valid():
    variants = read("--width 10 --attention.head-dim 4 --vary num-heads 5 3")
    assert [e.model.num_heads for e in variants.values()] == [5, 3]


def test_options_apply_to_each_variant_of_a_file(file):
    path = file(f"{{'plain': experiment, 'twice as wide': {WIDE}}}")
    experiments = read("--norm rms --seeds 3", path).values()
    fields = [(e.model.width, e.model.norm, e.training.seeds) for e in experiments]
    assert fields == [(64, Norm("rms"), 3), (128, Norm("rms"), 3)]
    grid = read("--vary norm layer rms", path)
    assert list(grid) == ["plain layer", "plain rms", "twice as wide layer", "twice as wide rms"]
    assert grid["twice as wide rms"].model.width == 128


def test_only_selects_variants_by_name(file):
    path = file(f"{{'a': experiment, 'b': {WIDE}, 'c c': experiment}}")
    assert list(read("--only 'c c' --only a", path)) == ["a", "c c"]


@pytest.mark.parametrize(
    ("variants", "sentence"),
    [
        ("[experiment]", "must be a dictionary of two or more experiments"),
        ("{'a': experiment}", "must be a dictionary of two or more experiments"),
        ("{'a': experiment, 'b': 3}", "the variant 'b' in .*mine.py is a int"),
        ("{'a': experiment, '': experiment}", "name '' can"),
        ("{'a': experiment, 3: experiment}", "name 3 can"),
        ("{'a': experiment, 'b/c': experiment}", "name 'b/c' can"),
        ("{'a': experiment, '..': experiment}", r"name '\.\.' can"),
        ("{'a': experiment, 'b\\n': experiment}", r"name 'b\\n' can"),
        ("{'a': experiment, 'b' * 300: experiment}", "name 'bbb"),
        (
            "{'a': experiment, 'b': __import__('tlite').experiment.TranslatorExperiment('b')}",
            "is a TranslatorExperiment, but `experiment` a GeneratorExperiment",
        ),
    ],
)
def test_invalid_variants_of_a_file_are_an_error(file, variants, sentence):
    with pytest.raises(UserError, match=sentence) as message:
        load_variants(file(variants))
    assert "\n" not in str(message.value)


def test_help_lists_variants(works, file):
    file(f"{{'plain': experiment, 'wide': {WIDE}}}")
    message = works("train mine.py --help")
    assert "Its variants: plain, wide." in message
    assert "--only" in message
    assert "--vary" in works("train --help")


def test_a_study_has_no_options_of_a_run(fails, tmp_path):
    (tmp_path / "study.json").write_text(json.dumps({"name": "x", "variants": []}))
    assert "are for a run: name one in the study" in fails(f"train --resume {tmp_path} --steps 9")
