"""Fields of an experiment as options: words, values, components by dotted names, and help."""

import dataclasses
import itertools
import re
import shlex

import pytest

from tests.helpers.lines import read_line
from tlite import experiment as E
from tlite import models as M
from tlite import override
from tlite.data import TextFile
from tlite.runs.experiment_files import load_experiment

ROTARY = M.GeneratorConfig(
    positions=M.Rotary(base=5.0, scaling=None),
    attention=M.Attention(num_kv_heads=2),
    norm=M.Norm(epsilon=1.0),
)


@dataclasses.dataclass(frozen=True)
class Mine(TextFile):
    """Data of a user's, with a field that the model has, too."""

    context: str = ""


EXPERIMENTS = {
    "generator": E.GeneratorExperiment("generator"),
    "rotary": E.GeneratorExperiment("rotary", model=ROTARY),
    "classifier": E.ClassifierExperiment(
        "classifier", model=M.ClassifierConfig(pool=M.Pool("mean"))
    ),
    "translator": E.TranslatorExperiment("translator"),
    "odd": E.GeneratorExperiment("odd", model=M.GeneratorConfig(width=12, num_heads=4)),
}
READ = {
    "generator --positions split_sinusoidal --norm zero_centred_rms": {
        "positions": M.Sinusoidal(split=True),
        "norm": M.Norm("rms", offset=1.0),
    },
    "generator --positions.base=7 --positions=rotary": {"positions": M.Rotary(base=7.0)},
    "rotary --model.norm.method rms": {"norm": M.Norm("rms", epsilon=1.0)},
    "rotary --attention mixed": {"attention": M.Attention("mixed", num_kv_heads=2)},
    "generator --block pre_norm --block.pre-norm false": {},
    "generator --block pre_norm --block.no-pre-norm": {},
    "generator --attention.windows 0 8 --width 64": {
        "attention": M.Attention(windows=(0, 8)),
        "width": 64,
    },
    # Invalid before all options are read.
    "odd --positions rotary --width 16": {"positions": M.Rotary(), "width": 16},
    # A component that is None.
    "generator --positions.scaling yarn --positions.scaling.factor 8 --positions rotary": {
        "positions": M.Rotary(scaling=M.RotaryScaling("yarn", factor=8.0))
    },
    "rotary --positions.scaling yarn --positions.scaling none": {},
    "classifier --pool.projection tanh --pool.projection.no-norm --wide.bigrams 60": {
        "pool": M.Pool("mean", M.Projection("tanh", norm=False)),
        "wide": M.Wide(bigrams=60),
    },
    "translator --head.embeddings shared --special_tokens.pad_id 5 --norm.bias True": {
        "head": M.TranslatorHead("shared"),
        "special_tokens": M.SpecialTokens(pad_id=5),
        "norm": M.Norm(bias=True),
    },
}


def test_none_undoes_a_pattern():
    experiment = override(E.GeneratorExperiment("x"), {"training.trainable": "head.*"})
    assert read_line(["--trainable", "none"], experiment)[0][""].training.trainable is None


def read(line):
    name, *words = shlex.split(line)
    return read_line(words, EXPERIMENTS[name])[0][""].model


@pytest.mark.parametrize("line", READ)
def test_options_change_the_fields_that_they_name(line):
    model = EXPERIMENTS[line.split()[0]].model
    assert read(line) == dataclasses.replace(model, **READ[line])


@pytest.mark.parametrize("name", ["demo", "reviews", "my_pairs"])
def test_defaults_of_components_in_help_can_be_typed(works, name):
    options = works(f"train {name} --help").replace("│", " ").split("\n  --")
    lists = [option for option in options if re.match(r"\S+ +\w+\|\w", option)]
    assert len(lists) >= 4
    words = []
    for option in lists:
        words += [f"--{option.split()[0]}", re.search(r"\(default:\s+(\w+)\)", option)[1]]
    read_line(words, load_experiment(name))


@pytest.mark.parametrize("line", ["train my_pairs --help", "prepare --help"])
def test_help_breaks_lines_only_where_the_next_word_does_not_fit(works, line):
    rows = [re.sub("^[│|]|[│|]$", " ", row) for row in works(line).splitlines()]
    width, checked = max(len(row.rstrip()) for row in rows if row[:6].isspace()), 0
    for row, following in itertools.pairwise(rows):
        indent = re.match(" *", following)[0]
        if len(indent) > 5 and re.match(rf"{indent}\w", row) and following.strip():
            assert len(row.rstrip()) + 1 + len(following.split()[0]) > width, following
            checked += 1
    assert checked >= 5


def test_help_lists_fields_of_the_components_of_the_experiment(works):
    shown = " ".join(works("train demo --help").split())
    for words in (
        "--positions learned|sinusoidal|",
        "--positions rotary chooses a component",
        "--positions.base FLOAT",
        "--feed-forward.activation {relu,",
        "--bias, --no-bias",
        "(default: rotary)",
    ):
        assert words in shown
    assert "--positions.offset" not in shown


def test_options_of_data_that_are_ambiguous_have_a_prefix():
    experiment = E.GeneratorExperiment("x", data=Mine())
    words = ["--context", "32", "--data.context", "here", "--data.validation-fraction", "0.5"]
    experiment = read_line(words, experiment)[0][""]
    assert experiment.model.context == 32
    assert experiment.data == Mine(context="here", validation_fraction=0.5)
