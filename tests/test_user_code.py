"""User code: described by file, name and SHA-256; a run's copy is executed only with consent.

The file `mine.py` writes a line into `ran` when it is executed.
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
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.models import FeedForward, GeneratorConfig
from tlite.runs.experiment_files import load_experiment, load_variants
from tlite.text import CharTokenizer
from tlite.training.run_dir import create_run, open_run
from tlite.user_code import (
    allow_code,
    describe_code,
    exec_file,
    find_code,
    remember_code,
    write_code,
)

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
def forget(monkeypatch, tmp_path):
    """Return a function that forgets the executed files, as a new process does."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call():
        monkeypatch.setattr(user_code, "_programs", {})

    call()
    return call


@pytest.fixture
def code(tmp_path, forget):
    """Return a function that writes the code folder of a config, and then calls `forget`."""

    def write(values):
        write_code(tmp_path / "code", values)
        forget()
        return tmp_path / "code"

    return write


def read_trusted(folder, values, kind=Experiment):
    with allow_code(folder, trust=True):
        return from_dict(kind, values)


@pytest.fixture
def mine(tmp_path):
    """Write a file with functions and components."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(ran=str(tmp_path / "ran")))
    return path


def count_executions(mine):
    return len(mine.with_name("ran").read_text().splitlines())


def reference_to(mine, name, kind="function"):
    """Return the reference to a function in config.json."""
    sha256 = {mine.name: hashlib.sha256(mine.read_bytes()).hexdigest()}
    return {"kind": kind, "file": mine.name, "name": name, "sha256": sha256}


def through_json(value):
    return json.loads(json.dumps(to_dict(value)))


# References to functions


@pytest.mark.parametrize("name", ["squared", "tempered", "compiled", "Scaled"])
def test_a_function_is_described_by_its_executed_file(mine, name):
    """Also if the file has changed since."""
    function = getattr(exec_file(mine), name)
    expected = reference_to(mine, name, "class" if name == "Scaled" else "function")
    assert user_code.name_of(function) == f"{name} of mine.py"
    mine.write_text("another = 1\n")
    assert describe_code(function) == expected


UNNAMED = {
    "value = lambda x: x": "lambda",
    "def f():\n  def g(x): return x\n  return g\nvalue = f()": "f.<locals>.g",
    "def f(x): return x\nvalue = f\ndef f(x): return 2 * x": "f",
    "import jax\ndef f(x): return x\nvalue = jax.vmap(f)": "f",
    "class A:\n  __hash__ = None\n  def __call__(self, x): return x\nvalue = A()": "mine.py",
    "value = print": "print",
    "import math\nvalue = math.sin": "sin",
    "import functools, math\nvalue = functools.partial(math.sin)": "sin",
    "from tlite import functional\nvalue = functional.linear": "linear",
}


@pytest.mark.parametrize("text", UNNAMED)
def test_a_function_that_no_config_can_name_is_an_error(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    value = exec_file(tmp_path / "mine.py").value
    for describe, each in ((describe_code, value), (to_dict, FeedForward(activation=value))):
        with pytest.raises(UserError, match=re.escape(UNNAMED[text])):
            describe(each)


def test_loading_an_experiment_checks_its_functions(mine):
    mine.write_text(mine.read_text().replace("activation=squared", "activation=lambda x: x"))
    assert "lambda" in complaint(load_experiment, mine)


# The copy of a run, in another process


def test_a_layer_is_read_back_from_the_copy_of_a_run(mine, code):
    program = exec_file(mine)
    models = program.layered, program.pattern
    values, pattern = map(through_json, models)
    assert (from_dict(GeneratorConfig, values), from_dict(GeneratorConfig, pattern)) == models
    folder = code([values, pattern])
    with pytest.raises(UserError, match=r"Scaled of mine\.py"):
        from_dict(GeneratorConfig, values)
    model, block = (read_trusted(folder, v, GeneratorConfig) for v in (values, pattern))
    for layer in (model.feed_forward, block.block[0].attention):
        assert (type(layer).__name__, layer.by) == ("Scaled", 3.0)
        assert layer.layer.activation(jnp.array(3.0)) == 9
    assert through_json(model) == values
    values["feed_forward"]["fields"]["by"] = "x"
    with pytest.raises(ValueError, match=r"^feed_forward: by: expected float, not 'x'"):
        from_dict(GeneratorConfig, values)


# Imported files

HELPER = "from sizes import SCALE\n\ndef scaled(x):\n    return SCALE * x\n"


@pytest.fixture
def program(mine, tmp_path):
    """An experiment with a function of another file, which imports a number of a third."""
    (tmp_path / "sizes.py").write_text("SCALE = 2\n")
    (tmp_path / "helper.py").write_text(HELPER)
    text = mine.read_text().replace("activation=squared", "activation=helper.scaled")
    mine.write_text("import helper\n" + text)
    return mine


def activation(experiment):
    return experiment.model.feed_forward.activation(jnp.array(3.0))


def test_digests_cover_every_imported_file(program, code):
    """Another process loads the functions from the copy, whose file is executed once."""
    experiment = load_experiment(program)
    values = through_json(experiment)
    described = values["model"]["feed_forward"]["activation"]
    assert (described["file"], described["name"]) == ("mine.py", "helper.scaled")
    files = [program.with_name(name) for name in ("mine.py", "helper.py", "sizes.py")]
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert described["sha256"] == values["model"]["attention"]["function"]["sha256"] == expected
    assert from_dict(Experiment, values) == experiment
    folder = code(values)
    for file in files:
        file.unlink()
    assert count_executions(program) == 1
    again = read_trusted(folder, values)
    assert count_executions(program) == 2  # once, for both functions
    assert activation(again) == 6
    assert again.model.attention.function.init_params(None, again.model) == {"temperature": 1}
    assert user_code.name_of(again.model.feed_forward.activation) == "scaled of helper.py"
    assert through_json(again) == through_json(from_dict(Experiment, values)) == values


@pytest.mark.parametrize("name", ["mine.py", "sizes.py"])
@pytest.mark.parametrize("change", ["", None])
def test_a_changed_copy_is_named_and_not_executed(program, code, name, change):
    values = through_json(load_experiment(program))
    folder = code(values)
    copy = folder / f"{values['model']['attention']['function']['sha256'][name]}.py"
    copy.unlink() if change is None else copy.write_text(change)
    with pytest.raises(UserError, match=f"{copy} .*{name}"):
        read_trusted(folder, values)
    assert count_executions(program) == 1


def test_an_import_without_a_statement_is_an_error(mine):
    """No config would record its digest."""
    (mine.parent / "helper.py").write_text("")
    mine.write_text("import importlib\nimportlib.import_module('.helper', __package__)\n")
    with pytest.raises(UserError, match=r"mine\.py, line 2: .*helper"):
        exec_file(mine)


@pytest.mark.parametrize("code", [0, "'no data'"])
def test_a_file_that_exits_is_an_error(mine, code):
    mine.write_text(f"import sys\nsys.exit({code})\n")
    with pytest.raises(UserError, match=r"mine\.py, line 2: SystemExit"):
        exec_file(mine)


def test_the_digest_is_of_the_source_that_ran(program, code):
    """Also if an imported file is edited before the experiment is described."""
    module = exec_file(program)
    (program.parent / "sizes.py").write_text("SCALE = 9\n")
    values = through_json(module.experiment)
    assert activation(module.experiment) == 6
    assert activation(load_experiment(program)) == 27
    assert activation(read_trusted(code(values), values)) == 6


def test_an_import_inside_a_function_finds_its_own_neighbour(tmp_path):
    modules = []
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sizes.py").write_text(f"SCALE = {number}\n")
        file = tmp_path / folder / "late.py"
        file.write_text("def late():\n    import sizes\n    return sizes.SCALE\n")
        modules.append(exec_file(file))
    assert [module.late() for module in modules] == [0, 1]
    assert describe_code(modules[0].late)["sha256"].keys() == {"late.py", "sizes.py"}


def test_a_file_in_a_package_imports_its_siblings(tmp_path, code):
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
    module = exec_file(tmp_path / "pack" / "mine.py")
    assert (module.AGAIN, module.SCALE, module.deep.inner.AGAIN) == (2, 2, 2)
    others = "__init__.py", "sizes.py", "deep/__init__.py", "deep/inner.py"
    files = {f"pack/{name}" for name in ("mine.py", *others)}
    described = describe_code(module.f)
    assert described["sha256"].keys() == files
    with allow_code(code(described), trust=True):
        again = vars(sys.modules[find_code(described).__module__])
    assert (again["AGAIN"], again["SCALE"], again["deep"].inner.AGAIN) == (2, 2, 2)


def test_an_imported_module_is_described_with_its_imports(program, monkeypatch, code):
    monkeypatch.syspath_prepend(program.parent)
    try:
        import mine as imported  # ty: ignore

        values = through_json(imported.experiment)
        described = values["model"]["feed_forward"]["activation"]
        assert (described["file"], described["name"]) == ("helper.py", "scaled")
        assert described["sha256"].keys() == {"helper.py", "sizes.py"}
        ran = through_json(load_experiment(program))
        folder = code([values, ran])
        describe_code(imported.squared)  # its program knows no helper.scaled
        assert activation(read_trusted(folder, values)) == 6
        assert activation(read_trusted(folder, ran)) == 6
    finally:
        for name in ("mine", "helper", "sizes"):
            sys.modules.pop(name, None)


def test_a_described_package_can_still_import(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "described").mkdir()
    (tmp_path / "described" / "__init__.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "described" / "late.py").write_text("")
    package = importlib.import_module("described")
    before = describe_code(package.f)
    importlib.import_module("described.late")
    assert describe_code(package.f) == before


# Imported modules that are not as their files

IMPORTED = """
import dataclasses
import enum
import functools
import sizes_of_it
from sizes_of_it import WIDTH

RATE = 1.0
COUNT = 0
size = 0
TABLE = list(range(3))
SET = 1
SET = 2
GUARDED = 1
sizes_of_it.DEPTH = 4

def helper(step, power=2):
    return step**power

@dataclasses.dataclass
class Layer:
    scale: float = 2.0
    def __call__(self, x):
        return self.scale * x

class Mode(enum.IntEnum):
    FIRST = 1

@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    width: int = 3

class Deep:
    height = 2

Deep.height = 3

def with_default(function):
    @functools.wraps(function)
    def inner(step, power=5):
        return function(step, power)
    return inner

@with_default
def decorated(step, power=2):
    return step**power

def doubled(layer):
    layer.rate = 2 * layer.rate
    return layer

@doubled
class Doubled:
    rate = 1.0
    calls = 0
    def __call__(self, x):
        type(self).calls += 1
        return x.size * self.rate

def schedule(step):
    global COUNT
    COUNT += 1
    sizes_of_it.CALLS += 1
    used = Layer, Deep, Mode, Slots, TABLE, SET, GUARDED, sizes_of_it.DEPTH, sizes_of_it.HEIGHT
    used += decorated(step), Doubled()(sizes_of_it)
    return RATE * helper(step) * WIDTH, used

def other(step):
    return 1.0

if __name__ == "__main__":
    for GUARDED in range(2):
        pass
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A module that Python has imported, and another one that it imports."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "sizes_of_it.py").write_text(
        "WIDTH = 8\nDEPTH = 2\nHEIGHT = 3\nCALLS = 0\nsize = 1\n"
    )
    (tmp_path / "imported.py").write_text(IMPORTED)
    importlib.invalidate_caches()
    yield importlib.import_module("imported")
    for name in ("imported", "sizes_of_it"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("is_described", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [("RATE", 0.2), ("GUARDED", 5), ("sizes_of_it.HEIGHT", 9)],
)
def test_a_variable_that_was_set_is_an_error(imported, monkeypatch, name, value, is_described):
    """A run would record the value of the file."""
    reference = describe_code(imported.schedule) if is_described else None
    owner, _, last = name.rpartition(".")
    monkeypatch.setattr(getattr(imported, owner, imported), last, value)
    with pytest.raises(UserError, match=rf"{last} is {value}, but .*partial"):
        describe_code(imported.schedule)
    describe_code(imported.other)
    monkeypatch.undo()
    assert is_described == (describe_code(imported.schedule) == reference)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 1.0", "RATE = 2.0"),
        ("RATE * helper", "RATE + helper"),
        ("step**power", "step*power"),
        ("power=2", "power=3"),
        ("self.scale * x", "self.scale + x"),
    ],
)
def test_a_file_edited_after_its_import_is_an_error(imported, old, new):
    path = Path(imported.__file__)
    path.write_text(IMPORTED.replace(old, new))
    describe_code(imported.other)
    with pytest.raises(UserError, match=r"imported\.py: reload the module if the file was edited"):
        describe_code(imported.schedule)
    importlib.reload(imported)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert describe_code(imported.schedule)["sha256"]["imported.py"] == digest


def test_computed_variables_and_moved_lines_are_no_change(imported):
    Path(imported.__file__).write_text(
        "# A comment.\n" + IMPORTED.replace("1.0\n\nif", "2.0\n\nif")
    )
    before = describe_code(imported.schedule)
    imported.schedule(1)
    imported.TABLE, imported.SET, imported.size = [1], 7, 9
    assert describe_code(imported.schedule) == before


# Consent


def test_consent_is_remembered_for_these_files_only(mine, code, forget, monkeypatch, tmp_path):
    values = through_json(load_experiment(mine))
    folder = code(values)
    monkeypatch.chdir(mine.parent)  # a file of the same name on Python's path
    with allow_code(folder), pytest.raises(UserError, match=f"tempered of mine.py.*{folder}"):
        from_dict(Experiment, values)
    assert count_executions(mine) == 1
    load_experiment(mine)
    remember_code(values)
    (file,) = (tmp_path / "state" / "tlite" / "trusted").iterdir()
    assert (file.stat().st_mode & 0o777, file.read_bytes()) == (0o600, b"")
    forget()
    with allow_code(folder):
        assert from_dict(Experiment, values)
    mine.write_text(mine.read_text() + "# another\n")
    others = through_json(load_experiment(mine))
    write_code(tmp_path / "other", others)
    forget()
    with allow_code(tmp_path / "other"), pytest.raises(UserError, match="--trust"):
        from_dict(Experiment, others)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with allow_code(folder), pytest.raises(UserError, match="--trust"):
        from_dict(Experiment, values)
    remember_code(through_json(read_trusted(folder, values)))
    forget()
    with allow_code(folder):
        assert from_dict(Experiment, values)


def test_a_shipped_experiment_opens_without_consent(tmp_path, forget):
    experiment = load_variants("hybrid")[1]["linear"]
    run, values = tmp_path / "run", through_json(experiment)
    create_run(run, experiment, {}, CharTokenizer("a"))
    forget()
    opened = open_run(run, Experiment).experiment
    assert user_code.is_user_code(opened.model.attention)
    assert through_json(opened) == values


def test_bytecode_is_neither_read_nor_written(mine):
    """Python would execute a .pyc file of equal date and size, though the source differs."""
    text, date = mine.read_text(), mine.stat().st_mtime
    mine.write_text(text.replace("** 2", "** 5"))
    os.utime(mine, (date, date))
    compiled = py_compile.compile(str(mine), doraise=True)
    mine.write_text(text)
    os.utime(mine, (date, date))
    assert activation(load_experiment(mine)) == 9
    Path(compiled).unlink()
    exec_file(mine)
    assert not Path(compiled).exists()


@pytest.mark.parametrize("name", ["gone", "number", "__builtins__", "model.attention", "Scaled"])
def test_a_name_without_a_function_is_an_error(mine, name):
    exec_file(mine)
    for kind, each in (("function", name), ("class", "squared")):
        with pytest.raises(UserError, match=each):
            find_code(reference_to(mine, each, kind))


def test_a_library_s_function_is_not_found_in_the_file(mine):
    mine.write_text("from os import system\nfrom jax.nn import relu\nfrom posixpath import join\n")
    exec_file(mine)
    for name in ("system", "relu", "join"):
        assert complaint(find_code, reference_to(mine, name))


REFERENCE = {"kind": "function", "file": "mine.py", "name": "f", "sha256": {"mine.py": "0" * 64}}


@pytest.mark.parametrize(
    "reference",
    [None, 3, "mine.py", ["mine.py", "f"], {}, *({**REFERENCE, key: None} for key in REFERENCE)]
    + [{**REFERENCE, "sha256": digests} for digests in ({}, {"mine.py": 1}, {"other.py": "0" * 64})]
    + [
        {**REFERENCE, "sha256": {"mine.py": digest}}
        for digest in ("0", "../" * 20 + "mine", "A" * 64)
    ]
    + [
        {**REFERENCE, "file": file, "sha256": {file: "0" * 64}}
        for file in ("../mine.py", "/mine.py", "a/../mine.py", "mine", "")
    ],
    ids=str,
)
def test_an_invalid_reference_is_a_value_error_of_one_line(reference):
    with pytest.raises(ValueError, match="expected a function's file, name and SHA-256"):
        find_code(reference)
    values = to_dict(GeneratorConfig())
    values["feed_forward"] |= {"activation": reference}
    with pytest.raises(ValueError, match=r"^feed_forward: activation: expected .*, not "):
        from_dict(GeneratorConfig, values)
    with pytest.raises(ValueError, match=r"^norm.* .*, not ") as error:
        from_dict(GeneratorConfig, to_dict(GeneratorConfig()) | {"norm": reference})
    assert len(str(error.value)) < 300
