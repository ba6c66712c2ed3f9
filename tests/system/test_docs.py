"""The site of `make docs` is complete, needs no network, and works in a browser."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

import tlite
from tests.documents import help_text
from tests.helpers.python import CHROMIUM, ROOT, python, shown_by_browser
from tlite.runs.experiment_files import find_experiments

pytest.importorskip("mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site, which fails for broken references."""
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


def test_public_names_have_an_entry_with_their_source(site):
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
            text = texts[name]
            if inspect.isclass(entry):  # the source may follow the entries of its methods
                text += "".join(t for n, t in texts.items() if n.startswith(f"{name}."))
            assert f"<code>{entry.__module__.replace('.', '/')}" in text, name
            assert "Source code in" in text, name


def types_in(config) -> frozenset[type]:
    """Return the types of a config and its components, which decide its options."""
    values = [getattr(config, field.name) for field in dataclasses.fields(config)]
    components = (types_in(value) for value in values if dataclasses.is_dataclass(value))
    return frozenset([type(config)]).union(*components)


def test_every_option_of_an_experiment_is_listed(site):
    page = (site / "options.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td>(<code>--.*?)</td>", page)
    listed = {"--help", *re.findall(r"<code>(.*?)</code>", " ".join(cells))}
    # Experiments that define their own components or runs have further options.
    custom = "record_", "hybrid", "masked_"
    names = (name for name in find_experiments() if not name.startswith(custom))
    for name in {types_in(tlite.load_experiment(name)): name for name in names}.values():
        lines = re.findall(r"(?m)^\W{1,2}(--?\w.*?)(?:  |$)", help_text(f"train {name}"))
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
    ("page", "pattern"),
    [
        ("index.html?q=scaled_dot_product_attention", r'href="\S*#\S*scaled_dot_product_attention'),
        ("notebooks/01_attention.html", "<msqrt>"),
        ("options.html", "<code>--positions.base</code>"),
    ],
)
def test_a_browser_shows_pages_without_console_messages(site, page, pattern, tmp_path):
    content = shown_by_browser(f"{site.as_uri()}/{page}", tmp_path)
    if "?" in page:
        content = content.partition("md-search-result__list")[2]
    assert re.search(pattern, content)
