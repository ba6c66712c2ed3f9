"""An experiment's fields as options of the command line, and --vary.

`--width 64` sets `model.width`, `--positions rotary` chooses a component, `--positions.base 7` sets
one of its fields; `--model.width 64` is the same as `--width 64`.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, StructTypeInfo

from tlite.cli import help_text, parse_known, unknown_option
from tlite.cli.commands import Train, Tune
from tlite.config import (
    alternatives,
    convert_value,
    did_you_mean,
    field_types,
    override,
    type_name,
    walk_fields,
    word_parser,
)
from tlite.data.corpus import Corpus
from tlite.errors import UserError
from tlite.runs.generator import fit_to_corpus

COMPONENT_HELP = (
    "--positions rotary chooses a component of the model, and --positions.base 7 sets one of its "
    "fields."
)
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})")
MAX_LABEL = 40  # characters of a value in a variant's name
PLAIN = re.compile(r"(?!(True|False|None|nan|inf|infinity)$)[A-Za-z][\w.+-]{,39}")


@dataclasses.dataclass(frozen=True)
class OptionWords:
    """The words after an option, which are parsed when the type of its field is known."""

    option: str
    words: list[str]


Changes = dict[str, OptionWords]
"""Words by dotted name."""


def read_experiments(
    experiment: Any,
    variants: Mapping[str, Any],
    words: list[str],
    vary: Sequence[Sequence[str]] = (),
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the experiments of `tlite train NAME` by variant name; "" for a single one.

    Args:
        variants: variants that the file defines.
        words: options of the command line, which apply to every variant.
        vary: each the name of an option and two or more values.
        only: names of the variants to keep.
    """
    names, varied = option_names(experiment), set()
    changes = read_changes(experiment, names, words)
    grid = {name: (variant, changes) for name, variant in (variants or {"": experiment}).items()}
    for axis in vary:
        points = read_axis(experiment, names, *axis)
        (path,) = next(iter(points.values()))
        check_varied_once(path, varied, f"--vary {axis[0]}")
        varied.add(path)
        pairs = itertools.product(grid.items(), points.items())
        grid = {
            f"{name} {label}".strip(): (variant, changes | change)
            for (name, (variant, changes)), (label, change) in pairs
        }
    grid, experiments = select_variants(grid, only) if only else grid, {}
    for name, (variant, changes) in grid.items():
        try:
            variant = override(variant, changes, convert=parse_words)
        except (UserError, ValueError) as error:
            raise UserError(f"{name}: {error}" if name else str(error)) from error
        if isinstance(variant.data, Corpus) and "model.vocabulary_size" not in changes:
            variant = fit_to_corpus(variant)
        experiments[name] = variant
    return experiments


def select_variants(grid: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """Return the variants named in `only`."""
    for name in only:
        if name not in grid:
            known = ", ".join(filter(None, grid)) or "none"
            near = did_you_mean(name, grid) or f": there are {known}"
            raise UserError(f"there is no variant {name!r}{near}")
    return {name: each for name, each in grid.items() if name in only}


def read_axis(
    experiment: Any, names: dict[str, str], option: str = "", *values: str
) -> dict[str, Changes]:
    """Return the changes of one --vary by label.

    A label is the value if all values are plain words, else NAME=VALUE; or NAME=1, NAME=2 ... if a
    folder's name can't have a value.
    """
    option = option.replace("_", "-")
    if len({*values}) < max(len(values), 2):
        raise UserError(
            f"--vary {option} needs two or more different values, as in --vary norm layer rms"
        )
    labels = list(values)
    if not all(map(PLAIN.fullmatch, values)):
        safe = [re.sub(r"[^\w.+-]+", "_", value).strip("_") for value in values]
        if len({*safe}) < len(safe) or not all(0 < len(label) <= MAX_LABEL for label in safe):
            safe = range(1, len(values) + 1)
        labels = [f"{option}={label}" for label in safe]
    path = find_path(option, experiment, names)
    changes = [{path: OptionWords(option, [value])} for value in values]
    return dict(zip(labels, changes, strict=True))


def read_search_space(
    experiment: Any,
    vary: Sequence[Sequence[str]],
    flag: str = "--vary",
    grid: Sequence[Sequence[str]] = (),
) -> dict[str, Any]:
    """Return the ranges (low, high) and lists of choices of an option by dotted name.

    Args:
        grid: the --vary of a study, whose options must be other ones.
    """
    names, space = option_names(experiment), {}
    varied = {find_path(axis[0].replace("_", "-"), experiment, names) for axis in grid}
    for option, *words in vary:
        option = option.replace("_", "-")
        path = find_path(option, experiment, names)
        is_range = len(words) == 1 and RANGE.fullmatch(words[0])
        if len({*words}) < max(len(words), 1 if is_range else 2):
            raise UserError(
                f"{flag} {option} needs a range or two or more different values, as in {flag} "
                f"learning-rate 1e-4..1e-1 or {flag} norm layer rms"
            )
        if path in varied:
            raise UserError(f"{flag} {option}: --vary sets this option already, leave out one")
        check_varied_once(path, space, f"{flag} {option}")
        values = []
        for word in is_range.groups() if is_range else words:
            try:
                source = OptionWords(option, [word])
                values.append(convert_value(experiment, path, source, parse_words))
            except (UserError, ValueError) as error:
                raise UserError(f"{flag} {option} {' '.join(words)}: {error}") from error
        space[path] = tuple(values) if is_range else values
    return space


def check_varied_once(path: str, varied: Container[str], words: str) -> None:
    """Raise a `UserError` if an option is varied already: only its last values would count."""
    if path in varied:
        raise UserError(f"{words}: this option is varied twice: name all its values once")


# Options


def option_names(experiment: Any) -> dict[str, str]:
    """Return the dotted name of the field of each option, such as {"width": "model.width"}.

    Fields of model, training, data and the like need no prefix, but a field of the data that has
    the name of another has the prefix "data.".
    """
    hints, names, groups = get_type_hints(type(experiment)), {}, []
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if dataclasses.is_dataclass(value) and not word_parser(field, hints[field.name]):
            groups.append((field.name, value))
        else:
            names[field.name.replace("_", "-")] = field.name
    for group, value in reversed(groups):  # data comes first in an experiment
        for field in dataclasses.fields(value):
            names.setdefault(field.name.replace("_", "-"), f"{group}.{field.name}")
    return names


def walk_options(
    experiment: Any, names: dict[str, str]
) -> Iterator[tuple[str, str, Any, dataclasses.Field, Any]]:
    """Yield (option, dotted name, component, field, type) of the fields that have an option."""
    options = {path: option for option, path in names.items()}
    for path, component, field in walk_fields(experiment):
        parent, dot, name = path.rpartition(".")
        option = options.get(path) or f"{options.get(parent, '')}{dot}{name}".replace("_", "-")
        options[path], kind = option, get_type_hints(type(component))[field.name]
        is_group = any(map(dataclasses.is_dataclass, alternatives(kind)))
        if field.metadata.get("option", True) and (word_parser(field, kind) or not is_group):
            yield option, path, component, field, kind


def find_path(option: str, experiment: Any, names: dict[str, str]) -> str:
    """Return the dotted name of an option; `override` checks what follows the first word."""
    first, dot, rest = option.partition(".")
    fields = experiment.__dataclass_fields__
    if (dot or first not in names) and first.replace("-", "_") in fields:
        return option.replace("-", "_")
    if first in names:
        return names[first] + dot + rest.replace("-", "_")
    options = {option for option, *_ in walk_options(experiment, names)}
    options |= {
        f.name.replace("_", "-") for kind in (Train, Tune) for f in dataclasses.fields(kind)
    }
    raise unknown_option(f"--{option}", sorted(options))


def read_changes(experiment: Any, names: dict[str, str], words: list[str]) -> Changes:
    """Return the words of each option by the dotted name of its field."""
    options: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options.append((name.replace("_", "-"), [value] if equals else []))
        elif options:
            options[-1][1].append(word)
        else:
            raise unknown_option(word, ())
    changes = {}
    for option, values in options:
        head, dot, last = option.rpartition(".")
        if last.startswith("no-") and option not in names:
            option, values = f"{head}{dot}{last.removeprefix('no-')}", values or ["False"]
        changes[find_path(option, experiment, names)] = OptionWords(option, values)
    return changes


def parse_words(kind: Any, value: OptionWords) -> Any:
    """Return the value of type `kind` that the words of an option stand for."""
    for each in sorted(alternatives(kind), key=lambda k: (k is not NoneType, k is str)):
        try:
            return _parse(each, value.words)
        except ValueError:
            continue
    words = " ".join(value.words)
    raise UserError(f"--{value.option}: expected {type_name(kind)}, not {words!r:.80}")


def _parse(kind: Any, words: list[str]) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        words = words if args[0] is str else " ".join(words).split()  # --vary has "0 32"
        return tuple(_parse(args[0], [word]) for word in words)
    if origin is dict:
        return dict(zip(words[::2], words[1::2], strict=True))
    if kind is bool and not words:
        return True
    (word,) = words
    if kind in (int, float, str):
        return kind(word)
    constants = {
        bool: {"True": True, "true": True, "False": False, "false": False},
        NoneType: {"None": None, "none": None},
    }
    if word in constants.get(kind, {}):
        return constants[kind][word]
    if origin is Literal and word in args:
        return word
    raise ValueError


# Help


def print_help(command: type, experiment: Any, program: str, about: str) -> None:
    """Print the options of a command and of an experiment's fields, and exit."""
    sections: dict[str, list] = {}
    names = option_names(experiment)
    for option, path, component, field, kind in walk_options(experiment, names):
        value, text = getattr(component, field.name), field_help(component)[field.name]
        kind = option_type(field, kind, value)
        kind = Annotated[kind, tyro.conf.arg(name=option, help=text)]
        default = dataclasses.field(default_factory=lambda value=value: value)
        section = path.partition(".")[0] if "." in path else "experiment"
        sections.setdefault(section, []).append((path.replace(".", "__"), kind, default))
    groups = [("command", Annotated[command, tyro.conf.arg(name="")])]
    texts = field_help(experiment) | {"experiment": COMPONENT_HELP}
    for name, fields in sections.items():
        group = dataclasses.make_dataclass(name, fields)
        default = dataclasses.field(default_factory=group)
        groups.append((name, Annotated[group, tyro.conf.arg(help=texts[name])], default))
    both = dataclasses.make_dataclass("Both", groups)
    parse_known(both, ["--help"], program, description=about)


def field_help(config: Any) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields by name."""
    info = StructTypeInfo.make(type(config), tyro.MISSING, in_union_context=False)
    spec = ConstructorRegistry.get_struct_spec(info)
    return {field.name: help_text(field) for field in spec.fields}


def option_type(field: dataclasses.Field, kind: Any, value: Any) -> Any:
    """Return the type of an option for tyro's help: a field's own, or one word for a component."""
    words, kinds = component_words(field, kind), alternatives(kind)
    if not words and not any(k is Callable or dataclasses.is_dataclass(k) for k in kinds):
        return kind
    literals = "|".join(f"{{{','.join(get_args(k))}}}" for k in kinds if get_origin(k) is Literal)
    metavar = "|".join(words) or literals or "NAME"
    name = default_word(words, value)
    return Annotated[
        Any, PrimitiveConstructorSpec(1, metavar, lambda w: w[0], lambda _: True, lambda _: [name])
    ]


def component_words(field: dataclasses.Field, kind: Any) -> dict[str, Any]:
    """Return the components that words stand for in a field; {} if it has no list of words."""
    parse, words = word_parser(field, kind), field.metadata.get("words", ())
    if words or not isinstance(parse, type):
        return {word: parse(word) for word in words}
    first = alternatives(field_types(parse)[dataclasses.fields(parse)[0].name])
    words = [word for each in first if get_origin(each) is Literal for word in get_args(each)]
    return {word: parse(word) for word in words} | ({"none": None} if words else {})


def default_word(words: dict[str, Any], value: Any) -> str:
    """Return a default as help shows it: a component's word or path, or a function's name."""
    function = getattr(value, "function", value)
    if isinstance(function, str) or hasattr(function, "__name__"):
        return getattr(function, "__name__", function)
    equal = [word for word, other in words.items() if other == value]
    alike = [word for word, other in words.items() if type(other) is type(value)]
    name = "none" if value is None else type(value).__name__.lower()
    path = getattr(value, "path", getattr(value, "folder", name))
    return next(iter([*equal, *alike]), path)
