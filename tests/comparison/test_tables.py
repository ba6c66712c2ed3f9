"""Tables for terminals, Markdown, CSV, JSON and HTML hold any name of a run."""

import csv
import html
import io
import json
import re

import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run, fake_study
from tests.helpers.runs import varied
from tlite.comparison import tables
from tlite.comparison.results import compare_runs
from tlite.training import AdamW

NAMES = "plain", '<b>|*_`[x](y)"', "a, b\tc\nd", "日本語", "n" * 100, '"><img src=x onerror=a(1)>'
FINAL = np.array([1.5, 1.6, 1.55])


def make(folder, names=("a", "b"), experiments=None, **settings):
    experiments = experiments or [GENERATOR] * len(names)
    rng, folders = np.random.default_rng(0), []
    for index, (name, experiment) in enumerate(zip(names, experiments, strict=True)):
        final = FINAL + 0.2 * index + rng.normal(0, 0.01, 3)
        folders.append(fake_run(folder / name, experiment, final, **settings))
    return compare_runs(folders)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Results of runs with odd names."""
    rates = [varied(GENERATOR, learning_rate=0.1 * i) for i in range(len(NAMES))]
    return make(tmp_path_factory.mktemp("odd"), NAMES, rates)


def test_numbers_of_a_row(tmp_path):
    result = make(tmp_path)
    header, _, row = tables.result_table(result)
    cells = dict(zip(header, row, strict=True))
    assert cells[""] == "b"
    values = [*result.runs[1].values(result.metric).values()]
    expected = f"{np.mean(values):.3f} ({np.std(values, ddof=1):.3f})"
    assert cells["validation loss (nats), mean (SD)"] == expected
    assert re.fullmatch(r"\+0\.19\d+ ± 0\.\d+", cells["minus a ± 95 % CI"])
    assert (cells["seeds"], cells["at step"], cells["steps"]) == ("3", "40", "40")
    assert cells["parameters"] == "1,947"
    flops = 6 * (1947 - 11 * 8 - 8 * 8) + 12 * 2 * 8 * 8  # a token's; two tables are looked up
    assert cells["FLOPs a seed"] == f"{40 * 4 * 8 * flops:.3g}".replace("e+", "e") == "1.58e07"
    assert cells["tokens/s"] == "1,000"
    assert cells["minutes"] == "0.06"  # 40 steps of 3 x 4 x 8 tokens
    (header, _) = tables.result_table(make(tmp_path / "one", ["a"]))
    assert "minus" not in " ".join(header)


@pytest.mark.parametrize("until", [0, 5])
def test_an_unfinished_run_has_both_numbers_of_steps(tmp_path, until):
    result = make(tmp_path, until=until)
    header, _, row = tables.result_table(result)
    cells = dict(zip(header, row, strict=True))
    assert cells["steps"] == f"{until} of 40"
    assert cells["validation loss (nats)"] == cells["minus a ± 95 % CI"] == cells["at step"] == "–"
    assert (cells["minutes"] == "–") == (until == 0)
    assert [entry["mean"] for entry in json.loads(tables.to_json(result))["runs"]] == [None, None]
    assert len(tables.to_csv(result).splitlines()) == 3


def test_a_failed_variant_has_its_reason(tmp_path):
    fake_run(tmp_path / "study" / "a", GENERATOR)
    fake_run(tmp_path / "study" / "b", GENERATOR)
    folder = fake_study(tmp_path / "study", {"a": "a", "b": "b"}, later={"b": "no memory"})
    records = json.loads(tables.to_json(compare_runs([folder])))["runs"]
    assert [record["failed"] for record in records] == [None, "no memory"]


def test_differences_have_a_minus_sign_and_a_short_header(tmp_path):
    shifts = {"a name that is too long for a header": 1.0, "b": 1.1}
    folders = [fake_run(tmp_path / name, CLASSIFIER, FINAL - by) for name, by in shifts.items()]
    header, _, row = tables.result_table(compare_runs(folders))
    assert "minus the reference ± 95 % CI" in header
    assert row[2].startswith("\N{MINUS SIGN}10.0")
    assert header[1] == "validation accuracy (%), mean (SD)"


def test_differing_fields_are_rows_if_they_outnumber_runs(tmp_path):
    assert tables.field_table(make(tmp_path / "same")) == []
    other = varied(GENERATOR, norm="rms", learning_rate=0.5, optimizer=AdamW(b2=0.9))
    first, *table = tables.field_table(make(tmp_path / "many", experiments=[GENERATOR, other]))
    assert first == ["differs", "a", "b"]
    assert [row[0] for row in table] == ["norm.method", "learning_rate", "b2"]
    one = varied(GENERATOR, norm="rms")
    table = tables.field_table(make(tmp_path / "one", experiments=[GENERATOR, one]))
    assert table == [["differs", "norm.method"], ["a", "layer"], ["b", "rms"]]


def test_text_is_aligned_also_with_wide_letters(odd):
    fields, rows, sentences, notes = tables.to_text(odd).split("\n\n")
    lines = rows.splitlines()
    assert len({len(line) for line in lines[:2]}) == 1
    assert fields.splitlines()[0].split() == ["differs", "learning_rate"]
    assert len(sentences.splitlines()) == len(NAMES) - 1
    assert notes.startswith("note: ")
    wide = next(line for line in lines if line.startswith("日本語"))
    plain = next(line for line in lines if line.startswith("plain"))
    assert len(wide) == len(plain) - 3  # each letter takes two columns


def test_markdown_has_equally_many_cells_per_line_and_no_tag(odd):
    text = tables.to_markdown(odd)
    assert "<" not in text
    assert r"&lt;b&gt;\|\*\_\`\[x\](y)" in text
    for table in text.split("\n\n")[:2]:
        cells = {line.replace(r"\|", "").count("|") for line in table.splitlines()}
        assert len(cells) == 1
    assert text.count("\n- ") == len([*odd.conclusions, *odd.notes])


def test_csv_and_json_are_read_back(odd):
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(odd))))
    content = json.loads(tables.to_json(odd))
    values = [row.values(odd.metric) for row in odd.runs]
    assert [row["label"] for row in rows] == [row.label for row in odd.runs]
    assert [float(row["mean"]) for row in rows] == [np.mean([*v.values()]) for v in values]
    assert rows[0]["difference"] == rows[0]["low"] == ""
    assert float(rows[1]["low"]) < float(rows[1]["difference"]) < float(rows[1]["high"])
    assert rows[2]["config.learning_rate"] == "0.2"
    assert (content["metric"], content["lower_is_better"]) == ("loss", True)
    assert content["conclusions"] == odd.conclusions
    entry = content["runs"][1]
    assert entry["values"] == {str(seed): v for seed, v in values[1].items()}
    assert entry["mean"] == float(rows[1]["mean"])
    assert (entry["method"], entry["config"]) == ("paired", {"learning_rate": "0.1"})


def test_a_page_has_every_sentence_and_number_offline(odd):
    page = tables.to_html(odd, {"a.png": ("caption < & \"b\" 'c'", b"picture")})
    known = "html head meta title style body h1 h2 ul li div table tr th td figure img figcaption"
    assert {*re.findall(r"<(\w+)", page)} <= {*known.split()}
    assert "onerror=" not in re.sub(r">[^<]*<", "><", page)
    inside = re.sub(r'src="data:image/png;base64,[^"]*"', "", page)
    assert not re.search(r"<link|@import|url\(|<[^>]*(src|href)=|<script|https?:", inside)
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in page
    assert page.startswith("<!doctype html>")
    assert f"<h1>Compared: {len(NAMES)} runs</h1>" in page
    text = html.unescape(re.sub(r"<[^>]*>", "\n", page))
    cells = [cell for row in [*tables.result_table(odd), *tables.field_table(odd)] for cell in row]
    assert all(expected in text for expected in [*odd.conclusions, *odd.notes, *cells])
