"""The commands: what they print and write, and one sentence for each mistake, with exit code 2."""

import json
import math
import re
import shutil

import pytest

from tlite.training.metrics import read_metrics


@pytest.fixture
def trained(generator):
    return generator


TRAIN = "train text --path {text} "
MISTAKES = {
    "generat": "did you mean generate?",
    "dmeo": "no command 'dmeo': did you mean train demo?",
    "train dmeo": "did you mean demo?",
    "train": "name an experiment.*demo",
    "train text": "--path",
    "train text --path nowhere.txt": "nowhere.txt",
    TRAIN + "--embedding-deviation -1": "embedding: deviation must be positive, not -1.0",
    TRAIN + "--name ''": "the name must be letters that can be printed",
    "train text --path /dev/zero": "can't read /dev/zero: it is a device, not a file",
    "evaluate " + "n" * 300: "can't read n+/config.json: File name too long",
    TRAIN + "--run " + "n" * 300: "can't make the run folder n+: File name too long",
    TRAIN + "--context 4000": "too short: its training part has 2565",
    TRAIN + "--vocabulary-size 7": "7.*31",
    TRAIN + "--validation-fraction 1": "validation fraction",
    TRAIN + "--prompt ''": "prompt is empty",
    TRAIN + "--run {run}": "exists already.*--resume {run}",
    "train --resume {run} --member 1": "the option --member is gone: a seed alone has",
    "train ''": "there is no experiment ''",
    "generate {run} --=x": "the option '--=x' has no name",
    "evaluate nowhere": "nowhere does not exist",
    "evaluate .": "not a run folder",
    "evaluate ''": "empty name",
    "evaluate {run} --split test": "no test part: training or validation",
    "evaluate --beam 2 {run}": "no option --beam for .*run",
    "evaluate --path a.txt {run}": "no option --path for .*run",
    "evaluate --sampled 9 {run}": "the option --sampled is gone: every token is scored",
    "evaluate {run} --member 1": "--member must be 0 or all for .*run, not 1",
    "evaluate {run} --checkpoint 3": "no checkpoint 3: .*2, 4",
    "generate {run} --prompt ''": "prompt is empty",
    "generate {run} --prompt 'The Öl§'": "'Ö', '§'.*--unknown",
    "generate {run} --temperature -1": "--temperature must be between 0.* and 10,000.*, not -1",
    "generate {run} --top-p 1e-300": "--top-p must be between 1e-06 and 1, not 1e-300",
    "generate {run} --tokens 0": "at least 1, not 0",
    "generate {run} --samples 3000000000": "--samples must be between .*, not 3,000,000,000",
    "generate {run} --seed 2147483648": "--seed must be between 0 and 2,147,483,647, not 2",
}


WRONG_OPTIONS = {
    TRAIN + "--widht 8": "Unrecognized options: --widht, 8 Perhaps you meant: --width INT",
    TRAIN + "--width eight": "Error parsing --width: .* 'eight'",
    TRAIN + "--width": "Missing value for argument '--width'",
    TRAIN + "--tokenizer bpe:256": "Error parsing --tokenizer: pieces .* at least 257, not 256",
    "evaluate": "Missing from tlite evaluate: RUN The run folder",
    "evaluate {run} extra": "Unrecognized options: extra",
    "evaluate {run} --split exam": "invalid choice 'exam' .*'validation', 'training', 'test'",
}
"""By tyro, who draws a box."""


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_changes_nothing(line, fails, trained, tmp_path):
    pattern = MISTAKES[line].replace("{run}", str(trained.run)).replace("?", r"\?")
    assert re.search(pattern, fails(line))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", WRONG_OPTIONS)
def test_a_wrong_option_is_told_and_changes_nothing(line, refused, trained, tmp_path):
    assert re.search(WRONG_OPTIONS[line], refused(line))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_option_does_not_steer_a_terminal(tlite):
    _, _, err = tlite("evaluate {run} '--\x1b[2J'")
    assert "␛[2J" in err
    assert "\x1b" not in err


def test_a_run_without_checkpoints_says_so(fails, copied):
    shutil.rmtree(copied / "checkpoints")
    assert "has no checkpoint yet" in fails("generate {copied}", copied=copied)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tlite, works, copied):
    (copied / "checkpoints" / "4" / "checkpoint.json").write_text("?")
    code, out, err = tlite("evaluate {copied} --checkpoint last", copied=copied)
    assert code == 0
    assert re.fullmatch(r"checkpoint 4 is damaged: using checkpoint 2 instead\n", err)
    assert out.splitlines()[1:] == works("evaluate {run} --checkpoint 2").splitlines()


def number(pattern, out):
    return float(re.search(pattern + r" (\d+\.\d+)", out)[1])


def test_training_prints_loss_perplexity_and_a_sample(trained):
    (sample,) = (trained.run / "samples").iterdir()
    loss = number("\nvalidation loss", trained.printed)
    assert math.exp(loss) == pytest.approx(number("perplexity", trained.printed), rel=1e-3)
    assert sample.read_text().removeprefix("The ") in trained.printed
    assert len(sample.read_text()) == len("The ") + 500
    assert f"tlite generate {trained.run}" in trained.printed


def test_training_leaves_plots_metrics_and_both_checkpoints(trained):
    plots = {"accuracy.png", "loss.png"}
    assert {path.name for path in (trained.run / "plots").iterdir()} == plots
    lines = read_metrics(trained.run / "metrics.jsonl")
    assert [(line["step"], line["split"][:1]) for line in lines] == [
        (1, "t"), (2, "t"), (2, "v"), (3, "t"), (4, "t"), (4, "v")
    ]  # fmt: skip
    assert {path.name for path in (trained.run / "checkpoints").iterdir()} == {"2", "4"}


def test_a_finished_run_that_is_resumed_stays_as_it_was(works, copied):
    before = (copied / "metrics.jsonl").read_text()
    assert "validation loss" in works("train --resume {copied}", copied=copied)
    assert (copied / "metrics.jsonl").read_text() == before


def test_evaluation_gives_the_losses_of_training_again(works, trained):
    lines = read_metrics(trained.run / "metrics.jsonl")
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "validation"}
    best = min(losses, key=losses.get)
    for checkpoint, step in {"2": 2, "last": 4, "best": best}.items():
        out = works("evaluate {run} --checkpoint {checkpoint}", checkpoint=checkpoint)
        assert out.startswith(f"step {step}: ")
        assert number("validation loss", out) == pytest.approx(losses[step], abs=6e-5)
        assert out.splitlines()[0].endswith(" 134 characters")


def test_what_trains_nothing_needs_neither_memory_nor_optimizer_of_training(
    works, fails, copied, without_training
):
    told = works("evaluate {run}")
    assert without_training == {"parameters"}
    assert "would need" in fails("train --resume {copied}", copied=copied)
    assert told == works("evaluate {run}")


WRITE = "generate {run} --prompt The --tokens 20 "
SAME = [
    ("--seed 7", "--seed 7"),
    ("--greedy --seed 1", "--greedy --seed 2"),
    ("--temperature 0", "--greedy"),
]
OTHER = [("--seed 7", "--seed 8"), ("--member 0", "--member 1")]


@pytest.mark.parametrize(("one", "two"), SAME + OTHER)
def test_a_text_is_its_seed_s_and_its_member_s(works, one, two):
    text = works(WRITE + one)
    assert text.startswith("The")
    assert len(text) == len("The") + 20 + len("\n")
    assert (text == works(WRITE + two)) == ((one, two) in SAME)


def test_samples_are_those_of_the_next_seeds(works):
    line = "generate {run} --tokens 9 --prompt The --seed "
    samples = works(line + "3 --samples 2")
    assert samples == f"--- sample 1\n{works(line + '3')}--- sample 2\n{works(line + '4')}"


def test_unknown_characters_are_read_when_allowed(works):
    assert works("generate {run} --prompt Ö§ --unknown --tokens 3").startswith("Ö§")


def test_a_model_writes_where_its_text_is_not(works, copied):
    config = json.loads((copied / "config.json").read_text())
    config["experiment"]["data"]["path"] = "gone.txt"
    (copied / "config.json").write_text(json.dumps(config))
    assert works("generate {copied} --tokens 3", copied=copied)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--help", "generate"),
        ("train --help", "copy_task, demo"),
        ("train --help", "--vary"),
        ("plan --help", "--mesh"),
        ("classify --help", "classify [-h] [OPTIONS] RUN [TEXT ...]"),
        ("train text --help", "--learning-rate"),
        ("train --resume run --help", "--steps"),
        ("translate --help", "--beam"),
    ],
)
def test_help_names_the_options_and_ends_well(works, line, word):
    assert word in works(line)
