"""An experiment's fields as options; a part of its model is chosen by a word, a dot leads into it.

A first look at the words changes the parts, as these decide which options there are.
"""

import copy
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from tlite.cli import REGISTRY, parse
from tlite.cli.options import Train, TrainExperiment
from tlite.errors import UserError
from tlite.models import Attention, Projection, RotaryScaling
from tlite.models.parts import ACTIVATIONS, WORDS

OPTIONAL = {
    "scaling": {name: RotaryScaling(name) for name in ("linear", "llama3", "yarn")},
    "projection": {name: Projection(name) for name in ("gelu_exact", *ACTIVATIONS)},
}
"""The parts that a part may have, by field and by word; the first has the defaults."""


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


def options_of(config: Any, prefix: str = "") -> Iterator[StructFieldSpec]:
    """The fields of a config as options; of a model with parts also those of the parts.

    A part that a word can name is an option as well, of the name of its field.
    """
    plain = StructTypeInfo.make(type(config), tyro.MISSING, in_union_context=False)
    with_parts = bool(prefix) or has_parts(config)
    for field in ConstructorRegistry.get_struct_spec(plain).fields:
        name, value = prefix + field.name, getattr(config, field.name)
        if name == "data" and _fields(value) & _fields(getattr(config, "pretraining", None)):
            yield from options_of(value, "data.")  # the bare names are those of the pretraining
            continue
        kind, words = field.type, words_of(config, field.name) if with_parts else {}
        if words:
            kind = Annotated[Any, _one_of(words)]
        if words or not (with_parts and dataclasses.is_dataclass(value)):
            kind = Annotated[kind, tyro.conf.arg(name=name)] if prefix else kind
            yield dataclasses.replace(field, name=name, type=kind, default=value)
        if with_parts and dataclasses.is_dataclass(value):
            yield from options_of(value, f"{name}.")


def _fields(config: Any) -> set[str]:
    return {*getattr(config, "__dataclass_fields__", ())}


def has_parts(config: Any) -> bool:
    """Whether it is the config of a model with parts."""
    return hasattr(config, "EARLIER")


def words_of(config: Any, name: str) -> dict[str, Any]:
    """The parts that words can choose in this field of a model's or a part's config, if any."""
    return (WORDS if has_parts(config) else OPTIONAL).get(name, {})


def read_experiment(
    name: str, asked: Train, words: list[str], base: Any, variants: Iterable[str] = ()
) -> Any:
    """An experiment with the options of `tlite train NAME`; its help names the file's variants.

    Args:
        asked: what was read of the line before the experiment's file was.
        words: the other words of the line.

    Raises:
        UserError: an option or a value is none, or what they make together makes no sense.
    """
    base, words = choose(base, words)
    said = f" Its variants: {', '.join(variants)}." if variants else ""
    given = TrainExperiment(**vars(asked), experiment=base)
    settings = {"default": given, "description": f"Train experiments/{name}.{said}"}
    return parse(TrainExperiment, words, f"tlite train {name}", **settings).experiment


def choose(experiment: Any, arguments: list[str]) -> tuple[Any, list[str]]:
    """The experiment with the parts that are named, and the words, in today's options.

    Whether all makes sense is not checked: all words together are needed for that.
    """
    model, left, given = experiment.model, [], []
    for at, (argument, after) in enumerate(itertools.pairwise([*arguments, ""])):
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            left.append(argument)
            continue
        for path in today(model, name):
            if path == "pool.projection" and name == "--projection":  # it had no norm in 0.2.0
                left.insert(0, "--pool.projection.no-norm")
            left.append(f"--{path.replace('_', '-')}{equals}{value}")
            given.append((path.count("."), at, path, value if equals else after))
    for _, _, path, word in sorted(given):  # the outer parts first
        model = _opened(model, path.split("."), word)
    return _with(experiment, model=model), left


def today(model: Any, name: str) -> list[str]:
    """Paths to the fields that an option sets; one of version 0.2.0 may set two."""
    table, path = getattr(model, "EARLIER", {}), name.removeprefix("--").replace("-", "_")
    if path in table:
        return table[path].split()
    if found := table.get(path.removeprefix("no_"), "").split():
        return [f"{part}.no_{field}" for part, _, field in (each.rpartition(".") for each in found)]
    return [path]


def _changed(config: Any, values: dict[str, Any]) -> Any:
    """A config with other values for it and for the parts in it, all of which are checked.

    What a word has named is in it already.
    """
    inner: dict[str, dict[str, Any]] = defaultdict(dict)
    own = {}
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


def _one_of(words: Iterable[str]) -> PrimitiveConstructorSpec:
    """A word for a part."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(words),
        instance_from_str=lambda given: given[0],
        is_instance=lambda _: True,
        str_from_instance=lambda part: [type(part).__name__],
        choices=tuple(words),
    )


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
