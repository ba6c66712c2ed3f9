"""Whether entries can be compared, and by what: the same data, the same validation, one measure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tlite.comparison.entries import Entry
from tlite.comparison.flops import CLASSIFIER, GENERATOR, TRANSLATOR
from tlite.errors import UserError


@dataclass(frozen=True)
class Measure:
    """What a validation finds, and how it is told."""

    name: str
    """In metrics.jsonl."""
    title: str
    unit: str
    """Of differences."""
    lower: bool = True
    """Whether less is better."""
    scale: float = 1.0
    """From metrics.jsonl to what is told."""

    def better(self, difference: float) -> bool:
        """Whether a run that is so far from the reference is the better one."""
        return difference < 0 if self.lower else difference > 0


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("loss", "validation loss (nats)", "nats"),
        Measure("bits_per_byte", "validation loss (bits per byte)", "bits per byte"),
        Measure("accuracy", "validation accuracy (%)", "points", lower=False, scale=100.0),
        Measure("bleu", "validation BLEU (greedy)", "BLEU", lower=False),
        Measure("exact_match", "exact matches (%)", "points", lower=False, scale=100.0),
    )
}
VALIDATION = "validation_fraction", "validation_tokens"
"""Fields of the data that decide what is scored, where the fingerprint of the data does not."""


def common_measure(entries: Sequence[Entry]) -> Measure:
    """What `select` names; bits per byte for generators whose tokenizers differ.

    Raises:
        UserError: the entries can't be compared; it names what differs.
    """
    first = entries[0]
    check_comparable({entry.label: _measured(entry) for entry in entries})
    select = first.training.select
    if first.experiment["kind"] == GENERATOR and not _same_tokens(entries):
        return MEASURES["bits_per_byte"]
    return MEASURES[select]


class Measured(NamedTuple):
    """What decides how a model is measured."""

    experiment: dict[str, Any]
    """As `to_dict` writes it, every field among them."""
    data: dict[str, Any]
    """Its fingerprint."""
    tokenizer: Any
    """What tells it from others."""


def check_comparable(models: dict[str, Measured]) -> None:
    """Raises a `UserError` where models, by name, are not measured alike; it names what differs."""
    (reference, other), *rest = models.items()
    for label, mine in rest:
        for what, name, here, there in differences(mine, other):
            if here != there:
                raise UserError(
                    f"{label} and {reference} {what}, so they can't be compared: "
                    f"{name} is {_short(here)} and {_short(there)}"
                )


def _measured(entry: Entry) -> Measured:
    digest = entry.content["tokenizer"]["sha256"]
    return Measured(entry.experiment, entry.content["data"], digest)


def differences(mine: Measured, other: Measured) -> Iterator[tuple[str, str, Any, Any]]:
    """(what differs, the name of it, what it is here and there), for each that two models may not
    differ in, whether or not they do."""
    both = mine.experiment, other.experiment
    data, kind = [e["data"] for e in both], both[0]["kind"]
    select = [e["training"]["select"] for e in both]
    yield "are of different kinds", "the experiment", *(e["kind"] for e in both)
    for name in dict.fromkeys([*other.data, *mine.data]):
        yield "have different data", name, mine.data.get(name), other.data.get(name)
    for name in VALIDATION if kind == GENERATOR else ():
        yield "have different validation parts", name, *(d.get(name) for d in data)
    if kind == GENERATOR and data[0]["kind"] == "Corpus":
        contexts = (e["model"]["context"] for e in both)  # of the windows that are scored
        yield "have different validation parts", "context", *contexts
    elif kind == GENERATOR:
        yield "have different validation parts", "what is cut", *map(_cut, (mine, other))
    if kind == CLASSIFIER:
        yield "have different classes", "labels", *(d.get("labels") for d in data)
    yield "are measured by different things", "select", *select
    if kind == TRANSLATOR and select[0] in ("bleu", "exact_match"):
        yield "translate different parts", "bleu_sentences", *(e["bleu_sentences"] for e in both)
        case = (e["tokenizer"]["lowercase"] for e in both)
        yield "write different letters", "lowercase", *case
    elif kind == TRANSLATOR:
        yield "have losses of different tokens", "the tokenizer", mine.tokenizer, other.tokenizer
        if any(e["truncate"] for e in both):
            contexts = (e["model"]["context"] for e in both)
            yield "have losses of different tokens", "context", *contexts


def _cut(model: Measured) -> str:
    """Runs that start from another's model cut the tokens of a text in two, others the text."""
    return f"tokens {model.tokenizer}" if model.experiment["pretraining"] else "the text"


def _same_tokens(entries: Sequence[Entry]) -> bool:
    return len({entry.content["tokenizer"]["sha256"] for entry in entries}) == 1


def _short(value: Any) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return text if len(text) <= 24 else text[:20] + "..."


def warnings(entries: Sequence[Entry]) -> list[str]:
    """What is to be kept in mind, a sentence each."""
    found, first = [], entries[0].experiment
    contexts = {entry.experiment["model"].get("context") for entry in entries}
    if first["kind"] == GENERATOR and len(contexts) > 1:
        found.append(
            "the contexts differ, and with them what a validation measures: a longer one sees "
            "more before each token"
        )
    if first["kind"] == GENERATOR and not _same_tokens(entries):
        found.append("the tokenizers differ: losses are in bits per byte of the text")
    if changed := _made_otherwise(entries):
        found.append(f"they were not made with the same {', '.join(changed)}")
    if pretrained := [entry for entry in entries if has_pretraining(entry.experiment)]:
        found.append("what came before training, of pre-trained models say, is not counted")
        if one := [entry.label for entry in pretrained if entry.training.seeds > 1]:
            found.append(
                f"one pre-trained model is under all seeds of {', '.join(one)}: what another would "
                "do is in no interval"
            )
    return found


def has_pretraining(experiment: Mapping[str, Any]) -> bool:
    """Whether it starts from a model that was trained before, its own or another's."""
    settings = experiment.get("pretraining")
    return bool(settings) and settings.get("pretraining_steps") != 0


def _made_otherwise(entries: Sequence[Entry]) -> list[str]:
    """The libraries, and the source that decides numbers, which were not the same for all."""
    made = [entry.content.get("made_with", {}) for entry in entries]
    names = [n for n in dict.fromkeys(n for m in made for n in m) if n not in ("tlite", "commit")]
    return [name for name in names if len({m.get(name) for m in made}) > 1]
