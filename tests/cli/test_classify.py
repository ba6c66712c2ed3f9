"""`tlite classify` and `tlite evaluate` of a classifier: what they print, and each mistake."""

import json
import re
import shlex

import numpy as np
import pytest

CLASSES = ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]
TEXTS = ["The sound is superb.", 'Grüße "☕"', "The price is awful. The lamp is weak."]
OPTIONS = ["", " --replica 1", " --checkpoint 2"]
QUOTED = " ".join(map(shlex.quote, TEXTS))


@pytest.fixture
def trained(classifier):
    return classifier


def records(out):
    return [json.loads(line) for line in out.splitlines()]


# What is printed


@pytest.mark.parametrize("options", OPTIONS)
def test_json_lines_have_text_class_and_probabilities(output_of, options):
    """Members and checkpoints have probabilities of their own."""
    lines = records(output_of(f"classify {{run}} {QUOTED} --format jsonl{options}"))
    assert [line["text"] for line in lines] == TEXTS
    for line in lines:
        assert list(line) == ["text", "class", "probabilities"]
        probabilities = line["probabilities"]
        assert list(probabilities) == CLASSES
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert min(probabilities.values()) >= 0
        assert line["class"] == max(probabilities, key=probabilities.get)
    assert not options or lines != records(output_of(f"classify {{run}} {QUOTED} --format jsonl"))


def test_table_and_json_lines_agree(output_of):
    head, *rows = output_of(f"classify {{run}} {QUOTED}").splitlines()
    assert re.split(r"  +", head.strip()) == [*CLASSES, "class", "text"]
    lines = records(output_of(f"classify {{run}} {QUOTED} --format jsonl"))
    for row, line in zip(rows, lines, strict=True):
        *cells, name, text = re.split(r"  +", row.strip())
        probabilities = [float(cell) for cell in cells]
        np.testing.assert_allclose(probabilities, [*line["probabilities"].values()], atol=6e-4)
        assert (name, text) == (line["class"], line["text"])


def test_texts_of_standard_input_are_its_lines(works, output_of):
    stdin = "\n".join(TEXTS)
    expected = output_of(f"classify {{run}} {QUOTED}")
    for end in ("", "\n"):
        assert works("classify {run}", (stdin + end).encode()) == expected
    assert works("classify {run}", stdin.replace("\n", "\r\n").encode()) == expected


def test_texts_without_a_word_are_warned_of_and_predicted(tlite):
    texts = ["good", "", "   ", "...", "☕"]
    code, out, err = tlite(f"classify {{run}} {' '.join(map(shlex.quote, texts))} --format jsonl")
    assert code == 0
    assert err.splitlines() == [f"warning: text {n} has no word in it" for n in (2, 3, 4, 5)]
    assert [line["text"] for line in records(out)] == texts


def test_unknown_words_and_cut_texts_are_warned_of(tlite):
    _, _, err = tlite(f"classify {{run}} 'a good zorp' 'blick, Zorp!' '{'good ' * 17}'")
    assert err.splitlines() == [
        "warning: 2 of 3 different words are unknown to the model: 'zorp', 'blick'",
        "warning: 1 of 3 texts are longer than the model reads, and cut: the first is text 3",
    ]
    assert tlite("classify {run} 'good sound'")[2] == ""
