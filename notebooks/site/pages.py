"""MkDocs hook that generates the pages of `make docs`.

Documents keep their paths, and every file that a document links to gets a page.
"""

import base64
import dataclasses
import html
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import griffe
import tyro
from docstrings import public_names
from latex2mathml.converter import convert
from mkdocs.structure.files import File
from tyro.constructors import ConstructorRegistry, StructTypeInfo

from tlite.cli.commands import Plan, Train
from tlite.cli.overrides import component_words
from tlite.config import word_parser
from tlite.experiment import ClassifierExperiment, GeneratorExperiment, TranslatorExperiment
from tlite.models import TransformerConfig
from tlite.models.components import FeedForwardFunction, NormFunction, PositionsFunction
from tlite.models.config import PRESETS
from tlite.models.custom import CONTRACTS, OBJECT_CONTRACTS
from tlite.training.config import UpdateConfig

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
FOLDER = ROOT / "notebooks" / "guides"
LISTED = re.findall(r"\((\w+\.md)\)", (FOLDER / "README.md").read_text("utf-8"))
GUIDES = [FOLDER / name for name in ("README.md", *LISTED)]
TABLE = ROOT / "notebooks" / "README.md"  # of equations and their functions
DOCUMENTS = "README.md", "CHANGELOG.md", "experiments/RESULTS.md", "experiments/LOG.md"
PACKAGE = griffe.load("tlite", search_paths=[ROOT])
PACKAGES = public_names(PACKAGE)
PATHS = {
    name: f"{home}.{name}"
    for modules in PACKAGES.values()
    for home in modules
    for name in modules[home]
}
LINK = re.compile(r'(\]\(|src(?:set)?=")([^)"#\s:]+)(?=[)"#])')
NAME = re.compile(r"(?<!`)`(\w+)`(?!`)")


def on_config(config):
    notebooks = ["notebooks/README.md", *map(uri, NOTEBOOKS)]
    config.nav = [
        {"tlite": ["README.md", "contracts.md", "options.md", "CHANGELOG.md"]},
        {"Guides": [*map(uri, GUIDES)]},
        {"Notebooks": notebooks},
        {"API": [{name: uri(ROOT / name.replace(".", "/"))} for name in PACKAGES]},
        {"Results": ["experiments/RESULTS.md", "experiments/LOG.md"]},
    ]


def on_files(files, config):
    pages = {uri(ROOT / name.replace(".", "/")): api(name) for name in PACKAGES}
    pages |= {"contracts.md": contracts(), "options.md": options()}
    paths = [TABLE, *(ROOT / name for name in DOCUMENTS), *GUIDES, *NOTEBOOKS]
    while paths:
        path = paths.pop()
        if (name := uri(path)) in pages:
            continue
        if path.suffix == ".png":
            pages[name] = path.read_bytes()
            continue
        if path.suffix == ".ipynb":
            text, figures = notebook_text(path)
            pages |= figures
            pages[name], linked = link_pages(text, path)
        elif path.suffix == ".md":
            pages[name], linked = link_pages(path.read_text("utf-8"), path)
        else:
            pages[name], linked = source_page(path)
        paths += linked
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))


def on_page_content(content, **_):
    """Convert formulas to MathML, which needs no script, and exclude sources from the search."""

    def to_mathml(match: re.Match) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2]), display=display)

    formula = r'<(span|div) class="arithmatex">\\[([](.*?)\\[])]</\1>'
    content = re.sub(formula, to_mathml, content, flags=re.S)
    return content.replace("<details class=", "<details data-search-exclude class=")


# Documents


def uri(path: Path) -> str:
    """Return the path of the page of a file or folder."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir() or name == "tlite/experiment":
        return f"{name}/index.md"
    return name if path.suffix in (".md", ".png") else f"{name.removesuffix('.ipynb')}.md"


def link_pages(text: str, path: Path) -> tuple[str, list[Path]]:
    """Return a document with links to pages and public names, and the files that it links to."""
    linked = []

    def link_file(match: re.Match) -> str:
        target = Path(os.path.normpath(path.parent / match[2]))
        if not (target.exists() and target.is_relative_to(ROOT)):
            return match[0]  # MkDocs warns of it
        linked.append(target)
        return match[1] + os.path.relpath(uri(target), Path(uri(path)).parent)

    def link_name(match: re.Match) -> str:
        is_name = re.search("_|.[A-Z]", match[1]) or path == TABLE  # `linear` may be a plain word
        return f"[{match[0]}][{PATHS[match[1]]}]" if is_name and match[1] in PATHS else match[0]

    return NAME.sub(link_name, LINK.sub(link_file, text)), linked


def notebook_text(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its figures."""
    parts, figures = [], {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else fenced(text, "python"))
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                parts.append(fenced("".join(output["text"]), "text"))
                continue
            name = f"{path.stem}-{len(figures)}.png"
            figures[f"notebooks/{name}"] = base64.b64decode(output["data"]["image/png"])
            parts.append(f"![]({name})")
    return "\n\n".join(parts), figures


def fenced(text: str, language: str) -> str:
    return f"``````{language}\n{text.rstrip()}\n``````"


def source_page(path: Path) -> tuple[str, list[Path]]:
    """Return the page of a file or folder, excluded from the search, and the files in a folder."""
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".py", ".log", ".md"))
        return head + "\n".join(f"- [{f.name}]({Path(uri(f)).name})" for f in files), files
    language = "python" if path.suffix == ".py" else "text"
    return head + fenced(path.read_text("utf-8"), language), []


# The library


def api(package: str) -> str:
    """Return the page of a package: its own names, then those of its modules."""
    parts = [f"---\ntitle: {package}\nsearch: {{boost: 2}}\n---"]
    for home in dict.fromkeys((package, *PACKAGES[package])):
        level, members = 1 if home == package else 2, json.dumps(PACKAGES[package].get(home, []))
        settings = f"{{heading_level: {level}, show_root_heading: true, members: {members}}}"
        parts.append(f"::: {home}\n    options: {settings}")
    return "\n\n".join(parts)


def contracts() -> str:
    """Return the page on arguments and results of custom components, and on their probe."""
    options = "    options: {members: false, show_root_heading: false, show_root_toc_entry: false}"
    sections = ["# Contracts of components", f"::: tlite.models.custom\n{options}"]
    objects = CONTRACTS | OBJECT_CONTRACTS
    for title, contracts in (("A function", CONTRACTS), ("A dataclass with `init`", objects)):
        rows = (f"| `{slot}` | {plain(contract)} |" for slot, contract in contracts.items())
        sections += [f"## {title}", "\n".join(["| component | contract |", "| --- | --- |", *rows])]
    sections += ["## Checks before a run", f"::: tlite.models.custom.probe\n{options}"]
    guide = FOLDER / "own_component.md"
    example = re.search(r"^```python\n.*?^```", guide.read_text("utf-8"), re.S | re.M)[0]
    sections += ["## Example", example, f"Explained in [the guide]({uri(guide)})."]
    return "\n\n".join(sections)


# The options of an experiment


def options() -> str:
    """Return the page of all options of experiments, by the class that defines them."""
    parts = [
        "# Options of an experiment",
        "Every field of an experiment is an option of `tlite train NAME` and of `tlite plan NAME`. "
        "A word selects a component of the model, and a dot selects one of its fields: "
        "`--positions rotary --positions.base 7`. Data, tokenizer and pretraining are set in the "
        "experiment's file; their fields are options too (with the prefix `--data.` if data and "
        "pretraining have a field of the same name). Defaults are those of the classes; `--help` "
        "shows those of an experiment.",
    ]
    kinds = GeneratorExperiment, ClassifierExperiment, TranslatorExperiment, Train, Plan
    for kind, prefix in dict.fromkeys(section for each in kinds for section in sections(each)):
        if not (rows := list(table(kind, prefix))):
            continue
        text = plain((kind.__doc__ or "").split("\n\n")[0])
        presets = PRESETS.get(prefix[:-1], {}).items()
        if words := [f"`{word}`" for word, preset in presets if type(preset) is kind]:
            text += f" `--{dashed(prefix[:-1])}` {', '.join(words)}."
        if (path := f"{kind.__module__}.{kind.__name__}") in PATHS.values():
            text += f" [From Python][{path}]."
        lines = ["| option | default | description |", "| --- | --- | --- |", *rows]
        parts += [f"## {kind.__name__}", text, "\n".join(lines)]
    return link_pages("\n\n".join(parts), ROOT / "options.md")[0]


def fields(kind: type) -> Iterator[Any]:
    """Yield the fields that a class does not inherit, as tyro parses them."""
    info = StructTypeInfo.make(kind, tyro.MISSING, in_union_context=False)
    for field in ConstructorRegistry.get_struct_spec(info).fields:
        if field.name in vars(kind).get("__annotations__", ()):
            yield field


def sections(kind: type, prefix: str = "") -> Iterator[tuple[type, str]]:
    """Yield a class, its bases and the classes of its fields, with the prefix of their options."""
    for base in kind.__bases__:
        if dataclasses.is_dataclass(base):
            yield from sections(base, prefix)
    yield kind, prefix
    hidden = {f.name for f in dataclasses.fields(kind) if not f.metadata.get("option", True)}
    for field in fields(kind):
        is_nested = prefix or issubclass(kind, TransformerConfig | UpdateConfig)
        inner = f"{prefix}{field.name}." if is_nested else ""
        is_word = field.name == "tokenizer" and kind is GeneratorExperiment
        if not is_word and field.name not in hidden:
            for part in classes(field.type):
                yield from sections(part, inner)


def classes(kind: Any) -> list[type]:
    """Return the dataclasses that a field may hold, without adapters of functions."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    adapters = FeedForwardFunction, NormFunction, PositionsFunction
    candidates = (each for each in get_args(kind) or (kind,) if dataclasses.is_dataclass(each))
    return [each for each in candidates if not issubclass(each, adapters)]


def table(kind: type, prefix: str) -> Iterator[str]:
    """Yield a row for each option of a class."""
    by_name = {field.name: field for field in dataclasses.fields(kind)}
    for field in fields(kind):
        entry, hint = by_name[field.name], get_type_hints(kind)[field.name]
        words = component_words(entry, hint)
        is_hidden = not entry.metadata.get("option", True)
        if is_hidden or (classes(field.type) and not words and not word_parser(entry, hint)):
            continue
        option = f"`--{dashed(prefix + field.name)}`"
        if field.type is bool:
            option += f", `--{dashed(prefix)}no-{dashed(field.name)}`"
        text = plain(field.helptext() if callable(field.helptext) else field.helptext or "")
        choices = list(words) or [c for c in literals(field.type) if isinstance(c, str)]
        if len(choices) > 1:
            text += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        yield f"| {option} | {default(entry, words)} | {text} |"


def literals(kind: Any) -> Iterable[Any]:
    """Return the values of all literals in a type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return [value for each in get_args(kind) for value in literals(each)]


def default(field: dataclasses.Field, words: dict[str, Any]) -> str:
    """Return the default of a field; that of a component is its word."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "required"
    if value in (None, (), ""):
        return ""
    is_component = dataclasses.is_dataclass(value)
    text = type(value).__name__.lower() if is_component else repr(value)
    text = next((word for word, preset in words.items() if preset == value), text)
    short = text if len(text) <= 24 else f"{text[:23]}…"
    return f'<code class="default">{plain(short)}</code>'


def dashed(name: str) -> str:
    return name.replace("_", "-")


def plain(text: str) -> str:
    """Return text for a table's cell, on one line and without Markdown except code."""
    return re.sub(r"([*|<\[])", r"\\\1", " ".join(text.split())).replace("\\<", "&lt;")
