"""What users run, with XLA's optimisations: each kind learns what only attention can tell it.

And the demo, in bfloat16, stopped and gone on with.

All other tests but the attack's compile with few optimisations, which is another program.
"""

import csv
import math
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.attack import state
from tests.helpers.launching import Running
from tests.helpers.python import forks
from tlite.data import BuiltinText, CopyTask, split_tokens
from tlite.training.metrics import read_metrics

STEPS = 60
TRAIN = (
    f"train demo --steps {STEPS} --evaluate-every 15 --batch-size 8 --warmup-steps 10 "
    "--precision mixed"
)
OF_TESTS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")


@pytest.fixture(scope="module")
def finish():
    """Calls a command line, which is to end well; what it prints."""

    def call(line: str) -> str:
        code, out, err = tlite(*line.split())
        assert code == 0, err
        return out

    with pytest.MonkeyPatch.context() as patch:
        for name in OF_TESTS:
            patch.delenv(name)
        with forks() as tlite:
            yield call


def validations(folder: Path) -> list[dict]:
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["split"] != "training"]


def entropy(tokens: Iterable) -> float:
    """Nats a token: what no model that knows only their frequencies is below on these very ones."""
    counts = Counter(tokens)
    return -sum(n * math.log(n / counts.total()) for n in counts.values()) / counts.total()


def bigram_entropy(texts: Iterable[Sequence]) -> float:
    """Nats a token: what no model that sees the token before alone is below on these very texts."""
    pairs = [pair for text in texts for pair in pairwise(text)]
    return entropy(pairs) - entropy(before for before, _ in pairs)


def test_a_generator_learns_what_only_attention_can_tell(finish, tmp_path):
    """Lines of random letters, four times the same: all but the first are to be looked up."""
    draw, path, folder = random.Random(0), tmp_path / "text.txt", tmp_path / "run"
    text = "".join("".join(draw.choices("abcdefghijklmnop", k=8)) * 4 + "\n" for _ in range(2000))
    path.write_text(text)
    sizes = "--width 32 --num-blocks 2 --steps 300 --evaluate-every 100"
    finish(f"train my_text --path {path} --run {folder} {sizes}")
    floor = bigram_entropy([split_tokens(text, 0.05)[1]])
    assert validations(folder)[-1]["loss"] < floor / 2


def test_a_classifier_learns_what_only_attention_can_tell(finish, tmp_path):
    """Six random words twice, turned by two or by four: the classes have the same bigrams."""
    draw, path, folder = random.Random(0), tmp_path / "table.csv", tmp_path / "run"
    words = ["red", "blue", "green", "black", "white", "pink", "brown", "grey"]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for _ in range(4000):
            first, by = draw.choices(words, k=6), draw.choice((2, 4))
            table.writerow([" ".join([*first, "then", *first[by:], *first[:by]]), f"by {by}"])
    sizes = "--context 16 --width 32 --dropout 0 --embedding.word-dropout 0"
    sizes += " --steps 400 --evaluate-every 100"
    out = finish(f"train my_labels --path {path} --run {folder} {sizes}")
    by_bigrams = re.search(r"TF-IDF \+ logistic regression: validation accuracy ([\d.]+) %", out)
    assert float(by_bigrams[1]) < 60
    assert validations(folder)[-1]["accuracy"] > 0.95


def test_a_translator_learns_what_only_attention_can_tell(finish, tmp_path):
    """Sequences are to be written again."""
    folder, numbers = tmp_path / "run", {"letters": 8, "longest": 6, "sequences": 4000}
    data = " ".join(f"--{name} {number}" for name, number in numbers.items())
    sizes = "--context 8 --width 32 --num-blocks 1 --batch-size 512 --buckets 1 --beam 1"
    finish(f"train copy_task {data} {sizes} --steps 300 --evaluate-every 100 --run {folder}")
    targets = [pair.target.split() for pair in CopyTask(**numbers).pairs("validation")]
    floor = bigram_entropy([None, *target, None] for target in targets)
    assert validations(folder)[-1]["loss"] < floor / 10
    assert validations(folder)[-1]["exact_match"] > 0.5


@pytest.fixture(scope="module")
def whole(finish, tmp_path_factory) -> tuple[Path, str]:
    """A run that nobody disturbs, and what it prints."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, finish(f"{TRAIN} --run {folder}")


def test_the_demo_learns_and_writes(whole):
    folder, out = whole
    losses = [line["loss"] for line in validations(folder)]
    assert len(losses) == STEPS // 15
    _, held_out = split_tokens(BuiltinText().load(), BuiltinText().validation_fraction)
    assert losses[-1] < entropy(held_out)
    written = out.split("\nThe ")[1].split("\nsaved in ")[0]
    assert len(written) > 100


@pytest.fixture(scope="module")
def stopped(finish, tmp_path_factory) -> tuple[Path, int, str]:
    """A run that Ctrl-C has stopped, the exit code, and what it said."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with Running("tlite", *TRAIN.split(), "--run", folder) as run:
        run.wait_until(lambda: read_metrics(folder / "metrics.jsonl"))
        run.process.send_signal(signal.SIGINT)
        code, _, err = run.end()
    return folder, code, err


def test_ctrl_c_saves_and_prints_the_command_that_resumes(stopped):
    folder, code, err = stopped
    last = read_metrics(folder / "metrics.jsonl")[-1]["step"]
    assert last < STEPS
    assert (folder / "checkpoints" / str(last)).is_dir()
    assert code == 130
    assert len(err.splitlines()) == 1
    assert f" {last}, " in err
    assert err.endswith(f" python -m tlite train --resume {folder}\n")


def test_a_run_that_is_stopped_ends_with_the_bits_of_one_that_is_not(
    whole, stopped, finish, tmp_path
):
    folder = shutil.copytree(stopped[0], tmp_path / "stopped")
    finish(f"train --resume {folder}")
    expected, found = (state.checkpoints(run)["checkpoints"] for run in (whole[0], folder))
    assert found[str(STEPS)] == expected[str(STEPS)]
