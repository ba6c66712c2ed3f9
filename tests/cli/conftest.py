"""Fixtures of the tests of commands: trained runs, and command lines on them.

Runs of a session are never changed: a test that writes into one takes a copy.
"""

import contextlib
import io
import re
import shlex
from types import SimpleNamespace

import jax
import pytest

from tests.helpers.python import SMALL_DATA
from tlite.cli import main
from tlite.runs import ClassifierRun, GeneratorRun, TranslatorRun
from tlite.training import checkpoints

INPUT_LINES = re.compile(r"^(experiment|input files): /.*\n", re.MULTILINE)
TINY = (
    " --width 8 --num-heads 2 --num-blocks 1 --steps 4 --evaluate-every 2 --seeds 2 "
    "--precision float32"
)
TEXT = "The quick brown fox jumps over the lazy dog.\n" * 60


@contextlib.contextmanager
def single_device():
    first = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("devices", "local_devices"):
            patch.setattr(jax, name, lambda *_, **__: first)
        yield


@pytest.fixture(scope="module")
def one_device():
    """Use one device: a program for one compiles in a third of the time."""
    with single_device():
        yield


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """Call `tlite train` with a line of options on one device; return the run and its output.

    The report at its end takes longer than the training.
    """

    def call(line, report=False):
        run = tmp_path_factory.mktemp("commands") / "run"
        printed = io.StringIO()
        context = pytest.MonkeyPatch.context()
        with single_device(), context as patch, contextlib.redirect_stdout(printed):
            patch.setattr("tlite.distributed.devices.prepare_devices", lambda: None)
            for kind in () if report else (ClassifierRun, GeneratorRun, TranslatorRun):
                patch.setattr(kind, "report", lambda *_: None)
            assert main(shlex.split(f"train {line} --run {run}")) == 0
        return SimpleNamespace(run=run, printed=printed.getvalue())

    return call


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="session")
def generator(train, text):
    """A run with a report."""
    options = f"--context 16 --batch-size 4 --learning-rate 0.03 {TINY}"
    return train(f"my_text --path {text} {options}", report=True)


@pytest.fixture(scope="session")
def classifier(train):
    """A run of synthetic reviews."""
    options = f"--context 16 --batch-size 8 --learning-rate 0.03 {TINY}"
    return train(f"reviews_demo --reviews 60 {options}")


@pytest.fixture(scope="session")
def translator(train):
    """A run that copies a few letters."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("sacrebleu")
    options = (
        "--letters 4 --longest 5 --sequences 60 --num-subwords 20 --context 8 --batch-size 128 "
        f"--buckets 1 --beam 3 --bleu-sentences 2 --schedule constant {TINY}"
    )
    return train(f"copy_task {options}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Write nothing into the repository, and set nothing in a JAX that is in use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tlite.distributed.devices.prepare_devices", lambda: None)


@pytest.fixture
def tlite(request, capsys, monkeypatch):
    """Run a command line, with {fixture} filled in; return (exit code, stdout, stderr).

    A test that patches something names these fixtures as arguments, too: they come before patches.
    """

    def call(line, stdin=b""):
        fixtures = {name: request.getfixturevalue(name) for name in re.findall(r"{(\w+)}", line)}
        paths = {name: getattr(value, "run", value) for name, value in fixtures.items()}
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(shlex.split(line.format(**paths)))
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def without_training(monkeypatch):
    """Leave memory for a model only; return the names of the trees that are restored."""
    names, load = set(), checkpoints._restore
    recorded = lambda folder, wanted: names.update(wanted) or load(folder, wanted)  # noqa: E731
    monkeypatch.setattr(checkpoints, "_restore", recorded)
    monkeypatch.setattr("tlite.training.sharding.free_memory", lambda: 2**14)
    return names


@pytest.fixture
def works(tlite):
    """Return the output of a command that succeeds, without lines about its inputs."""

    def call(line, stdin=b""):
        code, out, err = tlite(line, stdin)
        assert (code, SMALL_DATA.sub("", err)) == (0, "")
        return INPUT_LINES.sub("", out)

    return call


@pytest.fixture
def fails(tlite):
    """Return the one line on stderr of a command that fails."""

    def call(line):
        code, out, err = tlite(line)
        assert (code, INPUT_LINES.sub("", out)) == (2, "")
        error = SMALL_DATA.sub("", err)
        assert re.fullmatch(r"tlite: .+\n", error)
        return error

    return call
