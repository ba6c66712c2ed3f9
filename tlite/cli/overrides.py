"""An experiment's fields as options of the command line, and --vary.

`--width 64` sets `model.width`, `--positions rotary` chooses a component, `--positions.base 7` sets
one of its fields; `--model.width 64` is the same as `--width 64`.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructTypeInfo,
)

from tlite.cli import help_text, parse_known, unknown_option
from tlite.cli.commands import Train
from tlite.config import (
    alternatives,
    did_you_mean,
    override,
    type_name,
    walk_fields,
    word_parser,
)
from tlite.errors import UserError
from tlite.runs.generator import fit_to_corpus

COMPONENTS = (
    "--positions rotary chooses a component of the model, and --positions.base 7 sets one of its "
    "fields."
)
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

    Raises:
        UserError: an option, name or value is unknown, or a combination is invalid.
    """
    common = read_changes(experiment, words)
    axes = [read_axis(experiment, vary, index) for index in range(len(vary))]
    changes = {}
    for (base, start), *points in itertools.product((variants or {"": experiment}).items(), *axes):
        label = " ".join(filter(None, [base, *(label for label, _ in points)]))
        changes[label] = start, common | {p: v for _, point in points for p, v in point.items()}
    if missing := [label for label in only if label not in changes]:
        known = ", ".join(filter(None, changes)) or "none"
        near = did_you_mean(missing[0], changes) or f": there are {known}"
        raise UserError(f"there is no variant {missing[0]!r}{near}")
    experiments = {}
    for label, (start, of_variant) in changes.items():
        if not only or label in only:
            try:
                experiments[label] = apply_changes(start, of_variant)
            except UserError as error:
                raise UserError(f"{label}: {error}" if label else str(error)) from error
    return experiments


def read_axis(
    experiment: Any, vary: Sequence[Sequence[str]], index: int
) -> list[tuple[str, Changes]]:
    """Return the label and the change of each value of one --vary."""
    name, *values = vary[index] or [""]
    name = name.replace("_", "-")
    if len({*values}) < max(len(values), 2):
        raise UserError(f"--vary {name} needs two or more values, as in --vary norm layer rms")
    path, _ = find_path(name, experiment, option_names(experiment))
    others = {*itertools.chain(*vary[:index], *vary[index + 1 :])}
    labels = value_labels(name, values, others)
    points = [{path: OptionWords(name, [value])} for value in values]
    return list(zip(labels, points, strict=True))


def value_labels(name: str, values: list[str], others: set[str]) -> list[str]:
    """Return a label for each value of an option, which can be part of a folder's name.

    It is the value if all values are words that no other option has, else NAME=VALUE, or NAME=1,
    NAME=2 ... if a value is long or has no letters.
    """
    if all(PLAIN.fullmatch(value) and value not in others for value in values):
        return values
    safe = [re.sub(r"[^\w.+-]+", "_", value).strip("_") for value in values]
    if len({*safe}) < len(safe) or not all(0 < len(label) <= MAX_LABEL for label in safe):
        safe = range(1, len(values) + 1)
    return [f"{name}={label}" for label in safe]


# Options


def option_names(experiment: Any) -> dict[str, str]:
    """Return the dotted name of a field by option name ("num-heads": "model.num_heads").

    The fields of data, model, training and the like have options without a prefix; if a field of
    the data has the name of another, its option begins with `data.`.
    """
    names, groups = {}, set()
    walked = sorted(walk_fields(experiment), key=lambda entry: entry[0].startswith("data."))
    for path, component, field in walked:
        kind, (group, _, short) = field_type(component, field), path.partition(".")
        if any(map(dataclasses.is_dataclass, alternatives(kind))) and not word_parser(field, kind):
            groups.add(path)  # has no option itself
        elif field.metadata.get("option", True):
            name = short if group in groups and short not in names else path
            names[name.replace("_", "-")] = path
    return names


def field_type(component: Any, field: dataclasses.Field) -> Any:
    return get_type_hints(type(component))[field.name]


def find_path(option: str, experiment: Any, names: dict[str, str]) -> tuple[str, bool]:
    """Return the dotted name of an option, and True for one that sets False (`--no-bias`).

    Args:
        names: `option_names` of the experiment.

    Raises:
        UserError: there is no such option.
    """
    head, dot, last = option.rpartition(".")
    negated = last.startswith("no-") and option not in names
    name = f"{head}{dot}{last.removeprefix('no-')}" if negated else option
    known, rest = name, ""  # the longest beginning that is known; `override` checks the rest
    while known and known not in names:
        known, _, last = known.rpartition(".")
        rest = f".{last}{rest}"
    if known:
        return names[known] + rest.replace("-", "_"), negated
    path = name.replace("-", "_")
    if path.partition(".")[0] in {field.name for field in dataclasses.fields(experiment)}:
        return path, negated
    others = {field.name.replace("_", "-"): "" for field in dataclasses.fields(Train)}
    raise unknown_option(f"--{option}", names | others)


def read_changes(experiment: Any, words: list[str]) -> Changes:
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
    changes, names = {}, option_names(experiment)
    for option, values in options:
        path, negated = find_path(option, experiment, names)
        changes[path] = OptionWords(option, ["False"] if negated and not values else values)
    return changes


def apply_changes(experiment: Any, changes: Changes) -> Any:
    """Return the experiment with other values, all of which are checked together.

    The embedding gets as many rows as a corpus has tokens, unless the changes set them.
    """
    try:
        experiment = override(experiment, changes, convert=parse_words)
    except ValueError as error:
        raise UserError(str(error)) from error
    return experiment if "model.vocabulary_size" in changes else fit_to_corpus(experiment)


def parse_words(kind: Any, value: OptionWords) -> Any:
    """Return the value of type `kind` that the words of an option stand for.

    Raises:
        UserError: they stand for none.
    """
    for each in alternatives(kind):
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
    constants = {bool: {"True": True, "False": False}, NoneType: {"None": None, "none": None}}
    if word in constants.get(kind, {}):
        return constants[kind][word]
    if origin is Literal and word in args:
        return word
    raise ValueError


# Help


def print_help(command: type, experiment: Any, program: str, about: str) -> None:
    """Print the options of a command and of an experiment's fields, and exit."""
    sections: dict[str, list] = {}
    paths = {path: option for option, path in option_names(experiment).items()}
    for path, component, field in walk_fields(experiment):
        if path in paths:
            kind, value = field_type(component, field), getattr(component, field.name)
            text = field_help(component)[field.name]
            note = tyro.conf.arg(name=paths[path], help=text)
            default = dataclasses.field(default_factory=lambda value=value: value)
            section = path.partition(".")[0] if "." in path else "experiment"
            kind = Annotated[option_type(field, kind, value), note]
            sections.setdefault(section, []).append((path.replace(".", "__"), kind, default))
    groups = [("command", Annotated[command, tyro.conf.arg(name="")])]
    texts = field_help(experiment) | {"experiment": COMPONENTS}
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
    assert isinstance(spec, StructConstructorSpec)
    return {field.name: help_text(field) for field in spec.fields}


def option_type(field: dataclasses.Field, kind: Any, value: Any) -> Any:
    """Return the type of an option for tyro's help: a field's own, or one word for a component."""
    words = component_words(field, kind)
    kinds = alternatives(kind)
    if not words and not any(k is Callable or dataclasses.is_dataclass(k) for k in kinds):
        return kind
    literals = "|".join(f"{{{','.join(get_args(k))}}}" for k in kinds if get_origin(k) is Literal)
    metavar = "|".join(words) or (f"{literals}|FUNCTION" if literals else "NAME")
    name = default_word(words, value)
    return Annotated[
        Any,
        PrimitiveConstructorSpec(1, metavar, lambda w: w[0], lambda _: True, lambda _: [name]),
    ]


def component_words(field: dataclasses.Field, kind: Any) -> dict[str, Any]:
    """Return the components that words stand for in a field; {} if it has no list of words."""
    words, optional = field.metadata.get("words", ()), {}
    if (parse := word_parser(field, kind)) is None:
        return {}
    if not words and isinstance(parse, type):
        first = alternatives(next(iter(get_type_hints(parse).values())))
        words = [word for each in first if get_origin(each) is Literal for word in get_args(each)]
        optional = {"none": None} if words else {}
    return {word: parse(word) for word in words} | optional


def default_word(words: dict[str, Any], value: Any) -> str:
    """Return the word for a component like this one, its path, or the user's function's name."""
    function = getattr(value, "function", value)
    if isinstance(function, str) or hasattr(function, "__name__"):
        return getattr(function, "__name__", function)
    equal = [word for word, other in words.items() if other == value]
    alike = [word for word, other in words.items() if type(other) is type(value)]
    name = "none" if value is None else type(value).__name__.lower()
    path = getattr(value, "path", getattr(value, "folder", name))
    return next(iter([*equal, *alike]), path)
