"""The variants of an experiment that a command line asks for: a file's own, grids of options."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args, get_origin

from tyro.constructors import PrimitiveConstructorSpec

from tlite.cli.experiment_files import check_variant_name, did_you_mean
from tlite.cli.options import Train, TrainExperiment
from tlite.cli.parsing import WrongOption, parse
from tlite.cli.parts import choose, options_of, today
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.recipes.data import fit_to_corpus

MOST = 1000  # variants of a study
LONGEST = 40  # letters of a value in a variant's name
PLAIN = re.compile(r"(?!(True|False|None|nan|inf|infinity)$)[A-Za-z][\w.+-]*")


class Setting(NamedTuple):
    """A value of a field: what a variant's name says of it, and the words of a command line."""

    label: str
    words: list[str]


def read_variants(
    name: str, asked: Train, words: list[str], experiment: Experiment, own: dict[str, Experiment]
) -> dict[str, Experiment]:
    """The experiments that `tlite train NAME` is to train, by name; one alone has none.

    Options are applied to every variant. A value that is varied is read as the option itself is.

    Args:
        asked: what was read of the line before the experiment's file was.
        words: the other words of the line.
        own: the variants of the file.

    Raises:
        UserError: an option, a name or a value is none, or a combination makes no sense.
    """
    if {"-h", "--help"} & {*words}:
        variants = f" Its variants: {', '.join(own)}." if own else ""
        _read(name, asked, words, experiment, f"Train experiments/{name}.{variants}")
    found = named(own or {"": experiment}, settings_of(experiment, asked.vary, words))
    experiments = {}
    for label, (base, more) in chosen(found, asked.only).items():
        try:
            experiments[label] = _read(name, asked, [*words, *more], base)
        except WrongOption:
            raise
        except UserError as error:
            raise UserError(f"{label}: {error}" if label else str(error)) from error
    if asked.vary:
        _check_different(experiments)
    return experiments if len(experiments) > 1 else {"": next(iter(experiments.values()))}


def _read(name: str, asked: Train, words: list[str], base: Experiment, help_: str = "") -> Any:
    """An experiment with the options of a command line."""
    base, words = choose(base, words)
    given = TrainExperiment(**vars(asked), experiment=base)
    settings = {"default": given, "description": help_ or None}
    found = parse(TrainExperiment, words, f"tlite train {name}", **settings).experiment
    options = [word.partition("=")[0].replace("_", "-") for word in words]
    return found if "--vocabulary-size" in options else fit_to_corpus(found)


def settings_of(
    experiment: Experiment, vary: Sequence[Sequence[str]], others: Sequence[str]
) -> list[list[Setting]]:
    """The values of each field that is varied.

    Args:
        vary: each a field's name, with `-` or `_`, and its values.
        others: the other words of the command line.
    """
    values, model = {}, experiment.model
    if () in vary:
        raise UserError("--vary needs an option's name and values: --vary norm layer rms, say")
    kinds = kinds_of(choose(experiment, [*others])[0]) if vary else {}
    given = {field for word in others if word.startswith("--") for field in _sets(model, word)}
    for name, *words in vary:
        name = name.replace("_", "-")
        if (path := _option(today(model, name)[0])) not in kinds:
            near = did_you_mean(name, kinds)
            raise UserError(f"there is no option {name!r} of the experiment to vary{near}")
        if not given.isdisjoint(_sets(model, name)):
            raise UserError(f"--{name} is given twice: vary it once, with all of its values")
        if len({*words}) < max(len(words), 2):
            raise UserError(f"--vary {name} needs at least two values, all different")
        given |= {*_sets(model, name)}
        values[name], kinds[name] = words, kinds[path]
    return [
        [
            Setting(label, _words(name, kinds[name], word))
            for label, word in zip(labels(name, values), words, strict=True)
        ]
        for name, words in values.items()
    ]


def _sets(model: Any, name: str) -> list[str]:
    """The names of the options of today that an option sets, or sets to False."""
    paths = today(model, name.partition("=")[0])
    return [_option(re.sub(r"(^|\.)no_", r"\1", path)) for path in paths]


def _option(path: str) -> str:
    return path.replace("_", "-")


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


def kinds_of(experiment: Experiment) -> dict[str, Any]:
    """The types of an experiment's fields and of those of the configs in it, by option."""
    found = {}
    for config in filter(dataclasses.is_dataclass, (experiment, *vars(experiment).values())):
        for field in options_of(config):
            marks = getattr(field.type, "__metadata__", ())
            kind = field.type.__origin__ if marks else field.type
            as_one_word = any(isinstance(mark, PrimitiveConstructorSpec) for mark in marks)
            if as_one_word or not any(map(dataclasses.is_dataclass, (kind, *get_args(kind)))):
                found[_option(field.name)] = kind
    return found


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
            known = f": there are {', '.join([*found][:20])}{', ...' if len(found) > 20 else ''}"
            raise UserError(f"there is no variant {name!r}{did_you_mean(name, found) or known}")
    return {name: found[name] for name in found if name in only} if only else found


def _check_different(experiments: dict[str, Experiment]) -> None:
    known: dict[str, str] = {}
    for name, experiment in experiments.items():
        if (other := known.setdefault(repr(experiment), name)) != name:
            raise UserError(f"the variants {other} and {name} are the same")
