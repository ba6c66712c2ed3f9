"""A user's own functions: described by file, name and SHA-256; run only from files that are named.

Each file writes a line into `ran` when it is run, so that what must not run can be seen.
"""

import hashlib
import json
import os
import py_compile
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.helpers.complaints import complaint
from tlite import config
from tlite.cli.experiment_files import load_experiment
from tlite.config import find_code, from_dict, run_file, to_dict
from tlite.experiment import Experiment
from tlite.models import FeedForward, GeneratorConfig

MINE = """
import dataclasses
import jax
import jax.numpy as jnp
from tlite import functional as F
from tlite.data import BuiltinText
from tlite.experiment import GeneratorExperiment
from tlite.models import Attention, FeedForward, GeneratorConfig, Layer

with open({ran!r}, "a") as file:
    file.write("mine\\n")

def squared(x):
    return jax.nn.relu(x) ** 2

def tempered(own, query, key, value, mask=None):
    return F.scaled_dot_product_attention(query * own.temperature, key, value, mask)

tempered.parameters = lambda config, rng: {{"temperature": jnp.ones(())}}

@jax.jit
def compiled(x):
    return 3 * x

@dataclasses.dataclass(frozen=True)
class Scaled(Layer):
    layer: FeedForward
    by: float = 2.0

    def init(self, rng, config):
        return self.layer.init(rng, config)

    def __call__(self, params, x, look):
        return self.layer(params, self.by * x, look)

number = 7
again = squared
inner = FeedForward(activation=squared)
model = GeneratorConfig(width=8, attention=tempered, feed_forward=inner)
of_class = GeneratorConfig(width=8, feed_forward=Scaled(inner, 3.0))
experiment = GeneratorExperiment("mine", BuiltinText(), model)
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Forgets what was named and run: as another process, whenever it is called."""
    path, modules = list(sys.path), dict(sys.modules)

    def call():
        monkeypatch.setattr(config, "_named", [])
        monkeypatch.setattr(config, "_modules", {})
        for name in sys.modules.keys() - modules.keys():
            if name.startswith("neighbour"):
                del sys.modules[name]

    call()
    yield call
    call()
    sys.path[:] = path


@pytest.fixture
def mine(tmp_path):
    """A file with functions."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(ran=str(tmp_path / "ran")))
    return path


def times_run(mine):
    return len(mine.with_name("ran").read_text().splitlines())


def record(mine, name, kind="function"):
    """What config.json says of it."""
    sha256 = hashlib.sha256(mine.read_bytes()).hexdigest()
    return {"kind": kind, "file": mine.name, "name": name, "sha256": sha256}


def through_json(value):
    return json.loads(json.dumps(to_dict(value)))


# What is kept of a function


@pytest.mark.parametrize("name", ["squared", "tempered", "compiled", "Scaled"])
def test_a_function_is_kept_as_its_file_its_name_and_its_file_s_sha256(mine, name):
    """As it was when the file ran, whatever becomes of the file."""
    function = getattr(run_file(mine), name)
    expected = record(mine, name, "class" if name == "Scaled" else "function")
    assert config.name_of(function) == f"{name} of mine.py"
    mine.write_text("another = 1\n")
    assert config.describe_code(function) == expected


REFUSED = {
    "lambda": ("given = lambda x: x", "<lambda> is not on the top level of mine.py"),
    "nested": ("def f():\n  def g(x): return x\n  return g\ngiven = f()", "f.<locals>.g is not on"),
    "replaced": ("def f(x): return x\ngiven = f\ndef f(x): return 2 * x", "f is not on the top"),
    "wrapped": ("import jax\ndef f(x): return x\ngiven = jax.vmap(f)", "f is not on the top"),
    "callable": (
        "class A:\n  __hash__ = None\n  def __call__(self, x): return x\ngiven = A()",
        "is not on the top level of mine.py",
    ),
    "built in": ("given = print", "print is not a function in a file"),
    "of C": ("import math\ngiven = math.sin", "sin is not a function in a file"),
    "of a library": ("import jax\ngiven = jax.nn.silu", "silu is not yours: write a function that"),
    "of Python": ("import functools, math\ngiven = functools.partial(math.sin)", "is not yours"),
    "of tlite": ("from tlite import functional\ngiven = functional.linear", "linear is not yours"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_could_not_be_found_again_is_refused(tmp_path, kind):
    text, sentence = REFUSED[kind]
    (tmp_path / "mine.py").write_text(text)
    given = run_file(tmp_path / "mine.py").given
    assert sentence in complaint(config.describe_code, given)
    assert sentence in complaint(to_dict, FeedForward(activation=given))


@pytest.mark.parametrize("line", ["lambda x: x", "jax.nn.relu"])
def test_an_experiment_with_what_can_not_be_kept_is_told_when_it_is_loaded(mine, line):
    mine.write_text(mine.read_text().replace("activation=squared", f"activation={line}"))
    assert complaint(load_experiment, mine)


# From JSON, in another process


def test_in_another_process_functions_come_from_the_file_that_is_named(mine, forget):
    experiment = load_experiment(mine)
    values = through_json(experiment)
    assert from_dict(Experiment, values) == experiment
    forget()
    config.name_files([mine])
    assert times_run(mine) == 1  # to name a file does not run it, nor what it is described by
    model = from_dict(Experiment, values).model
    assert times_run(mine) == 2  # once, for both functions
    activation = model.feed_forward.activation
    assert activation(jnp.array(-3.0)) == 0
    assert activation(jnp.array(3.0)) == 9
    assert model.attention.function.parameters(model, None) == {"temperature": 1}
    assert through_json(from_dict(Experiment, values)) == values


def test_a_part_of_one_s_own_comes_from_the_file_that_is_named(mine, forget):
    model = run_file(mine).of_class
    values = through_json(model)
    assert from_dict(GeneratorConfig, values) == model
    forget()
    sentence = complaint(from_dict, GeneratorConfig, values)
    assert sentence.startswith("the run uses Scaled of mine.py: name that file, --code mine.py ")
    config.name_files([mine])
    again = from_dict(GeneratorConfig, values).feed_forward
    assert (type(again).__name__, again.by) == ("Scaled", 3.0)
    assert again.layer.activation(jnp.array(3.0)) == 9
    assert through_json(from_dict(GeneratorConfig, values)) == values
    values["feed_forward"]["fields"]["by"] = "x"
    with pytest.raises(ValueError, match=r"^feed_forward: by: expected float, not 'x'"):
        from_dict(GeneratorConfig, values)


def test_a_file_that_was_moved_and_renamed_is_found_by_its_content(mine, forget, tmp_path):
    values = through_json(load_experiment(mine))
    forget()
    config.name_files([mine.rename(tmp_path / "renamed.py")])
    experiment = from_dict(Experiment, values)
    again = to_dict(experiment)["model"]["attention"]["function"]
    assert again == values["model"]["attention"]["function"] | {"file": "renamed.py"}
    assert from_dict(Experiment, through_json(experiment)) == experiment


def test_a_function_of_a_neighbour_needs_the_neighbour_s_file(mine, forget, tmp_path):
    neighbour = tmp_path / "neighbour.py"
    neighbour.write_text("def cubed(x):\n    return x ** 3\n")
    text = mine.read_text().replace("activation=squared", "activation=neighbour.cubed")
    mine.write_text("import neighbour\n" + text)
    experiment = load_experiment(mine)
    values = through_json(experiment)
    assert values["model"]["feed_forward"]["activation"]["file"] == "neighbour.py"
    assert from_dict(Experiment, values) == experiment
    forget()
    config.name_files([mine])
    assert "cubed of neighbour.py: name that file" in complaint(from_dict, Experiment, values)
    config.name_files([neighbour])
    assert from_dict(Experiment, values).model.feed_forward.activation(jnp.array(2.0)) == 8


# What is not run


def test_a_file_that_is_not_named_is_not_run(mine, forget, tmp_path, monkeypatch):
    values = through_json(load_experiment(mine))
    forget()
    monkeypatch.chdir(mine.parent)  # where it lies, beside what Python imports
    other = tmp_path / "other.py"
    other.write_text(mine.read_text() + "# another\n")
    for named in ([], [other]):
        config.name_files(named)
        sentence = complaint(from_dict, Experiment, values)
        assert "the run uses tempered of mine.py: name that file, --code mine.py" in sentence
    assert times_run(mine) == 1


@pytest.mark.parametrize("named_before", [False, True])
def test_a_file_that_has_changed_is_not_run(mine, forget, named_before):
    values = through_json(load_experiment(mine))
    forget()
    config.name_files([mine] * named_before)
    mine.write_text(mine.read_text() + "\n")
    config.name_files([mine])
    sentence = complaint(from_dict, Experiment, values)
    assert sentence == f"{mine} has changed since the run was made: it is not run"
    assert times_run(mine) == 1


def test_the_text_of_a_file_is_run_and_nothing_compiled_beside_it(mine, forget):
    """A .pyc counts as the file's where date and size agree: neither is a proof."""
    values = through_json(load_experiment(mine))
    forget()
    text, date = mine.read_text(), mine.stat().st_mtime
    mine.write_text(text.replace("** 2", "** 5"))
    os.utime(mine, (date, date))
    compiled = py_compile.compile(str(mine), doraise=True)
    mine.write_text(text)
    os.utime(mine, (date, date))
    config.name_files([mine])
    assert from_dict(Experiment, values).model.feed_forward.activation(jnp.array(3.0)) == 9
    Path(compiled).unlink()
    forget()
    run_file(mine)
    assert not Path(compiled).exists()


def test_what_is_no_file_can_not_be_named():
    told = "there is no file nowhere.py to take code from"
    assert complaint(config.name_files, [Path("nowhere.py")]) == told


@pytest.mark.parametrize("name", ["gone", "number", "__builtins__", "model.attention", "Scaled"])
def test_a_name_that_is_no_function_of_the_file_is_told(mine, name):
    config.name_files([mine])
    assert complaint(find_code, record(mine, name)) == f"there is no function {name} in mine.py"
    told = "there is no class squared in mine.py"
    assert complaint(find_code, record(mine, "squared", "class")) == told


def test_a_library_s_function_in_the_file_is_not_handed_out(mine):
    mine.write_text("from os import system\nfrom jax.nn import relu\nfrom posixpath import join\n")
    config.name_files([mine])
    for name in ("system", "relu", "join"):
        assert complaint(find_code, record(mine, name))


# What is no such description

RECORD = {"kind": "function", "file": "mine.py", "name": "f", "sha256": "0" * 64}


@pytest.mark.parametrize(
    "record",
    [None, 3, "mine.py", ["mine.py", "f"], {}, *({**RECORD, key: None} for key in RECORD)],
    ids=str,
)
def test_a_record_that_is_none_is_a_value_error_of_one_line(record):
    with pytest.raises(ValueError, match="expected a function's file, name and SHA-256"):
        find_code(record)
    values = to_dict(GeneratorConfig())
    values["feed_forward"] |= {"activation": record}
    with pytest.raises(ValueError, match=r"^feed_forward: activation: expected .*, not "):
        from_dict(GeneratorConfig, values)
    with pytest.raises(ValueError, match=r"^norm.* .*, not ") as caught:
        from_dict(GeneratorConfig, to_dict(GeneratorConfig()) | {"norm": record})
    assert len(str(caught.value)) < 300
