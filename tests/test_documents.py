"""Links, commands and figures of README and RESULTS are right, and wrong ones are found."""

import re

from tests import documents
from tlite import baselines, functional, models
from tlite.models import classifier


def test_links_commands_and_figures_hold():
    assert documents.check() == []


def test_functions_in_the_table_of_equations_exist():
    text = (documents.ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    (rows,) = (rows for header, rows in documents.tables(text) if header[0] == "equation")
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert len(names) >= 40
    modules = functional, baselines, classifier, models
    assert not names - {"baselines", *(name for module in modules for name in dir(module))}


def test_pictures_are_small():
    folder = documents.ROOT / "experiments"
    sizes = [path.stat().st_size for path in (folder / "pictures").glob("*.png")]
    assert len(sizes) >= 10
    assert sum(sizes) < 400_000


def test_logs_name_no_folder_of_a_machine():
    for path in documents.RESULTS.iterdir():
        assert not re.search(r"(?<![\w.:/])/\w+/", path.read_text(encoding="utf-8")), path


def write(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_broken_links_are_found(tmp_path):
    path = write(tmp_path, "# One\n[a](#one) [b](#two) [c](no.md) ![d](https://example.org/x)")
    heading, file = documents.broken_links(path)
    assert "#two" in heading
    assert "no.md" in file


def test_unknown_commands_and_options_are_found(tmp_path):
    text = "`make nothing`\n```\ntlite train demo --no-such 3   what it does\ntlite runs\n```\n"
    option, target = documents.unknown_commands(write(tmp_path, text))
    assert "--no-such" in option
    assert "nothing" in target


def test_figures_without_a_log_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    (tmp_path / "one.log").write_text("accuracy 90.8 ± 0.4 %, 1,000 texts")
    table = "| command | tlite |\n| --- | --- |\n| `make one` | {} |\n"
    assert documents.unproven_figures(write(tmp_path, table.format("90.8 of 1,000"))) == []
    table += "| `make two` | 3.5 |\n"
    wrong, unknown = documents.unproven_figures(write(tmp_path, table.format("90.9")))
    assert "90.9 not in one.log" in wrong
    assert "no log two" in unknown


def test_tables_that_differ_from_the_logs_are_found():
    text = documents.FIGURES.read_text(encoding="utf-8")
    loss = re.search(r"1\.\d{4} \(", text)[0]
    (stale,) = documents.results_errors(text.replace(loss, "1.0000 (", 1))
    assert "run python -m experiments.tools.tables" in stale
    (by_hand,) = documents.results_errors(f"{text}\n| command | loss |\n| --- | --- |\n| a | 1 |\n")
    assert "command, loss" in by_hand
    (unseen,) = documents.results_errors(text.replace("(results/study.log)", ""))[1:]
    assert "study.log" in unseen
