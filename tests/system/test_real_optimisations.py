"""Training with XLA's optimisations: each kind learns more than bigrams; the demo resumes.

All other tests but the attack compile with few optimisations, which gives another program.
"""

import csv
import math
import random
import re
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
TEST_VARIABLES = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")


@pytest.fixture(scope="module")
def finish():
    """Return a function that runs a command line, which must succeed, and returns its output."""

    def call(line: str) -> str:
        code, out, err = tlite(*line.split())
        assert code == 0, err
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_NUM_CPU_DEVICES", "2")
        for name in TEST_VARIABLES:
            patch.delenv(name)
        with forks() as tlite:
            yield call


def validations(folder: Path) -> list[dict]:
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["split"] != "training"]


def entropy(tokens: Iterable) -> float:
    """Return the least loss, in nats per token, of a model that ignores the order of tokens."""
    counts = Counter(tokens)
    return -sum(n * math.log(n / counts.total()) for n in counts.values()) / counts.total()


def bigram_entropy(texts: Iterable[Sequence]) -> float:
    """Return the least loss, in nats per token, of a model of pairs of tokens on these texts."""
    pairs = [pair for text in texts for pair in pairwise(text)]
    return entropy(pairs) - entropy(before for before, _ in pairs)


def test_a_generator_learns_more_than_bigrams(finish, tmp_path):
    """Each line has eight random letters four times: all but the first eight can be copied."""
    draw, path, folder = random.Random(0), tmp_path / "text.txt", tmp_path / "run"
    text = "".join("".join(draw.choices("abcdefghijklmnop", k=8)) * 4 + "\n" for _ in range(2000))
    path.write_text(text)
    sizes = "--width 32 --num-blocks 2 --steps 300 --evaluate-every 100"
    finish(f"train my_text --path {path} --run {folder} {sizes}")
    floor = bigram_entropy([split_tokens(text, 0.05)[1]])
    assert validations(folder)[-1]["loss"] < floor / 2


def test_a_classifier_learns_more_than_bigrams(finish, tmp_path):
    """Six random words twice, the second time rotated by two or four, the same for bigrams."""
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


def test_a_translator_learns_more_than_bigrams(finish, tmp_path):
    """The target is the source."""
    folder, numbers = tmp_path / "run", {"letters": 8, "longest": 6, "sequences": 4000}
    data = " ".join(f"--{name} {number}" for name, number in numbers.items())
    sizes = "--context 8 --width 32 --num-blocks 1 --batch-size 512 --buckets 1 --beam 1"
    finish(f"train copy_task {data} {sizes} --steps 300 --evaluate-every 100 --run {folder}")
    targets = [pair.target.split() for pair in CopyTask(**numbers).pairs("validation")]
    floor = bigram_entropy([None, *target, None] for target in targets)
    assert validations(folder)[-1]["loss"] < floor / 10
    assert validations(folder)[-1]["exact_match"] > 0.5


def test_a_demo_stopped_by_ctrl_c_resumes_bit_for_bit(finish, tmp_path):
    """It is trained in bfloat16."""
    uninterrupted, folder = tmp_path / "uninterrupted", tmp_path / "stopped"
    out = finish(f"{TRAIN} --run {uninterrupted}")
    _, validation = split_tokens(BuiltinText().load(), BuiltinText().validation_fraction)
    assert validations(uninterrupted)[-1]["loss"] < entropy(validation)
    assert len(out.split("\nThe ")[1].split("\nsaved in ")[0]) > 100
    with Running("tlite", *TRAIN.split(), "--run", folder) as run:
        run.wait_until(lambda: read_metrics(folder / "metrics.jsonl"))
        run.process.send_signal(signal.SIGINT)
        code, _, err = run.end()
    step = read_metrics(folder / "metrics.jsonl")[-1]["step"]
    assert (code, len(err.splitlines())) == (130, 1)
    assert step < STEPS
    assert f" {step}, " in err
    assert err.endswith(f" python -m tlite train --resume {folder}\n")
    assert (folder / "checkpoints" / str(step)).is_dir()
    finish(f"train --resume {folder}")
    expected, digests = (state.checkpoints(run)["checkpoints"] for run in (uninterrupted, folder))

    assert digests[str(STEPS)] == expected[str(STEPS)]
