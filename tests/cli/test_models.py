"""Commands on a trained run: their input, their output and the options that they pass on."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite as library
from tests.helpers.inspected import undrawn
from tlite import functional as F
from tlite.data import SyntheticReviews
from tlite.runs import GeneratorRun, Run
from tlite.training.metrics import read_metrics

pytest.importorskip("sklearn")
pytestmark = pytest.mark.usefixtures("one_device")
LETTERS = ["a b c d", "d c b", "a a a a a", "b"]
REVIEWS = ["The sound is superb.", 'Grüße "☕"', "The price is awful. The lamp is weak."]
QUOTED, READ = (" ".join(map(shlex.quote, texts)) for texts in (LETTERS, REVIEWS))
LONG = "a b c d a b c d a b c d"


def records(out):
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in out.removesuffix("\n").split("\n")]


def number(pattern, out):
    return float(re.search(pattern + r" (\d+\.\d+)", out)[1])


# Train


def test_training_prints_loss_perplexity_and_a_sample(generator):
    (sample,) = (generator.run / "samples").iterdir()
    loss = number("\nvalidation loss", generator.printed)
    assert math.exp(loss) == pytest.approx(number("perplexity", generator.printed), rel=1e-3)
    assert sample.read_text().removeprefix("The ") in generator.printed
    assert len(sample.read_text()) == len("The ") + 500
    assert f"tlite generate {generator.run}" in generator.printed


def test_resume_auto_creates_a_run_then_resumes_it(works, text, monkeypatch):
    monkeypatch.setattr(GeneratorRun, "report", lambda *_: None)
    line = f"train my_text --path {text} --context 16 --width 8 --num-heads 2 --num-blocks 1"
    line += " --batch-size 4 --precision float32 --evaluate-every 2 --steps 4"
    line += " --resume auto --run here"

    works(line)
    losses = [x["loss"] for x in read_metrics(Path("here/metrics.jsonl"))]
    shutil.rmtree("here/checkpoints/4")
    assert "step 4" in works(line)
    assert [x["loss"] for x in read_metrics(Path("here/metrics.jsonl"))] == losses


# Evaluate


def test_evaluation_gives_the_losses_of_training_again(works, generator):
    lines = read_metrics(generator.run / "metrics.jsonl")
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "validation"}
    best = min(losses, key=losses.get)
    for checkpoint, step in {"2": 2, "last": 4, "best": best}.items():
        out = works(f"evaluate {{generator}} --checkpoint {checkpoint}")
        assert out.startswith(f"step {step}: ")
        assert number("validation loss", out) == pytest.approx(losses[step], abs=6e-5)
        assert out.splitlines()[0].endswith(" 134 characters")


def test_evaluate_and_inspect_load_no_optimizer(
    works, fails, generator, classifier, without_training, monkeypatch
):
    """Less memory than training needs is enough for them."""
    undrawn(monkeypatch)
    works("evaluate {generator}")
    works("inspect {classifier} --to pictures")
    assert without_training == {"parameters"}
    assert "would need" in fails("train --resume {generator}")


ENSEMBLE = "the ensemble of all 2 replicas"


def test_a_classifiers_ensemble_is_scored_beside_its_replicas(works, classifier, monkeypatch):
    monkeypatch.setattr(Run, "save_plots", lambda *_: None)
    out = works("evaluate {classifier} --replica all")
    run = Run.open(classifier.run)
    examples = [e for e in run.built.validation if e.label is not None]
    by_replica, _ = run.predict([e.text for e in examples])
    labels = np.array([e.label for e in examples])
    chosen = by_replica[:, np.arange(len(labels)), labels].astype(np.float64)
    right = 100 * (by_replica.mean(0).argmax(-1) == labels).mean()
    losses = -np.log(chosen).mean(1)
    expected = (
        f"{ENSEMBLE}: accuracy {right:.1f} %, loss {-np.log(chosen.mean(0)).mean():.4f} "
        f"(single replicas: {losses.mean():.4f} (SD {losses.std(ddof=1):.4f}))\n"
    )
    assert expected in out
    assert "scores by class (the ensemble)" in out
    single = works("evaluate {classifier}").splitlines()
    assert single[0] in out  # the replicas' own accuracy
    assert ENSEMBLE not in "".join(single)


def test_a_generators_ensemble_is_scored_on_every_token(works, generator):
    single, message, interval = works("evaluate {generator} --replica all").splitlines()
    assert works("evaluate {generator}") == f"{single}\n{interval}\n"
    validation = Run.open(generator.run).built.validation
    inputs, targets, weights = map(jnp.asarray, validation.windows())
    model, _ = library.load(generator.run, replica="all")
    losses = jax.jit(lambda model: F.token_cross_entropy(model(inputs), targets))(model)
    loss = float((weights * losses).sum() / weights.sum())
    bits = loss * validation.targets_per_byte / np.log(2)
    pattern = rf"{ENSEMBLE}: loss (\S+) nats per character, perplexity (\S+), (\S+) bits per byte, "
    values = [float(value) for value in re.match(pattern, message).groups()]
    np.testing.assert_allclose(values, [loss, np.exp(loss), bits], atol=1e-3)


def test_a_text_is_scored_by_one_replica_or_the_ensemble(works, text):
    lines = [works(f"evaluate {{generator}} --path {text} --replica {r}") for r in (0, 1, "all")]
    assert len({number("loss", line) for line in lines}) == 3


def test_a_translators_ensemble_and_its_length_penalty(works):
    """A length penalty of 0 replaces the experiment's."""
    out = works("evaluate {translator} --replica all --length-penalty 0")
    for name in ("loss", "greedy: BLEU", "greedy: exact match", "beam 3, length penalty 0:"):
        assert len(re.findall(rf"{ENSEMBLE}(?:, |: ){name}", out)) >= 1
    assert re.search(r"^greedy: BLEU \S+ \(SD ", out, re.MULTILINE)
    (line,) = works("translate {translator} 'a b c' --replica all").splitlines()
    best = works("translate {translator} 'a b c' --replica all --n-best 2").splitlines()
    assert best[0].split("\t")[2] == line


# Generate


def test_a_text_depends_on_seed_and_replica(works):
    """Samples are those of the next seeds; greedy choices have no seed."""
    write = "generate {generator} --prompt The --tokens 20 "
    first, second = (works(f"{write} --seed {seed}") for seed in (0, 1))
    assert first.startswith("The")
    assert len(first) == len("The") + 20 + len("\n")
    samples = works(write + "--samples 2")
    assert samples == f"--- sample 1\n{first}--- sample 2\n{second}"
    assert len({first, second, works(write + "--replica 1")}) == 3
    greedy = {works(write + way) for way in ("--greedy --seed 1", "--greedy", "--temperature 0")}
    assert len(greedy) == 1


# Classify


def test_classify_prints_a_table_or_json_lines(works):
    head, *rows = works(f"classify {{classifier}} {READ}").splitlines()
    *classes, _, _ = re.split(r"  +", head.strip())
    assert classes == ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]
    lines = records(works(f"classify {{classifier}} {READ} --format jsonl"))
    for row, line, text in zip(rows, lines, REVIEWS, strict=True):
        *cells, name, shown = re.split(r"  +", row.strip())
        best = max(line["probabilities"], key=line["probabilities"].get)
        assert line == {"text": text, "class": best, "probabilities": line["probabilities"]}
        assert (name, shown, list(line["probabilities"])) == (best, text, classes)
        probabilities = [*line["probabilities"].values()]
        np.testing.assert_allclose([float(cell) for cell in cells], probabilities, atol=6e-4)
    assert works("classify {classifier}", "\r\n".join(REVIEWS).encode()).splitlines()[1:] == rows


def test_replica_all_has_the_mean_of_their_probabilities(works):
    line = f"classify {{classifier}} {READ} --format jsonl --checkpoint average --replica "
    first, second, mean = (
        np.array([[*line["probabilities"].values()] for line in records(works(line + replica))])
        for replica in ("0", "1", "all")
    )
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_allclose(mean, (first + second) / 2, atol=2e-6)


# Translate


def test_translations_are_read_alike_and_printed_in_their_order(works):
    """From arguments, a file and standard input."""
    expected = works(f"translate {{translator}} {QUOTED}")
    assert len(expected.splitlines()) == len(LETTERS)
    assert set(expected) <= set("abcd \n")
    Path("input.txt").write_text("\n".join(LETTERS))
    lines = "".join(f"{text}\r\n" for text in LETTERS).encode()
    assert works("translate {translator}", lines) == expected
    assert works("translate {translator} --input input.txt", b"b b b\n") == expected

    assert works(f"translate {{translator}} {QUOTED}", b"b b b\n") == expected


def test_the_best_translations_are_printed_with_their_scores(works):
    plain = works(f"translate {{translator}} {QUOTED}").splitlines()
    lines = records(works(f"translate {{translator}} {QUOTED} --n-best 3 --format jsonl"))
    rows = works(f"translate {{translator}} {QUOTED} --n-best 3 --beam 3").splitlines()
    assert [line["text"] for line in lines] == LETTERS
    for line, best in zip(lines, plain, strict=True):
        assert list(line) == ["text", "translations"]
        scores = [row["score"] for row in line["translations"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert line["translations"][0]["translation"] == best
    assert [row.split("\t") for row in rows] == [
        [str(rank), f"{row['score']:.4f}", row["translation"], line["text"]]
        for line in lines
        for rank, row in enumerate(line["translations"], 1)
    ]
    narrow = records(works(f"translate {{translator}} {QUOTED} --beam 1 --format jsonl"))
    assert all(a["translations"][:1] != b["translations"] for a, b in zip(lines, narrow))  # noqa: B905


def test_unfinished_beams_are_not_printed(works, translator):
    """Where one token is allowed a single beam can end: the one that is empty."""
    config = json.loads((translator.run / "config.json").read_text())
    size = config["experiment"]["model"]["vocabulary_size"]
    options = f"--max-length 1 --beam {size} --n-best {size}"
    (line,) = records(works(f"translate {{translator}} 'a b' {options} --format jsonl"))
    assert [row["translation"] for row in line["translations"]] == [""]
    assert "inf" not in works(f"translate {{translator}} 'a b' {options}")


# Texts


CUT = "texts exceed the model's input and are truncated: the first is text"
UNKNOWN = "different words are unknown to the model:"
WARNINGS = {
    "classify {classifier} good '' '   ' ... ☕": [
        f"text {n} has no word in it" for n in range(2, 6)
    ],
    f"classify {{classifier}} 'a good zorp' 'blick, Zorp!' '{'good ' * 17}'": [
        f"2 of 3 {UNKNOWN} 'zorp', 'blick'",
        f"1 of 3 {CUT} 3",
    ],
    f"translate {{translator}} 'a b' 'hello a' 'a \x1b[31m' '{LONG}' --truncate": [
        f"2 of 6 {UNKNOWN} 'hello', '\\x1b[31m'",
        f"1 of 4 {CUT} 4",
    ],
    "translate {translator} 'a b'": [],
}


@pytest.mark.parametrize("line", WARNINGS)
def test_unknown_words_and_cut_texts_are_warned_of(tlite, line):
    code, out, err = tlite(line)
    assert code == 0
    assert err.splitlines() == [f"warning: {warning}" for warning in WARNINGS[line]]
    assert len(out.splitlines()) >= len(shlex.split(line)) - 3


@pytest.mark.parametrize(
    "line", ["classify {classifier} 'a \x1b[31m \x9b'", "evaluate {classifier}"]
)
def test_a_terminal_gets_no_control_characters(tlite, classifier, line, monkeypatch):
    monkeypatch.setattr(Run, "save_plots", lambda *_: None)
    classes = ["\x1b[31mred", "$x_{$", "3", "4", "5"]
    monkeypatch.setattr(SyntheticReviews, "classes", classes)
    assert "\x1b[31mred" in tlite(line)[1]
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    monkeypatch.setattr("_pytest.capture.EncodedFile.isatty", lambda _: True, raising=False)
    shown = tlite(line)[1]
    assert "␛[31mred" in shown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


# Compare and inspect


def test_compare_passes_its_options_on(tlite):
    options = "--to here --format json --smallest-effect 0.1"
    code, out, err = tlite(f"compare {{generator}} {{generator}} {options}")
    assert (code, err.split(":")[0]) == (0, "written into here")
    first, second = json.loads(out)["runs"]
    assert (first["seeds"], second["seeds"]) == (2, 2)
    assert "required_seeds" in second
    assert Path("here/curves-flops.png").stat().st_size > 1000


def test_inspect_prints_the_number_of_pictures_and_the_page(works, fails, monkeypatch):
    undrawn(monkeypatch)
    line = "inspect {classifier} --to mine --text 'The sound is superb.' --replica 1"
    out = works(line)
    pictures = [*Path("mine").glob("*.png")]
    assert out == f"{len(pictures)} pictures in mine; all of them on one page: mine/index.html\n"
    assert len(pictures) > 5
    assert works(line) == out
    (other := Path("other")).mkdir()
    (other / "cat.png").touch()
    assert "other has files that are not from inspect" in fails("inspect {classifier} --to other")
    assert [*other.iterdir()] == [other / "cat.png"]


def test_help_names_the_options_and_ends_well(works):
    for line, words in {
        "--help": "generate",
        "train --help": "copy_task, demo",
        "plan --help": "--devices",
        "classify --help": "classify [-h] [OPTIONS] RUN [TEXT ...]",
        "evaluate run --help": "evaluate [-h] [OPTIONS] RUN",
        "export run folder --help": "export [-h] [OPTIONS] RUN FOLDER",
        "train my_text --help": "--learning-rate",
        "train --resume run --help": "--steps",
    }.items():
        assert words in works(line)
