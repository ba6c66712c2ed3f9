"""The commands: what they print and write, and one sentence for each mistake, with exit code 2."""

import math
import re
import shutil

import pytest

from tlite.runs import GeneratorRun
from tlite.training.metrics import read_metrics


@pytest.fixture
def trained(generator):
    return generator


def number(pattern, out):
    return float(re.search(pattern + r" (\d+\.\d+)", out)[1])


def test_training_prints_loss_perplexity_and_a_sample(trained):
    (sample,) = (trained.run / "samples").iterdir()
    loss = number("\nvalidation loss", trained.printed)
    assert math.exp(loss) == pytest.approx(number("perplexity", trained.printed), rel=1e-3)
    assert sample.read_text().removeprefix("The ") in trained.printed
    assert len(sample.read_text()) == len("The ") + 500
    assert f"tlite generate {trained.run}" in trained.printed


@pytest.mark.parametrize("folder", ["--run here", ""])
def test_resume_auto_creates_a_run_then_resumes_it(works, trained, monkeypatch, tmp_path, folder):
    monkeypatch.setattr(GeneratorRun, "report", lambda *_: None)
    line = f"train my_text --path {trained.text} --context 16 --width 8 --num-heads 2"
    line += " --num-blocks 1 --evaluate-every 2 --steps {steps} --resume auto " + folder
    works(line, steps=4)
    (run,) = (path.parent for path in tmp_path.rglob("config.json"))
    losses = [x["loss"] for x in read_metrics(run / "metrics.jsonl")]
    shutil.rmtree(run / "checkpoints" / "4")
    assert "step 4" in works(line, steps=4)
    assert [x["loss"] for x in read_metrics(run / "metrics.jsonl")] == losses
    if not folder:  # the run of another experiment is not resumed
        works(line, steps=3)
        works(line, steps=4)
        assert len(list(tmp_path.rglob("config.json"))) == 2


def test_evaluation_gives_the_losses_of_training_again(works, trained):
    lines = read_metrics(trained.run / "metrics.jsonl")
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "validation"}
    best = min(losses, key=losses.get)
    for checkpoint, step in {"2": 2, "last": 4, "best": best}.items():
        out = works("evaluate {run} --checkpoint {checkpoint}", checkpoint=checkpoint)
        assert out.startswith(f"step {step}: ")
        assert number("validation loss", out) == pytest.approx(losses[step], abs=6e-5)
        assert out.splitlines()[0].endswith(" 134 characters")


def test_evaluate_needs_neither_memory_nor_optimizer_of_training(
    works, fails, copied, without_training
):
    message = works("evaluate {run}")
    assert without_training == {"parameters"}
    assert "would need" in fails("train --resume {copied}", copied=copied)
    assert message == works("evaluate {run}")


WRITE = "generate {run} --prompt The --tokens 20 "
SAME = [
    ("--seed 7", "--seed 7"),
    ("--greedy --seed 1", "--greedy --seed 2"),
    ("--temperature 0", "--greedy"),
]
OTHER = [("--seed 7", "--seed 8"), ("--replica 0", "--replica 1")]


@pytest.mark.parametrize(("one", "two"), SAME + OTHER)
def test_a_text_depends_on_seed_and_replica(works, one, two):
    text = works(WRITE + one)
    assert text.startswith("The")
    assert len(text) == len("The") + 20 + len("\n")
    assert (text == works(WRITE + two)) == ((one, two) in SAME)


def test_samples_are_those_of_the_next_seeds(works):
    line = "generate {run} --tokens 9 --prompt The --seed "
    samples = works(line + "3 --samples 2")
    assert samples == f"--- sample 1\n{works(line + '3')}--- sample 2\n{works(line + '4')}"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--help", "generate"),
        ("train --help", "copy_task, demo"),
        ("train --help", "--vary"),
        ("plan --help", "--devices"),
        ("classify --help", "classify [-h] [OPTIONS] RUN [TEXT ...]"),
        ("train my_text --help", "--learning-rate"),
        ("train --resume run --help", "--steps"),
        ("translate --help", "--beam"),
    ],
)
def test_help_names_the_options_and_ends_well(works, line, word):
    assert word in works(line)
