"""What the tests of commands share: runs that commands have trained, and command lines on them.

A run of a whole session is never changed: a test that writes into it takes a copy, `copied`.
"""

import contextlib
import io
import re
import shlex
import shutil
from types import SimpleNamespace

import jax
import pytest

from tests.helpers.python import SMALL_DATA
from tlite.cli import main
from tlite.runs import ClassifierRun, GeneratorRun, TranslatorRun
from tlite.training import checkpoints

ANNOUNCED = re.compile(r"^(experiment|input files): /.*\n", re.MULTILINE)


TINY = (
    " --width 8 --num-heads 2 --num-blocks 1 --steps 4 --evaluate-every 2 --seeds 2 "
    "--precision float32"
)
TEXT = "The quick brown fox jumps over the lazy dog.\n" * 60


@contextlib.contextmanager
def over_one_device():
    found = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("devices", "local_devices"):
            patch.setattr(jax, name, lambda *_, **__: found)
        yield


@pytest.fixture(scope="module")
def one_device():
    """Where devices are not the point: a program over one compiles in a third of the time."""
    with over_one_device():
        yield


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """`tlite train` with a line of options: the run it made, and what was printed."""

    def call(line):
        run = tmp_path_factory.mktemp("commands") / "run"
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr("tlite.distributed.devices.prepare_devices", lambda: None)
            assert main(shlex.split(f"train {line} --run {run}")) == 0
        return SimpleNamespace(run=run, printed=printed.getvalue())

    return call


@pytest.fixture(scope="session")
def train_without_report(train):
    """The same but for what is told and drawn at the end, which takes longer than the training."""

    def call(line):
        with pytest.MonkeyPatch.context() as patch:
            for kind in (ClassifierRun, GeneratorRun, TranslatorRun):
                patch.setattr(kind, "report", lambda *_: None)
            return train(line)

    return call


@pytest.fixture(scope="session")
def generator(train, tmp_path_factory):
    """A text, the run that `tlite train` made of it over all devices, and what was printed."""
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text(TEXT)
    options = f"--context 16 --batch-size 4 --learning-rate 0.03 {TINY}"
    made = train(f"my_text --path {text} {options}")
    return SimpleNamespace(text=text, **vars(made))


@pytest.fixture(scope="session")
def classifier(train):
    """A run of synthetic reviews, and what was printed."""
    options = f"--reviews 60 --context 16 --batch-size 8 --learning-rate 0.03 {TINY}"
    with over_one_device():
        return train(f"reviews_demo {options}")


@pytest.fixture(scope="session")
def translator(train_without_report):
    """A run that copies a few letters."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("sacrebleu")
    options = (
        "--letters 4 --longest 5 --sequences 60 --pieces 20 --context 8 --batch-size 128 "
        f"--buckets 1 --beam 3 --bleu-sentences 2 --schedule constant {TINY}"
    )
    with over_one_device():
        return train_without_report(f"copy_task {options}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing is written into the repository, nor set in a JAX that other tests have started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tlite.distributed.devices.prepare_devices", lambda: None)


@pytest.fixture
def trained():
    """Nothing, where no command looks at a run; a file has one of its own where they do."""
    return SimpleNamespace()


@pytest.fixture
def tlite(trained, capsys, monkeypatch):
    """A command line, with {run} filled in, and standard input to (exit code, stdout, stderr)."""

    def call(line, stdin=b"", **names):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(shlex.split(line.format(**vars(trained) | names)))
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def without_training(monkeypatch):
    """No memory is free but what a model takes; which trees of arrays checkpoints are asked for."""
    names, load = set(), checkpoints._restore
    recorded = lambda folder, wanted: names.update(wanted) or load(folder, wanted)  # noqa: E731
    monkeypatch.setattr(checkpoints, "_restore", recorded)
    monkeypatch.setattr("tlite.training.sharding.free_memory", lambda: 2**14)
    return names


@pytest.fixture
def works(tlite):
    """What a command prints that ends well, but for what it says of what it reads or does not."""

    def call(line, stdin=b"", **names):
        code, out, err = tlite(line, stdin, **names)
        assert (code, SMALL_DATA.sub("", err)) == (0, "")
        return ANNOUNCED.sub("", out)

    return call


@pytest.fixture(scope="module")
def outputs():
    return {}


@pytest.fixture
def output_of(works, outputs):
    """The same of a line on the run, which is asked once for all tests of a file."""

    def call(line):
        if line not in outputs:
            outputs[line] = works(line)
        return outputs[line]

    return call


@pytest.fixture
def fails(tlite):
    """The one line on stderr of a command that ends badly."""

    def call(line, stdin=b"", **names):
        code, out, err = tlite(line, stdin, **names)
        assert (code, ANNOUNCED.sub("", out)) == (2, "")
        error = SMALL_DATA.sub("", err)
        assert re.fullmatch(r"tlite: .+\n", error)
        return error

    return call


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the run, to be spoiled."""
    return shutil.copytree(trained.run, tmp_path / "copied")
