"""The site of `make docs`: whole, with sources, and as a reader meets it in a real browser."""

import contextlib
import importlib
import inspect
import io
import re
from pathlib import Path

import pytest

import tlite
from tests.helpers.browser import CHROMIUM, shown_by_browser
from tests.helpers.python import ROOT, python
from tlite.cli import main
from tlite.runs.experiment_files import find_experiments

pytest.importorskip("mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A reference that leads nowhere would end the build."""
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "-f", ROOT / "notebooks" / "site" / "mkdocs.yml", "-d", folder]
    done = python("-m", "mkdocs", *words, NO_MKDOCS_2_WARNING="1")
    assert done.code == 0, done.out + done.err
    return folder


def public_entries(package) -> set:
    """Return the functions and classes that a package defines and exports."""
    public = getattr(package, "__all__", [name for name in dir(package) if name[0] != "_"])
    values = [getattr(package, name) for name in public]
    values = [value for value in values if inspect.isfunction(value) or inspect.isclass(value)]
    return {value for value in values if f"{value.__module__}.".startswith(f"{package.__name__}.")}


def test_all_that_is_public_has_an_entry_with_its_source(site):
    packages = [importlib.import_module(f"tlite.{name}") for name in tlite.FOLDERS]
    assert all(public_entries(package) for package in packages)
    pages = {package.__name__: public_entries(package) for package in packages}
    pages["tlite"] = {tlite.load, tlite.load_experiment, tlite.train, tlite.override}
    for package, entries in pages.items():
        page = (site / package.replace(".", "/") / "index.html").read_text(encoding="utf-8")
        parts = re.split(r'<h[1-6] id="(tlite[\w.]*)" class="doc', page)
        texts = dict(zip(parts[1::2], parts[2::2], strict=True))
        for entry in entries:
            name = f"{entry.__module__}.{entry.__qualname__}"
            file = f"{entry.__module__.replace('.', '/')}"
            text = texts[name]
            if inspect.isclass(entry):  # its source stands before its replicas, or after bases
                text += "".join(t for n, t in texts.items() if n.startswith(f"{name}."))
            assert f"<code>{file}" in text, name
            assert "Source code in" in text, name


def test_every_option_of_an_experiment_has_its_line(site):
    page = (site / "options.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td>(<code>--.*?)</td>", page)
    listed = {"--help", *re.findall(r"<code>(.*?)</code>", " ".join(cells))}
    # Experiments that define components or kinds of runs have options that the page lacks.
    custom = "record_", "hybrid", "masked_language_model"
    for name in (name for name in find_experiments() if not name.startswith(custom)):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(["train", name, "--help"]) == 0
        lines = re.findall(r"(?m)^\W{1,2}(--?\w.*)", said.getvalue())
        options = set(re.findall(r"--[a-z][\w.-]*", " ".join(lines).replace("--data.", "--")))
        assert "--training.steps" in options or "--steps" in options
        assert options <= listed, name


def test_no_page_needs_the_network(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'(?:src|srcset)="(?:https?:)?//', text), page
        assert not re.search(r'<link [^>]*rel="stylesheet"[^>]*href="(?:https?:)?//', text), page


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("index.html?q=scaled_dot_product_attention", r'href="\S*#\S*scaled_dot_product_attention'),
        ("tlite/functional/index.html", 'id="tlite.functional.layers.linear"'),
        ("notebooks/01_attention.html", "<msqrt>"),
        ("options.html", "<code>--positions.base</code>"),
        ("contracts.html", "feed_forward"),
        ("experiments/RESULTS.html", "record-trec"),
    ],
)
def test_a_browser_shows_it_and_complains_of_nothing(site, page, shown, tmp_path):
    content = shown_by_browser(f"{site.as_uri()}/{page}", tmp_path)
    found = content if "?" not in page else content.partition("md-search-result__list")[2]
    assert re.search(shown, found)
