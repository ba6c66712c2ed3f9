"""A user's own functions: described by file, name and SHA-256; run only from files that are named.

Each file writes a line into `ran` when it is run, so that what must not run can be seen.
"""

import hashlib
import importlib
import json
import os
import py_compile
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.helpers.complaints import complaint
from tlite import user_code
from tlite.config import from_dict, to_dict
from tlite.errors import UserError, command
from tlite.experiment import Experiment
from tlite.models import FeedForward, GeneratorConfig
from tlite.runs.experiment_files import load_experiment
from tlite.user_code import describe_code, find_code, name_files, run_file

MINE = """
import dataclasses
import jax
import jax.numpy as jnp
from tlite import functional as F
from tlite.data import BuiltinText
from tlite.experiment import GeneratorExperiment
from tlite.models import Block, FeedForward, GeneratorConfig, apply_layer, init_layer

with open({ran!r}, "a") as file:
    file.write("mine\\n")

def squared(x):
    return jax.nn.relu(x) ** 2

def tempered(params, query, key, value, mask=None):
    return F.scaled_dot_product_attention(query * params.temperature, key, value, mask)

tempered.init_params = lambda rng, config: {{"temperature": jnp.ones(())}}

@jax.jit
def compiled(x):
    return 3 * x

@dataclasses.dataclass(frozen=True)
class Scaled:
    layer: FeedForward
    by: float = 2.0

    def init(self, rng, config):
        return init_layer(self.layer, rng, config)

    def __call__(self, params, x, inputs, *, config):
        return apply_layer(self.layer, params, self.by * x, inputs, config=config)

number = 7
again = squared
inner = FeedForward(activation=squared)
model = GeneratorConfig(width=8, attention=tempered, feed_forward=inner)
layered = GeneratorConfig(width=8, feed_forward=Scaled(inner, 3.0))
pattern = GeneratorConfig(width=8, block=(Block(attention=Scaled(inner, 3.0)), Block()))
experiment = GeneratorExperiment("mine", BuiltinText(), model)
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Forget the files that were named and run, as a new process; also a function that does so."""

    def call():
        monkeypatch.setattr(user_code, "_named", [])
        monkeypatch.setattr(user_code, "_programs", {})

    call()
    return call


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
    sha256 = {mine.name: hashlib.sha256(mine.read_bytes()).hexdigest()}
    return {"kind": kind, "file": mine.name, "name": name, "sha256": sha256}


def through_json(value):
    return json.loads(json.dumps(to_dict(value)))


# What is kept of a function


@pytest.mark.parametrize("name", ["squared", "tempered", "compiled", "Scaled"])
def test_a_function_is_kept_as_its_file_its_name_and_its_file_s_sha256(mine, name):
    """As it was when the file ran, whatever becomes of the file."""
    function = getattr(run_file(mine), name)
    expected = record(mine, name, "class" if name == "Scaled" else "function")
    assert user_code.name_of(function) == f"{name} of mine.py"
    mine.write_text("another = 1\n")
    assert describe_code(function) == expected


REFUSED = {
    "given = lambda x: x": "<lambda>",
    "def f():\n  def g(x): return x\n  return g\ngiven = f()": "f.<locals>.g",
    "def f(x): return x\ngiven = f\ndef f(x): return 2 * x": "f",
    "import jax\ndef f(x): return x\ngiven = jax.vmap(f)": "f",
    "class A:\n  __hash__ = None\n  def __call__(self, x): return x\ngiven = A()": "mine.py",
    "given = print": "print",
    "import math\ngiven = math.sin": "sin",
    "import jax\ngiven = jax.nn.silu": "silu",
    "import functools, math\ngiven = functools.partial(math.sin)": "functools",
    "from tlite import functional\ngiven = functional.linear": "linear",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_function_that_no_config_can_name_is_refused(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    given = run_file(tmp_path / "mine.py").given
    for describe, value in ((describe_code, given), (to_dict, FeedForward(activation=given))):
        with pytest.raises(UserError, match=re.escape(REFUSED[text])):
            describe(value)


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
    name_files([mine])
    assert times_run(mine) == 1  # to name a file does not run it, nor what it is described by
    model = from_dict(Experiment, values).model
    assert times_run(mine) == 2  # once, for both functions
    activation = model.feed_forward.activation
    assert activation(jnp.array(-3.0)) == 0
    assert activation(jnp.array(3.0)) == 9
    assert model.attention.function.init_params(None, model) == {"temperature": 1}
    assert through_json(from_dict(Experiment, values)) == values


def test_a_layer_is_read_back_from_the_file_that_is_named(mine, forget):
    program = run_file(mine)
    models = program.layered, program.pattern
    values, pattern = map(through_json, models)
    assert (from_dict(GeneratorConfig, values), from_dict(GeneratorConfig, pattern)) == models
    forget()
    sentence = complaint(from_dict, GeneratorConfig, values)
    assert sentence.startswith("the run uses Scaled of mine.py: name that file, --code mine.py ")
    name_files([mine])
    model, block = (from_dict(GeneratorConfig, v) for v in (values, pattern))
    for layer in (model.feed_forward, block.block[0].attention):
        assert (type(layer).__name__, layer.by) == ("Scaled", 3.0)
        assert layer.layer.activation(jnp.array(3.0)) == 9
    assert through_json(model) == values
    values["feed_forward"]["fields"]["by"] = "x"
    with pytest.raises(ValueError, match=r"^feed_forward: by: expected float, not 'x'"):
        from_dict(GeneratorConfig, values)


def test_a_file_that_was_moved_and_renamed_is_found_by_its_content(mine, forget, tmp_path):
    values = through_json(load_experiment(mine))
    forget()
    name_files([mine.rename(tmp_path / "renamed.py")])
    experiment = from_dict(Experiment, values)
    again = to_dict(experiment)["model"]["attention"]["function"]
    digests = {"renamed.py": values["model"]["attention"]["function"]["sha256"]["mine.py"]}
    assert (again["file"], again["sha256"]) == ("renamed.py", digests)
    assert from_dict(Experiment, through_json(experiment)) == experiment


# Files that the file imports

HELPER = "from sizes import SCALE\n\ndef scaled(x):\n    return SCALE * x\n"


def test_a_command_to_paste_names_the_file_that_a_run_or_study_needs(mine, tmp_path):
    values = through_json(load_experiment(mine))
    for name in ("config.json", "study.json"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        assert "--code" not in command("train", "--resume", folder)
        (folder / name).write_text(json.dumps({"variants": [values]}))
        assert command("train", "--resume", folder).endswith(f" {folder} --code {mine}")


@pytest.fixture
def program(mine, tmp_path):
    """An experiment that uses a function of a neighbour, which imports a number of another one."""
    (tmp_path / "sizes.py").write_text("SCALE = 2\n")
    (tmp_path / "helper.py").write_text(HELPER)
    text = mine.read_text().replace("activation=squared", "activation=helper.scaled")
    mine.write_text("import helper\n" + text)
    return mine


def activation(experiment):
    return experiment.model.feed_forward.activation(jnp.array(3.0))


def test_digests_cover_every_imported_file(program, forget):
    experiment = load_experiment(program)
    values = through_json(experiment)
    described = values["model"]["feed_forward"]["activation"]
    assert (described["file"], described["name"]) == ("mine.py", "helper.scaled")
    files = [program.with_name(name) for name in ("mine.py", "helper.py", "sizes.py")]
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert described["sha256"] == values["model"]["attention"]["function"]["sha256"] == expected
    assert from_dict(Experiment, values) == experiment
    forget()
    name_files([program])  # enough for the functions of its neighbours
    again = from_dict(Experiment, values)
    assert activation(again) == 6
    assert through_json(again) == values


CHANGES = [("mine.py", "\n"), ("sizes.py", ""), ("sizes.py", None), ("helper.py", "# another\n")]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_changed_file_is_named_and_nothing_runs(program, forget, name, change):
    values = through_json(load_experiment(program))
    path = program.with_name(name)
    forget()
    name_files([program])
    path.unlink() if change is None else path.write_text(change)
    with pytest.raises(UserError, match=rf"/{name} has changed"):
        from_dict(Experiment, values)
    assert times_run(program) == 1


def test_a_neighbour_that_is_new_since_the_run_is_named(mine, forget, monkeypatch):
    """It takes the place of a library's module."""
    library = mine.parent / "site-packages"
    for folder in (library, mine.parent):
        folder.mkdir(exist_ok=True)
        (library / "sizes.py").write_text("SCALE = 2\n")
    monkeypatch.syspath_prepend(library)
    mine.write_text("from sizes import SCALE\n" + mine.read_text())
    values = through_json(load_experiment(mine))
    assert values["model"]["attention"]["function"]["sha256"].keys() == {"mine.py"}
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(library)])
    monkeypatch.delitem(sys.modules, "sizes")
    (mine.parent / "sizes.py").write_text("SCALE = 3\n")
    forget()
    name_files([mine])
    with pytest.raises(UserError, match=r"/sizes\.py has changed"):
        from_dict(Experiment, values)


def test_a_file_that_no_statement_imports_is_an_error(mine):
    """Its digest would be in no record."""
    (mine.parent / "helper.py").write_text("")
    mine.write_text("import importlib\nimportlib.import_module('.helper', __package__)\n")
    with pytest.raises(UserError, match=r"mine\.py, line 2: .*helper\.py"):
        run_file(mine)


def test_the_digest_is_of_the_source_that_ran(program, forget):
    """Also where a neighbour is edited before the experiment is described."""
    module = run_file(program)
    (program.parent / "sizes.py").write_text("SCALE = 9\n")
    values = through_json(module.experiment)
    assert activation(module.experiment) == 6
    assert activation(load_experiment(program)) == 27
    forget()
    name_files([program])
    with pytest.raises(UserError, match=r"/sizes\.py has changed"):
        from_dict(Experiment, values)


def test_an_import_inside_a_function_finds_its_own_neighbour(tmp_path):
    modules = []
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sizes.py").write_text(f"SCALE = {number}\n")
        file = tmp_path / folder / "late.py"
        file.write_text("def late():\n    import sizes\n    return sizes.SCALE\n")
        modules.append(run_file(file))
    assert [module.late() for module in modules] == [0, 1]
    assert describe_code(modules[0].late)["sha256"].keys() == {"late.py", "sizes.py"}


def test_a_file_in_a_package_imports_its_siblings(tmp_path):
    for name, text in {
        "__init__.py": "",
        "sizes.py": "SCALE = 2\n",
        "deep/__init__.py": "from . import inner\n",
        "deep/inner.py": "from ..sizes import SCALE as AGAIN\n",
        "mine.py": "from pack.deep.inner import AGAIN\nfrom .sizes import SCALE\n"
        "import pack.deep as deep\ndef f(x):\n    return x\n",
    }.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    module = run_file(tmp_path / "pack" / "mine.py")
    assert (module.AGAIN, module.SCALE, module.deep.inner.AGAIN) == (2, 2, 2)
    others = "__init__.py", "sizes.py", "deep/__init__.py", "deep/inner.py"
    files = {"mine.py", *(f"pack/{name}" for name in others)}
    assert describe_code(module.f)["sha256"].keys() == files


def test_a_module_that_python_imported_is_described_with_its_imports(program, monkeypatch, forget):
    monkeypatch.syspath_prepend(program.parent)
    try:
        import mine as imported  # ty: ignore

        values = through_json(imported.experiment)
        described = values["model"]["feed_forward"]["activation"]
        assert (described["file"], described["name"]) == ("helper.py", "scaled")
        assert described["sha256"].keys() == {"helper.py", "sizes.py"}
        ran = through_json(load_experiment(program))
        forget()
        describe_code(imported.squared)  # its program knows no helper.scaled
        name_files([program, program.with_name("helper.py")])
        assert activation(from_dict(Experiment, values)) == 6
        assert activation(from_dict(Experiment, ran)) == 6
    finally:
        for name in ("mine", "helper", "sizes"):
            sys.modules.pop(name, None)


def test_a_package_of_which_a_function_is_described_still_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "described").mkdir()
    (tmp_path / "described" / "__init__.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "described" / "late.py").write_text("")
    package = importlib.import_module("described")
    before = describe_code(package.f)
    importlib.import_module("described.late")
    assert describe_code(package.f) == before


# What is not run


def test_a_file_that_is_not_named_is_not_run(mine, forget, tmp_path, monkeypatch):
    values = through_json(load_experiment(mine))
    forget()
    monkeypatch.chdir(mine.parent)  # where it lies, beside what Python imports
    other = tmp_path / "other.py"
    other.write_text(mine.read_text() + "# another\n")
    for named in ([], [other]):
        name_files(named)
        sentence = complaint(from_dict, Experiment, values)
        assert "the run uses tempered of mine.py: name that file, --code mine.py" in sentence
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
    name_files([mine])
    assert from_dict(Experiment, values).model.feed_forward.activation(jnp.array(3.0)) == 9
    Path(compiled).unlink()
    forget()
    run_file(mine)
    assert not Path(compiled).exists()


def test_what_is_no_file_can_not_be_named():
    told = "there is no file nowhere.py to take code from"
    assert complaint(name_files, [Path("nowhere.py")]) == told


@pytest.mark.parametrize("name", ["gone", "number", "__builtins__", "model.attention", "Scaled"])
def test_a_name_that_is_no_function_of_the_file_is_told(mine, name):
    name_files([mine])
    assert complaint(find_code, record(mine, name)) == f"there is no function {name} in mine.py"
    told = "there is no class squared in mine.py"
    assert complaint(find_code, record(mine, "squared", "class")) == told


def test_a_library_s_function_in_the_file_is_not_handed_out(mine):
    mine.write_text("from os import system\nfrom jax.nn import relu\nfrom posixpath import join\n")
    name_files([mine])
    for name in ("system", "relu", "join"):
        assert complaint(find_code, record(mine, name))


# What is no such description

RECORD = {"kind": "function", "file": "mine.py", "name": "f", "sha256": {"mine.py": "0" * 64}}


@pytest.mark.parametrize(
    "record",
    [None, 3, "mine.py", ["mine.py", "f"], {}, *({**RECORD, key: None} for key in RECORD)]
    + [{**RECORD, "sha256": digests} for digests in ({}, {"mine.py": 1}, {"other.py": "0"})],
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
