"""The pages of the site that `make docs` builds: a hook of MkDocs.

A document lies as it does in the tree, so what it links to comes along by the same path: another
document, a picture, or a file of text, which gets a page of its own.
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

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
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
        {"Notebooks": notebooks},
        {"API": [{name: uri(ROOT / name.replace(".", "/"))} for name in PACKAGES]},
        {"Results": ["experiments/RESULTS.md", "experiments/LOG.md"]},
    ]


def on_files(files, config):
    made = {uri(ROOT / name.replace(".", "/")): api(name) for name in PACKAGES}
    made |= {"contracts.md": contracts(), "options.md": options()}
    left = [TABLE, *(ROOT / name for name in DOCUMENTS), *NOTEBOOKS]
    while left:
        path = left.pop()
        if (name := uri(path)) in made:
            continue
        if path.suffix == ".png":
            made[name] = path.read_bytes()
        elif path.suffix in (".md", ".ipynb"):
            text, figures = (
                cells(path) if path.suffix == ".ipynb" else (path.read_text("utf-8"), {})
            )
            made[name], linked = with_links(text, path)
            made |= figures
            left += linked
        else:
            made[name], linked = source(path)
            left += linked
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))


def on_page_content(content, **_):
    """Formulas as MathML, which browsers draw without a script; no search finds a source twice."""

    def drawn(match: re.Match) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2]), display=display)

    formula = r'<(span|div) class="arithmatex">\\[([](.*?)\\[])]</\1>'
    content = re.sub(formula, drawn, content, flags=re.S)
    return content.replace("<details class=", "<details data-search-exclude class=")


# Documents


def uri(path: Path) -> str:
    """Where a file of the tree, or a folder, has its page."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir() or name == "tlite/experiment":
        return f"{name}/index.md"
    return name if path.suffix in (".md", ".png") else f"{name.removesuffix('.ipynb')}.md"


def with_links(text: str, path: Path) -> tuple[str, list[Path]]:
    """A document whose links lead to pages, with names of the library as links; and the linked."""
    linked = []

    def led(match: re.Match) -> str:
        target = Path(os.path.normpath(path.parent / match[2]))
        if not (target.exists() and target.is_relative_to(ROOT)):
            return match[0]  # which is told
        linked.append(target)
        return match[1] + os.path.relpath(uri(target), Path(uri(path)).parent)

    def named(match: re.Match) -> str:
        plainly = re.search("_|.[A-Z]", match[1]) or path == TABLE  # other words have other senses
        return f"[{match[0]}][{PATHS[match[1]]}]" if plainly and match[1] in PATHS else match[0]

    return NAME.sub(named, LINK.sub(led, text)), linked


def cells(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as it was executed, and its figures."""
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


def source(path: Path) -> tuple[str, list[Path]]:
    """The page of a file, which the search leaves out; of a folder, its files."""
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".py", ".log", ".md"))
        return head + "\n".join(f"- [{f.name}]({Path(uri(f)).name})" for f in files), files
    language = "python" if path.suffix == ".py" else "text"
    return head + fenced(path.read_text("utf-8"), language), []


# The library


def api(package: str) -> str:
    """Return the page of a package: first its own names, then those of its modules."""
    parts = [f"---\ntitle: {package}\nsearch: {{boost: 2}}\n---"]
    for home in dict.fromkeys((package, *PACKAGES[package])):
        level, members = 1 if home == package else 2, json.dumps(PACKAGES[package].get(home, []))
        settings = f"{{heading_level: {level}, show_root_heading: true, members: {members}}}"
        parts.append(f"::: {home}\n    options: {settings}")
    return "\n\n".join(parts)


def contracts() -> str:
    """Return the page on arguments and results of components, and on their probe."""
    sections = ["# Contracts of components", described("tlite.models.custom")]
    objects = CONTRACTS | OBJECT_CONTRACTS
    for title, contracts in (("A function", CONTRACTS), ("A dataclass with `init`", objects)):
        lines = ["| component | contract |", "| --- | --- |"]
        lines += [f"| `{slot}` | {plain(contract)} |" for slot, contract in contracts.items()]
        sections += [f"## {title}", "\n".join(lines)]
    probed = ["## Checks before a run", described("tlite.models.custom.probe")]
    return "\n\n".join([*sections, *probed])


def described(path: str) -> str:
    """A docstring alone."""
    hidden = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
    return f"::: {path}\n    options: {hidden}"


# The options of an experiment


def options() -> str:
    """Every option of every experiment, by the class whose field it is."""
    parts = [
        "# Options of an experiment",
        "Every field of an experiment is an option of `tlite train NAME` and of `tlite plan NAME`. "
        "A word chooses a part of the model, and a dot leads to its numbers: `--positions rotary "
        "--positions.base 7`. What its data, tokenizer and pretraining are an experiment's file "
        "says; their fields are options too (where data and pretraining have one of the same name, "
        "those of the data begin with `--data.`). Defaults are those of the classes; an "
        "experiment's file gives others, which its `--help` shows.",
    ]
    kinds = GeneratorExperiment, ClassifierExperiment, TranslatorExperiment, Train, Plan
    for kind, prefix in dict.fromkeys(section for each in kinds for section in sections(each)):
        if not (rows := list(table(kind, prefix))):
            continue
        said = plain((kind.__doc__ or "").split("\n\n")[0])
        words = [word for word, part in PRESETS.get(prefix[:-1], {}).items() if type(part) is kind]
        if words:
            said += f" `--{dashed(prefix[:-1])}` {', '.join(f'`{word}`' for word in words)}."
        if (path := f"{kind.__module__}.{kind.__name__}") in PATHS.values():
            said += f" [From Python][{path}]."
        lines = ["| option | default | what it is |", "| --- | --- | --- |", *rows]
        parts += [f"## {kind.__name__}", said, "\n".join(lines)]
    return with_links("\n\n".join(parts), ROOT / "options.md")[0]


def fields(kind: type) -> Iterator[Any]:
    """The fields that a class adds to those it inherits, as tyro reads them."""
    info = StructTypeInfo.make(kind, tyro.MISSING, in_union_context=False)
    for field in ConstructorRegistry.get_struct_spec(info).fields:
        if field.name in vars(kind).get("__annotations__", ()):
            yield field


def sections(kind: type, prefix: str = "") -> Iterator[tuple[type, str]]:
    """A class, those it inherits from, and those its fields may hold; with the options' prefix."""
    for base in kind.__bases__:
        if dataclasses.is_dataclass(base):
            yield from sections(base, prefix)
    yield kind, prefix
    for field in fields(kind):
        inner = f"{prefix}{field.name}." if prefix or issubclass(kind, TransformerConfig) else ""
        if field.name != "tokenizer" or kind is not GeneratorExperiment:  # one word
            for part in classes(field.type):
                yield from sections(part, inner)


def classes(kind: Any) -> list[type]:
    """The dataclasses that a field may hold."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    found = (each for each in get_args(kind) or (kind,) if dataclasses.is_dataclass(each))
    adapters = FeedForwardFunction, NormFunction, PositionsFunction
    return [each for each in found if not issubclass(each, adapters)]


def table(kind: type, prefix: str) -> Iterator[str]:
    """A line for each option of a class."""
    by_name = {field.name: field for field in dataclasses.fields(kind)}
    for field in fields(kind):
        entry, hint = by_name[field.name], get_type_hints(kind)[field.name]
        words = component_words(entry, hint)
        hidden = not entry.metadata.get("option", True)
        if hidden or (classes(field.type) and not words and not word_parser(entry, hint)):
            continue
        option = f"`--{dashed(prefix + field.name)}`"
        if field.type is bool:
            option += f", `--{dashed(prefix)}no-{dashed(field.name)}`"
        said = plain(field.helptext() if callable(field.helptext) else field.helptext or "")
        choices = list(words) or [c for c in literals(field.type) if isinstance(c, str)]
        if len(choices) > 1:
            said += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        yield f"| {option} | {default(entry, words)} | {said} |"


def literals(kind: Any) -> Iterable[Any]:
    """What may be chosen from, in a type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return [value for each in get_args(kind) for value in literals(each)]


def default(field: dataclasses.Field, words: dict[str, Any]) -> str:
    """What a field is unless given; a part by its word."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "needed"
    said = [word for word, part in words.items() if part == value]
    said = said or [
        type(value).__name__.lower() if dataclasses.is_dataclass(value) else repr(value)
    ]
    return "" if value in (None, (), "") else f"`{said[0][:24]}`"


def dashed(name: str) -> str:
    return name.replace("_", "-")


def first(text: str | None) -> str:
    return (text or "").split("\n\n")[0]


def plain(text: str) -> str:
    """Text in a cell: on one line, and nothing in it is Markdown but code."""
    return re.sub(r"([*|<\[])", r"\\\1", " ".join(text.split())).replace("\\<", "&lt;")
