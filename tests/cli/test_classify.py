"""`tlite classify` and `tlite evaluate` of a classifier: what they print, and each mistake."""

import json
import re
import shlex

import numpy as np
import pytest

CLASSES = ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]
TEXTS = ["The sound is superb.", 'Grüße "☕"', "The price is awful. The lamp is weak."]
OPTIONS = ["", " --member 1", " --checkpoint 2"]
QUOTED = " ".join(map(shlex.quote, TEXTS))


@pytest.fixture
def trained(classifier):
    return classifier


def records(out):
    return [json.loads(line) for line in out.splitlines()]


# What is printed


@pytest.mark.parametrize("options", OPTIONS)
def test_json_lines_have_text_class_and_probabilities_that_sum_to_1(said, options):
    lines = records(said(f"classify {{run}} {QUOTED} --format jsonl{options}"))
    assert [line["text"] for line in lines] == TEXTS
    for line in lines:
        assert list(line) == ["text", "class", "probabilities"]
        probabilities = line["probabilities"]
        assert list(probabilities) == CLASSES
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert min(probabilities.values()) >= 0
        assert line["class"] == max(probabilities, key=probabilities.get)


def test_the_table_says_the_same_as_the_json_lines(said):
    head, *rows = said(f"classify {{run}} {QUOTED}").splitlines()
    assert re.split(r"  +", head.strip()) == [*CLASSES, "class", "text"]
    lines = records(said(f"classify {{run}} {QUOTED} --format jsonl"))
    for row, line in zip(rows, lines, strict=True):
        *cells, name, text = re.split(r"  +", row.strip())
        probabilities = [float(cell) for cell in cells]
        np.testing.assert_allclose(probabilities, [*line["probabilities"].values()], atol=6e-4)
        assert (name, text) == (line["class"], line["text"])


def test_a_long_text_is_cut_in_the_table_only(works):
    text = "The sound is superb. " * 20
    row = works(f"classify {{run}} '{text}'").splitlines()[1]
    assert row.endswith("…")
    assert len(row) < 140
    (line,) = records(works(f"classify {{run}} '{text}' --format jsonl"))
    assert line["text"] == text


def test_texts_of_standard_input_are_its_lines(works, said):
    given = "\n".join(TEXTS)
    expected = said(f"classify {{run}} {QUOTED}")
    for end in ("", "\n"):
        assert works("classify {run}", (given + end).encode()) == expected
    assert works("classify {run}", given.replace("\n", "\r\n").encode()) == expected


def test_members_and_checkpoints_give_probabilities_of_their_own(said):
    assert len({said(f"classify {{run}} {QUOTED} --format jsonl{o}") for o in OPTIONS}) == 3


def test_texts_without_a_word_are_warned_of_and_predicted(tlite):
    texts = ["good", "", "   ", "...", "☕"]
    code, out, err = tlite(f"classify {{run}} {' '.join(map(shlex.quote, texts))} --format jsonl")
    assert code == 0
    assert err.splitlines() == [f"warning: text {n} has no word in it" for n in (2, 3, 4, 5)]
    assert [line["text"] for line in records(out)] == texts


def test_words_that_are_not_known_and_texts_that_are_cut_are_told(tlite):
    _, _, err = tlite(f"classify {{run}} 'a good zorp' 'blick, Zorp!' '{'good ' * 17}'")
    assert err.splitlines() == [
        "warning: 2 of 3 different words are unknown to the model: 'zorp', 'blick'",
        "warning: 1 of 3 texts are longer than the model reads, and cut: the first is text 3",
    ]
    assert tlite("classify {run} 'good sound'")[2] == ""


def test_evaluation_prints_scores_and_saves_pictures(works, copied):
    out = works("evaluate {copied} --split test --member 1", copied=copied)
    assert re.match(r"step \d: test accuracy \d+\.\d ± \d+\.\d %, 10 texts\n", out)
    assert "scores by class (member 1)" in out
    pictures = {path.name for path in (copied / "plots").glob("test-*.png")}
    assert pictures == {"test-confusion.png", "test-probability.png", "test-predictions.png"}


# Mistakes


TRAIN = "train reviews_demo --reviews 60 "
MISTAKES = {
    "classify {run}": "nothing to classify: give texts, or lines on standard input",
    "evaluate {run} --beam 3": "no option --beam for a classifier's run",
    "evaluate {run} --member 2": "no member 2: the run has 2",
    TRAIN + "--min-document-frequency 99999": "no word is in 99,999 texts",
    TRAIN + "--num-classes 3": "num_classes is 3, but the data has 5",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_changes_nothing(line, fails, trained, tmp_path):
    pattern = MISTAKES[line].replace("{run}", str(trained.run)).replace("?", r"\?")
    assert re.search(pattern, fails(line))
    assert list(tmp_path.iterdir()) == []
