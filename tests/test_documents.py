"""Links, commands and figures of README and RESULTS are right."""

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
