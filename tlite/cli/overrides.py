"""An experiment's fields as options, and the variants of it that a command line asks for.

A part of the model is chosen by a word, a dot leads into it. A first look at the words changes the
parts, as these decide which options there are.
"""

import copy
import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from tlite.cli import REGISTRY, WrongOption, parse
from tlite.cli.options import Train, one_word
from tlite.errors import UserError
from tlite.experiment import BaseExperiment
from tlite.functional import ACTIVATIONS
from tlite.models import Attention, Projection, RotaryScaling, TransformerConfig
from tlite.models.config import PRESETS
from tlite.runs.experiment_files import did_you_mean
from tlite.runs.generator import fit_to_corpus

WORDS = PRESETS | {
    "scaling": {n: RotaryScaling(n) for n in ("linear", "llama3", "yarn")} | {"none": None},
    "projection": {n: Projection(n) for n in ("gelu_exact", *ACTIVATIONS)} | {"none": None},
}
"""The components that a model or a component may have, by field and by word; the first has the
defaults."""
PARTS = (
    "--positions rotary chooses a component of the model, and --positions.base 7 sets one of its "
    "fields."
)
LONGEST = 40  # letters of a value in a variant's name
PLAIN = re.compile(r"(?!(True|False|None|nan|inf|infinity)$)[A-Za-z][\w.+-]{,39}")


def read_experiments(
    name: str,
    asked: Train,
    words: list[str],
    experiment: BaseExperiment,
    own: dict[str, BaseExperiment],
    about: str = "",
) -> dict[str, BaseExperiment]:
    """Return the experiments that `tlite train NAME` trains, by variant name; "" for a single one.

    Args:
        asked: the options that do not depend on the experiment.
        words: the other words of the command line, applied to every variant.
        own: the variants that the file defines.
        about: the first sentence of the help.

    Raises:
        UserError: an option, name or value is unknown, or a combination is invalid.
    """
    fields = settings_of(experiment, asked.vary, words) if asked.vary else []
    found, experiments = {}, {}
    for (base, start), *settings in itertools.product((own or {"": experiment}).items(), *fields):
        label = " ".join(filter(None, [base, *(label for label, _ in settings)]))
        found[label] = start, [word for _, more in settings for word in more]
    if missing := [label for label in asked.only if label not in found]:
        names = ", ".join(filter(None, found)) or "none"
        near = did_you_mean(missing[0], found) or f": there are {names}"
        raise UserError(f"there is no variant {missing[0]!r}{near}")
    for label, (start, more) in found.items():
        if asked.only and label not in asked.only:
            continue
        try:
            _, read = with_options(asked, start, [*words, *more], f"tlite train {name}", about)
        except UserError as error:
            if not label or isinstance(error, WrongOption):
                raise
            raise UserError(f"{label}: {error}") from error
        options = {word.partition("=")[0].replace("_", "-") for word in (*words, *more)}
        experiments[label] = read if "--vocabulary-size" in options else fit_to_corpus(read)
    return experiments


def with_options(
    asked: Any, experiment: BaseExperiment, words: list[str], program: str, about: str
) -> tuple[Any, BaseExperiment]:
    """What is asked of a command, and its experiment, as words say beside each other."""
    experiment, words = choose(experiment, words)

    def both(
        command: Annotated[Any, tyro.conf.arg(name="")] = asked,
        experiment: Annotated[Any, tyro.conf.arg(help=PARTS)] = experiment,
    ):
        return command, experiment

    return parse(both, words, program, description=about)


def settings_of(
    experiment: BaseExperiment, vary: Sequence[Sequence[str]], others: list[str]
) -> list[list[tuple[str, list[str]]]]:
    """Of each field that is varied its values, as variants' names and as a command line say them.

    Args:
        vary: each a field's name, with `-` or `_`, and its values.
        others: the other words of the command line.
    """
    base, settings = choose(experiment, others)[0], []
    configs = filter(dataclasses.is_dataclass, (base, *vars(base).values()))
    options = {field.name: field.type for config in configs for field in options_of(config)}
    for at, (name, *values) in enumerate(field or [""] for field in vary):
        name = name.replace("_", "-")
        if len({*values}) < max(len(values), 2):
            raise UserError(f"--vary {name} needs two values or more: --vary norm layer rms, say")
        kind = options.get(name.replace("-", "_"))
        names = labels(name, values, {*itertools.chain(*vary[:at], *vary[at + 1 :])})
        words = [_words(name, getattr(kind, "__origin__", kind), value) for value in values]
        settings.append(list(zip(names, words, strict=True)))
    return settings


def labels(name: str, values: list[str], others: set[str]) -> list[str]:
    """What tells the values of a field apart in variants' names, which folders can have too.

    The value, where it is a word that no other field has; else with the field's name; the number of
    a value that is long or has no letters.
    """
    if all(PLAIN.fullmatch(value) and value not in others for value in values):
        return values
    safe = [re.sub(r"[^\w.+-]+", "_", value).strip("_") for value in values]
    if len({*safe}) < len(safe) or not all(0 < len(label) <= LONGEST for label in safe):
        safe = range(1, len(values) + 1)
    return [f"{name}={label}" for label in safe]


def _words(name: str, kind: Any, value: str) -> list[str]:
    """The words of a command line that give a field of a type this value."""
    if kind is bool:
        if value not in ("True", "False"):
            raise UserError(f"--vary {name} takes True and False, not {value!r}")
        part, dot, last = name.rpartition(".")
        return [f"--{name}" if value == "True" else f"--{part}{dot}no-{last}"]
    return [f"--{name}", *(value.split() if tuple in (kind, get_origin(kind)) else [value])]


# Fields as options


@REGISTRY.struct_rule
def _config(info: StructTypeInfo) -> StructConstructorSpec | None:
    """A config's own values are the defaults, and what it finds wrong is a sentence."""
    config = info.default
    if not dataclasses.is_dataclass(config):
        return None

    def changed(**values: Any) -> Any:
        try:
            return _changed(config, values)
        except ValueError as error:
            raise UserError(str(error)) from error

    return StructConstructorSpec(changed, tuple(options_of(config)))


@REGISTRY.primitive_rule
def _function(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """A function of the user's stands in a file: on the command line it can only be replaced."""
    if kind.type is not Callable:
        return None

    def refuse(_: str) -> Callable:
        raise ValueError("a function of your own is handed over in an experiment's file")

    return one_word("FUNCTION", refuse, callable, lambda function: function.__name__)


def options_of(config: Any, prefix: str = "") -> Iterator[StructFieldSpec]:
    """The fields of a config as options; of a model with parts also those of the parts.

    A part that a word can name is an option as well, of the name of its field.
    """
    plain = StructTypeInfo.make(type(config), tyro.MISSING, in_union_context=False)
    with_parts = bool(prefix) or isinstance(config, TransformerConfig)
    pretraining = {
        name: value
        for stage in ("pretraining", "init_from")
        for name, value in getattr(getattr(config, stage, None), "__dict__", {}).items()
    }
    hidden = {f.name for f in dataclasses.fields(config) if not f.metadata.get("option", True)}
    for field in ConstructorRegistry.get_struct_spec(plain).fields:
        if field.name in hidden:
            continue
        name, value = prefix + field.name, getattr(config, field.name)
        if name == "data" and vars(value).keys() & pretraining.keys():
            yield from options_of(value, "data.")  # the bare names are those of the pretraining
            continue
        kind, words = field.type, words_of(config, field.name) if with_parts else {}
        if words:
            known = "|".join(words), str, lambda _: True, partial(word_for, words)
            kind = Annotated[Any, one_word(*known, tuple(words))]
        if words or not (with_parts and dataclasses.is_dataclass(value)):
            kind = Annotated[kind, tyro.conf.arg(name=name)] if prefix else kind
            yield dataclasses.replace(field, name=name, type=kind, default=value)
        if with_parts and dataclasses.is_dataclass(value):
            yield from options_of(value, f"{name}.")


def words_of(config: Any, name: str) -> dict[str, Any]:
    """The parts that words can choose in this field of a model's or a part's config, if any."""
    return {} if isinstance(getattr(config, name, None), bool) else WORDS.get(name, {})


def word_for(words: dict[str, Any], value: Any) -> str:
    """The word that chooses a component like this one, or the name of the user's function."""
    function = getattr(value, "function", None)
    if function is not None:
        return getattr(function, "__name__", function)
    equal = [word for word, other in words.items() if other == value]
    alike = [word for word, other in words.items() if type(other) is type(value)]
    return next(iter([*equal, *alike]), type(value).__name__)


def choose(experiment: Any, arguments: list[str]) -> tuple[Any, list[str]]:
    """The experiment with the parts that are named, and the words.

    Whether all makes sense is not checked: all words together are needed for that.
    """
    model, words, given = experiment.model, [], []
    for argument, after in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            words.append(argument)
            continue
        path = name.removeprefix("--").replace("-", "_")
        words.append(f"--{path.replace('_', '-')}{equals}{value}")
        given.append((path.count("."), path, value if equals else after))
    for _, path, word in sorted(given, key=itemgetter(0)):  # the outer parts first
        model = _opened(model, path.split("."), word)
    return _with(experiment, model=model), words


def _changed(config: Any, values: dict[str, Any]) -> Any:
    """A config with other values for it and for the parts in it, all of which are checked.

    What a word has named is in it already.
    """
    own, inner = {}, defaultdict(dict)
    for path, value in values.items():
        slot, dot, name = path.partition(".")
        if dot:
            inner[slot][name] = value
        elif not words_of(config, slot):
            own[slot] = value
    for slot, numbers in inner.items():
        try:
            own[slot] = _changed(getattr(config, slot), numbers)
        except ValueError as error:
            raise ValueError(f"{slot}: {error}") from error
    return dataclasses.replace(config, **own)


def _opened(config: Any, path: list[str], word: str) -> Any:
    """A config with the part that a word names at a path, or that the path goes through."""
    name, *inner = path
    part, words = getattr(config, name, None), words_of(config, name)
    if inner and part is None and words:
        part = next(iter(words.values()))
    if inner and dataclasses.is_dataclass(part):
        part = _opened(part, inner, word)
    elif not inner and word in words:
        of_ours = type(part) is Attention  # whose word is one of its numbers
        part = _with(part, function=word) if of_ours else words[word]
    return _with(config, **{name: part}) if part is not getattr(config, name, None) else config


def _with(config: Any, **values: Any) -> Any:
    """A config with other values, unchecked."""
    config = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config
