"""What is known of a run before its folder is there, and is the same in all of its processes."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from tlite import processes
from tlite.errors import UserError
from tlite.training.precision import Precision, choose_precision


class Prepared(NamedTuple):
    """An experiment with the sizes that its data decides; its tokenizer, and the data."""

    experiment: Any
    tokenizer: Any
    data: Any


def agreed_precision(asked: Precision) -> Precision:
    """What is computed with, of all processes what the first one finds; it is printed, and why.

    The choice is kept with a run, so that a resumed one computes as it began.
    """
    found = choose_precision(asked) if processes.is_first() else None
    precision, reason = processes.told(found)
    print(f"precision: {reason}")
    return precision


def in_precision(prepared: Prepared, precision: Precision) -> Prepared:
    experiment = prepared.experiment
    training = dataclasses.replace(experiment.training, precision=precision)
    return prepared._replace(experiment=dataclasses.replace(experiment, training=training))


def with_sizes(experiment: Any, sizes: dict[str, int], whose: str) -> Any:
    """The experiment with sizes of its model that its data decides; "wide.word_rows" is a part's.

    Raises:
        UserError: it says otherwise.
    """
    changed: dict[str, Any] = {}
    for path, size in sizes.items():
        slot, _, name = path.rpartition(".")
        owner = changed.get(slot, getattr(experiment.model, slot)) if slot else experiment.model
        if (given := getattr(owner, name)) not in (0, size):
            raise UserError(f"{path} is {given}, but the {whose} has {size}: leave it out")
        if slot:
            changed[slot] = dataclasses.replace(owner, **{name: size})
        else:
            changed[name] = size
    return dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, **changed))


def fingerprint_of(name: str, texts: Iterable[str], unit: str) -> dict[str, Any]:
    """How many texts a part has, and the SHA-256 of them."""
    digest, number = hashlib.sha256(), 0
    for text in texts:
        digest.update(text.encode())
        number += 1
    return {f"{name} {unit}": number, f"SHA-256 of the {name} part": digest.hexdigest()}


def same_everywhere(what: dict) -> None:
    """Raises a `UserError` where this process would do something else than the first one."""
    own = json.loads(json.dumps(what))  # as it is told
    first = processes.told(own)
    first = first if isinstance(first, dict) else {}
    if changed := [part for part in own if own[part] != first.get(part)]:
        raise UserError(
            f"this process has another {changed[0]} than process 0: give all the same command and "
            "the same files"
        )
