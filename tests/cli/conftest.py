"""What the tests of commands share: a run that a command has trained, and command lines on it."""

import contextlib
import io
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest

from tlite.cli import main
from tlite.recipes import ClassifierRecipe, GeneratorRecipe, TranslatorRecipe

ANNOUNCED = re.compile(r"^(experiment|the run reads): /.*\n", re.MULTILINE)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """`tlite train` with a line of options: the run it made, and what was printed."""

    def call(line):
        run = tmp_path_factory.mktemp("commands") / "run"
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr("tlite.devices.prepare_devices", lambda: None)
            assert main(shlex.split(f"train {line} --run {run}")) == 0
        return SimpleNamespace(run=run, printed=printed.getvalue())

    return call


@pytest.fixture(scope="module")
def train_without_report(train):
    """The same but for what is told and drawn at the end, which takes longer than the training."""

    def call(line):
        with pytest.MonkeyPatch.context() as patch:
            for kind in (ClassifierRecipe, GeneratorRecipe, TranslatorRecipe):
                patch.setattr(kind, "report", lambda *_: None)
            return train(line)

    return call


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing is written into the repository, nor set in a JAX that other tests have started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tlite.devices.prepare_devices", lambda: None)


@pytest.fixture
def tlite(trained, capsys, monkeypatch):
    """A command line, with {run} filled in, and standard input to (exit code, stdout, stderr)."""

    def call(line, given=b"", **names):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        try:
            code = main(shlex.split(line.format(**vars(trained) | names)))
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def works(tlite):
    """What a command prints that ends well, but for what it says of the files it reads."""

    def call(line, given=b"", **names):
        code, out, err = tlite(line, given, **names)
        assert (code, err) == (0, "")
        return ANNOUNCED.sub("", out)

    return call


@pytest.fixture
def fails(tlite):
    """The one line on stderr of a command that ends badly."""

    def call(line, given=b"", **names):
        code, out, err = tlite(line, given, **names)
        assert (code, ANNOUNCED.sub("", out)) == (2, "")
        assert re.fullmatch(r"tlite: .+\n", err)
        return err

    return call


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the run, to be spoiled."""
    return shutil.copytree(trained.run, tmp_path / "copied")
