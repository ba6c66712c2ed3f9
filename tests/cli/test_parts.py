"""Parts of a model on the command line: words, numbers with a dot, the options of version 0.2.0."""

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
    Embedding,
    FeedForward,
    GeneratorConfig,
    Head,
    Learned,
    Loop,
    Norm,
    Pool,
    Projection,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    Symbols,
    TranslatorHead,
    Wide,
)

TURNED = GeneratorConfig(
    positions=Rotary(base=5.0, scaling=None),
    attention=Attention(key_heads=2),
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
    "turned --attention mixed": {"attention": Attention("mixed", key_heads=2)},
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
    "classifier --pool.projection tanh": {"pool": Pool("mean", Projection("tanh"))},
    # Version 0.2.0.
    "generator --norm_first --activation gelu --hidden-width 64 --gated --tied-head --no-bias": {
        **PRE_NORM,
        "bias": False,
        "feed_forward": FeedForward(64, "gelu", gated=True),
        "head": Head(tied=True),
    },
    "generator --norm-first --no-norm-first": {},
    "generator --zero-output": {
        "attention": Attention(zero_output=True),
        "feed_forward": FeedForward(zero_output=True),
    },
    "generator --hidden_width=64 --embedding-deviation=0.5": {
        "feed_forward": FeedForward(64),
        "embedding": Embedding(deviation=0.5),
    },
    "turned --rotary-base 7 --norm-bias True": {
        "positions": Rotary(7.0),
        "norm": Norm(epsilon=1.0, bias=True),
    },
    "generator --position-offset 2": {"positions": Learned(offset=2)},
    "classifier --aggregation first --projection tanh --word-dropout 0.2 --bigrams 60": {
        "pool": Pool("first", Projection("tanh", norm=False)),
        "embedding": Embedding(word_dropout=0.2),
        "wide": Wide(bigrams=60),
    },
    "classifier --projection tanh --projection-norm": {"pool": Pool("mean", Projection("tanh"))},
    "translator --hidden-dropout 0 --qkv-bias --embeddings shared --pad-id 3": {
        "feed_forward": FeedForward(),
        "attention": Attention(input_bias=True),
        "head": TranslatorHead("shared"),
        "symbols": Symbols(pad=3),
    },
}
MISTAKES = {
    "--positions rotry": "invalid choice 'rotry' for argument '--positions'.*learned",
    "--positions.base 7": "Unrecognized options: --positions.base, 7",
    "--positons rotary": "Perhaps you meant: +--positions learned",
    "--pre-norm": "Perhaps you meant: +--block.pre-norm",
    "--positions rotary --positions.base x": "parsing --positions.base: .*'x'",
    "--positions rotary --positions.base -1": "^positions: base must be positive, not -1.0$",
    "--key-heads 3": "^4 heads can't share 3 heads of keys$",
    "--scan --windows 0 8": "^scan needs blocks that are alike",
    "--convolution 3": "Unrecognized options: --convolution, 3",
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


def test_help_says_how_parts_are_chosen_and_has_the_numbers_of_those_that_are(works):
    told = " ".join(works("train demo --positions learned --help").split())
    for words in (
        "--positions learned|sinusoidal|",
        "--positions.base 7",
        "--positions.offset INT",
        "(default: Learned)",
    ):
        assert words in told
    assert "--positions.base FLOAT" not in told


def test_of_options_of_one_name_those_of_the_data_begin_with_data():
    tuned = GeneratorExperiment("tuned", data=TinyShakespeare(), pretraining=Pretrained("gpt2"))
    words = ["--folder", "bert", "--data.folder", "here", "--data.validation-fraction", "0.5"]
    read = read_line("tuned", words, tuned)[0][""]
    assert read.pretraining == Pretrained("bert")
    assert read.data == TinyShakespeare(folder="here", validation_fraction=0.5)
