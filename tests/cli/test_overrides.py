"""Parts of a model on the command line: words, and numbers with a dot."""

import itertools
import re
import shlex

import pytest

from tests.helpers.lines import read_line
from tlite.data import TinyShakespeare
from tlite.errors import UserError
from tlite.experiment import (
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
    # A word chooses a part with its defaults, in any order with its numbers.
    "generator --positions rotary": {"positions": Rotary()},
    "generator --positions split_sinusoidal": {"positions": Sinusoidal(split=True)},
    "generator --positions rotary --positions.base 7": {"positions": Rotary(base=7.0)},
    "generator --positions.base=7 --positions=rotary": {"positions": Rotary(base=7.0)},
    "turned --positions rotary": {"positions": Rotary()},
    "turned --positions.local_base 7": {"positions": Rotary(5.0, local_base=7.0)},
    "turned --norm.method rms": {"norm": Norm("rms", epsilon=1.0)},
    "generator --norm zero_centred_rms": {"norm": Norm("rms", offset=1.0)},
    "generator --block pre_norm": PRE_NORM,
    "generator --block pre_norm --block.no-pre-norm": {},
    "generator --feed-forward default": {},
    # How attention is computed is one of its numbers.
    "turned --attention mixed": {"attention": Attention("mixed", num_kv_heads=2)},
    "generator --attention.windows 0 8 --width 64": {
        "attention": Attention(windows=(0, 8)),
        "width": 64,
    },
    "generator --loop.scan --loop.remat": {"loop": Loop(scan=True, remat=True)},
    # What makes no sense before all of the line is read.
    "odd --positions rotary --width 16": {"positions": Rotary(), "width": 16},
    # A part that there is none of so far.
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
    "--positions rotry": "invalid choice 'rotry' for argument '--positions'.*learned",
    "--positions.base 7": "Unrecognized options: --positions.base, 7",
    "--positons rotary": "Perhaps you meant: +--positions learned",
    "--pre-norm": "Perhaps you meant: +--block.pre-norm",
    "--positions rotary --positions.base x": "parsing --positions.base: .*'x'",
    "--positions rotary --positions.base -1": "^positions: base must be positive, not -1.0$",
    "--attention.num-kv-heads 3": r"^num_heads \(4\) must be a multiple of num_kv_heads \(3\)$",
    "--loop.scan --attention.windows 0 8": "^loop.scan needs identical blocks",
    "--norm-first": "Unrecognized options: --norm-first",
}


def read(line):
    name, *words = shlex.split(line)
    return read_line(name, words, EXPERIMENTS[name])[0][""].model


@pytest.mark.parametrize("line", READ)
def test_parts_and_their_numbers_are_read(line):
    model = EXPERIMENTS[line.split()[0]].model
    expected = {field: getattr(model, field) for field in vars(model)} | READ[line]
    assert read(line) == type(model)(**expected)


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told(line):
    with pytest.raises(UserError) as told:
        read(f"generator {line}")
    said = " ".join(str(told.value).translate(dict.fromkeys(map(ord, "─│"))).split())
    assert re.search(MISTAKES[line], said)


@pytest.mark.parametrize("name", ["demo", "reviews", "my_pairs"])
def test_defaults_of_components_in_help_can_be_typed(works, name):
    options = works(f"train {name} --help").replace("│", " ").split("\n  --")
    lists = [option for option in options if re.match(r"\S+ +\w+\|\w", option)]
    assert len(lists) >= 4
    words = []
    for option in lists:
        words += [f"--{option.split()[0]}", re.search(r"\(default:\s+(\w+)\)", option)[1]]
    read_line(name, words, load_experiment(name))


@pytest.mark.parametrize("line", ["train my_pairs --help", "prepare --help"])
def test_help_breaks_lines_only_where_the_next_word_does_not_fit(works, line):
    rows = [re.sub("^[│|]|[│|]$", " ", row) for row in works(line).splitlines()]
    width, checked = max(len(row.rstrip()) for row in rows if row[:6].isspace()), 0
    for row, following in itertools.pairwise(rows):
        indent = re.match(" *", following)[0]
        if len(indent) > 5 and re.match(rf"{indent}\w", row) and following.strip():
            assert len(row.rstrip()) + 1 + len(following.split()[0]) > width, following
            checked += 1
    assert checked > 5


def test_help_says_how_parts_are_chosen_and_has_the_numbers_of_those_that_are(works):
    told = " ".join(works("train demo --positions learned --help").split())
    for words in (
        "--positions learned|sinusoidal|",
        "--positions.base 7",
        "--positions.offset INT",
        "(default: learned)",
    ):
        assert words in told
    assert "--positions.base FLOAT" not in told


def test_of_options_of_one_name_those_of_the_data_begin_with_data():
    tuned = GeneratorExperiment("tuned", data=TinyShakespeare(), init_from=Pretrained("gpt2"))
    words = ["--folder", "bert", "--data.folder", "here", "--data.validation-fraction", "0.5"]
    read = read_line("tuned", words, tuned)[0][""]
    assert read.pretraining == Pretrained("bert")
    assert read.data == TinyShakespeare(folder="here", validation_fraction=0.5)
