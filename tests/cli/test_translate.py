"""`tlite translate`: what it prints, from where it reads, and each mistake."""

import json
import shlex

import pytest

TEXTS = ["a b c d", "d c b", "a a a a a", "b"]
QUOTED = " ".join(map(shlex.quote, TEXTS))
GIVEN = "\n".join(TEXTS)
LONG = "a b c d a b c d a b c d"


@pytest.fixture
def trained(translator):
    return translator


def records(out):
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in out.removesuffix("\n").split("\n")]


# What is printed


def test_a_translation_is_printed_for_each_text_in_its_order(works, output_of):
    lines = output_of(f"translate {{run}} {QUOTED}").splitlines()
    assert len(lines) == len(TEXTS)
    assert set("".join(lines)) <= set("abcd ")
    for text, line in zip(TEXTS[::-1], lines[::-1], strict=True):
        assert works(f"translate {{run}} '{text}'") == f"{line}\n"


def test_arguments_a_file_and_standard_input_are_read_alike(works, output_of, tmp_path):
    expected = output_of(f"translate {{run}} {QUOTED}")
    for end in ("", "\n", "\r\n"):
        content = GIVEN.replace("\n", end or "\n").encode() + end.encode()
        (tmp_path / "input.txt").write_bytes(content)
        assert works("translate {run}", content) == expected
        assert works("translate {run} --input input.txt", b"b b b\n") == expected
    assert works(f"translate {{run}} {QUOTED}", b"b b b\n") == expected


def test_json_lines_have_the_text_and_its_best_translations(output_of):
    lines = records(output_of(f"translate {{run}} {QUOTED} --n-best 3 --format jsonl"))
    assert [line["text"] for line in lines] == TEXTS
    plain = output_of(f"translate {{run}} {QUOTED}").splitlines()
    for line, best in zip(lines, plain, strict=True):
        assert list(line) == ["text", "translations"]
        assert [list(t) for t in line["translations"]] == [["translation", "score"]] * 3
        scores = [t["score"] for t in line["translations"]]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] < 0
        assert line["translations"][0]["translation"] == best
    message = output_of(f"translate {{run}} {QUOTED} --n-best 3").splitlines()
    assert [line.split("\t") for line in message] == [
        [str(place), f"{found['score']:.4f}", found["translation"], line["text"]]
        for line in lines
        for place, found in enumerate(line["translations"], 1)
    ]


def test_unfinished_beams_are_not_printed(works, trained):
    """With room for one token a single beam can end: the one that is empty."""
    config = json.loads((trained.run / "config.json").read_text())
    size = config["experiment"]["model"]["vocabulary_size"]
    options = f"--max-length 1 --beam {size} --n-best {size}"
    (line,) = records(works(f"translate {{run}} 'a b' {options} --format jsonl"))
    assert [found["translation"] for found in line["translations"]] == [""]
    assert "inf" not in works(f"translate {{run}} 'a b' {options}")


def test_the_search_of_the_experiment_is_the_default(works):
    expected = works(f"translate {{run}} {QUOTED} --format jsonl")
    assert works(f"translate {{run}} {QUOTED} --beam 3 --format jsonl") == expected
    greedy = records(works(f"translate {{run}} {QUOTED} --beam 1 --format jsonl"))
    for wide, narrow in zip(records(expected), greedy, strict=True):
        assert wide["translations"] != narrow["translations"]


def test_unknown_words_and_cut_sentences_are_warned_of(tlite):
    code, out, err = tlite(f"translate {{run}} 'a b' 'hello a' 'a \x1b[31m' '{LONG}' --truncate")
    assert (code, len(out.splitlines())) == (0, 4)
    assert err.splitlines() == [
        "warning: 2 of 6 different words are unknown to the model: 'hello', '\\x1b[31m'",
        "warning: 1 of 4 texts are longer than the model reads, and cut: the first is text 4",
    ]
    assert tlite("translate {run} 'a b'")[2] == ""
