"""Fields of an experiment as options: words, values, components by dotted names, and help."""

import dataclasses
import itertools
import re
import shlex

import pytest

from tests.helpers.lines import read_line
from tlite.data import TextFile, TinyShakespeare
from tlite.errors import UserError
from tlite.experiment import (
    BPE,
    ClassifierExperiment,
    GeneratorExperiment,
    Pretrained,
    TranslatorExperiment,
)
from tlite.models import (
    Attention,
    Block,
    ClassifierConfig,
    GeneratorConfig,
    Loop,
    Norm,
    Pool,
    Projection,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    SpecialTokens,
    TranslatorHead,
    Wide,
)
from tlite.runs.experiment_files import load_experiment

TURNED = GeneratorConfig(
    positions=Rotary(base=5.0, scaling=None),
    attention=Attention(num_kv_heads=2),
    norm=Norm(epsilon=1.0),
)


@dataclasses.dataclass(frozen=True)
class Mine(TextFile):
    """Data of a user's, with a field that the model has, too."""

    context: str = ""


EXPERIMENTS = {
    "generator": GeneratorExperiment("generator"),
    "turned": GeneratorExperiment("turned", model=TURNED),
    "classifier": ClassifierExperiment("classifier", model=ClassifierConfig(pool=Pool("mean"))),
    "translator": TranslatorExperiment("translator"),
    "odd": GeneratorExperiment("odd", model=GeneratorConfig(width=12, num_heads=4)),
}
PRE_NORM = {"block": Block(pre_norm=True)}
SCALED = {"positions": Rotary(scaling=RotaryScaling("yarn", factor=8.0))}
READ = {
    # A word chooses a component with its defaults, in any order with its fields.
    "generator --positions rotary": {"positions": Rotary()},
    "generator --positions split_sinusoidal": {"positions": Sinusoidal(split=True)},
    "generator --positions rotary --positions.base 7": {"positions": Rotary(base=7.0)},
    "generator --positions.base=7 --positions=rotary": {"positions": Rotary(base=7.0)},
    "turned --positions rotary": {"positions": Rotary()},
    "turned --positions.local_base 7": {"positions": Rotary(5.0, local_base=7.0)},
    "turned --model.norm.method rms": {"norm": Norm("rms", epsilon=1.0)},
    "generator --norm zero_centred_rms": {"norm": Norm("rms", offset=1.0)},
    "generator --block pre_norm": PRE_NORM,
    "generator --block pre_norm --block.no-pre-norm": {},
    "generator --feed-forward default": {},
    # A word of attention keeps its other fields.
    "turned --attention mixed": {"attention": Attention("mixed", num_kv_heads=2)},
    "generator --attention.windows 0 8 --width 64": {
        "attention": Attention(windows=(0, 8)),
        "width": 64,
    },
    "generator --loop.scan --loop.remat": {"loop": Loop(scan=True, remat=True)},
    # Invalid before all options are read.
    "odd --positions rotary --width 16": {"positions": Rotary(), "width": 16},
    # A component that is None.
    "turned --positions.scaling.method yarn --positions.scaling.factor 8": {
        "positions": Rotary(5.0, scaling=RotaryScaling("yarn", factor=8.0))
    },
    "generator --positions.scaling yarn --positions.scaling.factor 8 --positions rotary": SCALED,
    "generator --positions rotary --positions.scaling yarn --positions.scaling none": {
        "positions": Rotary()
    },
    "classifier --pool.projection tanh": {"pool": Pool("mean", Projection("tanh"))},
    "classifier --pool.projection tanh --pool.projection.no-norm --wide.bigrams 60": {
        "pool": Pool("mean", Projection("tanh", norm=False)),
        "wide": Wide(bigrams=60),
    },
    "translator --head.embeddings shared --special_tokens.pad_id 5 --norm.bias True": {
        "head": TranslatorHead("shared"),
        "special_tokens": SpecialTokens(pad_id=5),
        "norm": Norm(bias=True),
    },
}
MISTAKES = {
    "--positions rotry": "positions must be one of learned, .*, not 'rotry'",
    "--positions.base 7": "no field 'model.positions.base': Learned has offset",
    "--positions.offst 7": "no field .*: did you mean 'model.positions.offset'?",
    "--positons rotary": "unknown option --positons: did you mean --positions?",
    "--pre-norm": "unknown option --pre-norm: did you mean --block.pre-norm?",
    "--rnu x": "unknown option --rnu: did you mean --run?",
    "--width": "--width: expected int, not ''",
    "--width 8 9": "--width: expected int, not '8 9'",
    "--model.width eight": "--model.width: expected int, not 'eight'",
    "--precision half": "--precision: expected float32 or mixed or auto, not 'half'",
    "--training x": "--training: expected TrainingConfig, not 'x'",
    "64": "unexpected argument '64'",
    "--positions rotary --positions.base x": "--positions.base: expected float, not 'x'",
    "--positions rotary --positions.base -1": "positions: base must be positive, not -1.0$",
    "--attention.num-kv-heads 3": r"num_heads \(4\) must be a multiple of num_kv_heads \(3\)$",
    "--loop.scan --attention.windows 0 8": "loop.scan needs identical blocks",
    "--norm-first": "unknown option --norm-first",
}


def read(line):
    name, *words = shlex.split(line)
    return read_line(words, EXPERIMENTS[name])[0][""].model


@pytest.mark.parametrize("line", READ)
def test_options_change_the_fields_that_they_name(line):
    model = EXPERIMENTS[line.split()[0]].model
    assert read(line) == dataclasses.replace(model, **READ[line])


@pytest.mark.parametrize("line", MISTAKES)
def test_a_wrong_option_or_value_is_one_line(line):
    with pytest.raises(UserError, match=MISTAKES[line].replace("?", r"\?")) as error:
        read(f"generator {line}")
    assert "\n" not in str(error.value)


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
    experiment = GeneratorExperiment("x", data=Mine())
    words = ["--context", "32", "--data.context", "here", "--data.validation-fraction", "0.5"]
    experiment = read_line(words, experiment)[0][""]
    assert experiment.model.context == 32
    assert experiment.data == Mine(context="here", validation_fraction=0.5)


def test_a_word_creates_what_a_run_starts_from():
    tuned = GeneratorExperiment("tuned", data=TinyShakespeare())
    line = "--init-from gpt2 --folder here --tokenizer bpe:300"
    experiment = read_line(line.split(), tuned)[0][""]
    assert (experiment.init_from, experiment.data.folder) == (Pretrained("gpt2"), "here")
    assert experiment.tokenizer == BPE(300)
    line = "--init-from.folder bert --training.no-log-norms --training.log-norms True"
    assert read_line(line.split(), tuned)[0][""].init_from == Pretrained("bert")
