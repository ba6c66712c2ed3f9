"""The variants of an experiment that a command line asks for: a file's own, grids of options."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from tlite.cli.options import Train, Variants
from tlite.cli.parsing import has_parts, optional_part, parse, parse_known
from tlite.cli.parts import choose, described, meant
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.experiment_files import check_variant_name, did_you_mean
from tlite.models.parts import WORDS

MOST = 1000  # variants of a study
LONGEST = 40  # letters of a value in a variant's name
PLAIN = re.compile(r"(?!(True|False|None|nan|inf|infinity)$)[A-Za-z][\w.+-]*")


class Asked(NamedTuple):
    """What is to be trained."""

    experiments: dict[str, Experiment]
    """Of a study's variants, by name; or one alone, of no name."""
    folder: Path | None
    """What is to be made for it, where it is told."""


class Setting(NamedTuple):
    """A value of a field: what a variant's name says of it, and the words of a command line."""

    label: str
    words: list[str]


def read_variants(
    name: str, arguments: list[str], experiment: Experiment, variants: dict[str, Experiment]
) -> Asked:
    """What `tlite train NAME` is to train, for an experiment, its file's variants and the options.

    Options are applied to every variant. A value that is varied is read as the option itself is.

    Raises:
        UserError: an option, a name or a value is none, or a combination makes no sense.
    """
    program = f"tlite train {name}"
    if {"-h", "--help"} & {*arguments}:
        experiment, words = choose(experiment, arguments)
        parse(train_options(name, experiment, variants), words, program)
    asked, rest = parse_known(Variants, arguments, program)
    found = named(variants or {"": experiment}, settings_of(experiment, asked.vary, rest))
    options = {
        label: _parse(label, name, base, [*rest, *words], program)
        for label, (base, words) in chosen(found, asked.only).items()
    }
    experiments = {label: each.experiment for label, each in options.items()}
    if asked.vary:
        _check_different(experiments)
    if len(experiments) == 1:
        experiments = {"": next(iter(experiments.values()))}
    return Asked(experiments, next(iter(options.values())).run)


def train_options(name: str, experiment: Experiment, variants: Iterable[str] = ()) -> type:
    """What the command line of `tlite train NAME` fills in."""
    fields = [("experiment", type(experiment), dataclasses.field(default=experiment))]
    settings = {"bases": (Train,), "kw_only": True, "frozen": True}
    kind = dataclasses.make_dataclass("Train", fields, **settings)
    of_variants = f" Its variants: {', '.join(variants)}." if variants else ""
    kind.__doc__ = f"Train experiments/{name}.{of_variants}{described(experiment.model)}"
    return kind


def settings_of(
    experiment: Experiment, vary: Sequence[Sequence[str]], others: Sequence[str]
) -> list[list[Setting]]:
    """The values of each field that is varied.

    Args:
        vary: each a field's name, with `-` or `_`, and its values.
        others: the other words of the command line.
    """
    model, values = experiment.model, {}
    kinds = fields_of(choose(experiment, others)[0])
    kinds |= {
        earlier.replace("_", "-"): kinds[today]
        for earlier in getattr(model, "EARLIER", {})
        if (today := meant(model, earlier)[0]) in kinds
    }
    given = {name for word in others if word.startswith("--") for name in meant(model, word)}
    for field, *words in (each or [""] for each in vary):
        name = field.replace("_", "-")
        if not field:
            raise UserError("--vary needs an option's name and values: --vary norm layer rms, say")
        if name not in kinds:
            near = did_you_mean(name, kinds)
            raise UserError(f"there is no option {name!r} of the experiment to vary{near}")
        if name in values:
            raise UserError(f"--vary {name} is given twice: name all of its values at once")
        if not given.isdisjoint(meant(model, name)):
            raise UserError(f"--{name} is varied: leave out what it is for all")
        if len(words) < 2:
            raise UserError(f"--vary {name} needs at least two values")
        if repeated := [word for word in words if words.count(word) > 1]:
            raise UserError(f"--vary {name} has the value {repeated[0]!r} twice")
        values[name] = words
    return [
        [
            Setting(label, _words(name, kinds[name], word))
            for label, word in zip(labels(name, values), words, strict=True)
        ]
        for name, words in values.items()
    ]


def labels(name: str, values: dict[str, list[str]]) -> list[str]:
    """What tells the values of a field apart in variants' names, which folders can have too.

    The value, where it is a word that no other field has; else with the field's name; the number of
    a value that is long or has no letters.
    """
    words = values[name]
    others = {word for field, of_field in values.items() if field != name for word in of_field}
    if all(PLAIN.fullmatch(w) and w not in others and len(w) <= LONGEST for w in words):
        return words
    safe = [re.sub(r"[^\w.+-]+", "_", word).strip("_") for word in words]
    if len({*safe}) < len(safe) or not all(0 < len(label) <= LONGEST for label in safe):
        safe = range(1, len(words) + 1)
    return [f"{name}={label}" for label in safe]


def _words(name: str, kind: Any, value: str) -> list[str]:
    """The words of a command line that give a field this value."""
    if kind is bool:
        if value not in ("True", "False"):
            raise UserError(f"--vary {name} takes True and False, not {value!r}")
        part, dot, last = name.rpartition(".")
        return [f"--{name}" if value == "True" else f"--{part}{dot}no-{last}"]
    return [f"--{name}", *(value.split() if get_origin(kind) is tuple else [value])]


def fields_of(config: Any, prefix: str = "") -> dict[str, Any]:
    """The types of a config's fields, and of those of configs in it, by the names of options.

    A part that a word can name is a string too.
    """
    kinds, hints = {}, get_type_hints(type(config), include_extras=True)
    of_model = has_parts(config) or prefix
    for field in dataclasses.fields(config):
        name, value = prefix + field.name.replace("_", "-"), getattr(config, field.name)
        kind, marks = hints[field.name], getattr(hints[field.name], "__metadata__", ())
        as_one_word = any(isinstance(mark, PrimitiveConstructorSpec) for mark in marks)
        kind = kind.__origin__ if marks else kind
        if as_one_word or not any(map(dataclasses.is_dataclass, (value, *get_args(kind)))):
            kinds[name] = kind
        elif of_model and (field.name in WORDS or optional_part(type(config), field.name)):
            kinds[name] = str
        if dataclasses.is_dataclass(value) and not as_one_word:
            kinds |= fields_of(value, f"{name}." if of_model else "")
    return kinds


def named(
    bases: dict[str, Experiment], fields: list[list[Setting]]
) -> dict[str, tuple[Experiment, list[str]]]:
    """Each combination of the fields' values on each base, by name; the first field's change last.

    Also the words of the command line that make it.
    """
    number = len(bases) * math.prod(map(len, fields))
    if number > MOST:
        raise UserError(f"there would be {number:,} variants: at most {MOST:,}")
    found = {}
    for (base, experiment), *settings in itertools.product(bases.items(), *fields):
        name = " ".join(filter(None, [base, *(setting.label for setting in settings)]))
        if number > 1:
            check_variant_name(name)
        if name in found:
            raise UserError(f"two variants would have the name {name!r}")
        found[name] = experiment, [word for setting in settings for word in setting.words]
    return found


def chosen(found: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """The variants of these names, all without any."""
    for name in only:
        if len(found) == 1:
            raise UserError(f"there are no variants, so none that is called {name!r}")
        if name not in found:
            raise UserError(f"there is no variant {name!r}{_known(name, found)}")
    return {name: found[name] for name in found if name in only} if only else found


def _known(name: str, found: dict[str, Any]) -> str:
    near = did_you_mean(name, found)
    return near or f": there are {', '.join([*found][:20])}{', ...' if len(found) > 20 else ''}"


def _parse(
    label: str, name: str, experiment: Experiment, arguments: list[str], program: str
) -> Any:
    try:
        experiment, words = choose(experiment, arguments)
        return parse(train_options(name, experiment), words, program)
    except UserError as error:
        of_all = str(error).startswith(("-", "'", "there is no option"))
        raise UserError(str(error) if of_all or not label else f"{label}: {error}") from error


def _check_different(experiments: dict[str, Experiment]) -> None:
    known: dict[str, str] = {}
    for name, experiment in experiments.items():
        if (other := known.setdefault(repr(experiment), name)) != name:
            raise UserError(f"the variants {other} and {name} are the same")
