"""Whether entries can be compared, and by what: the same data, the same validation, one measure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tlite.comparison.cost import CLASSIFIER, GENERATOR, TRANSLATOR
from tlite.comparison.entries import Entry
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
    for entry in entries[1:]:
        for what, name, mine, other in _conditions(entry, first):
            if mine != other:
                raise UserError(
                    f"{entry.label} and {first.label} {what}, so they can't be compared: "
                    f"{name} is {_short(mine)} and {_short(other)}"
                )
    select = first.training.select
    if first.experiment["kind"] == GENERATOR and not _same_tokens(entries):
        return MEASURES["bits_per_byte"]
    return MEASURES[select]


def _conditions(entry: Entry, first: Entry) -> Iterator[tuple[str, str, Any, Any]]:
    """(what differs, the name of it, this entry's value, the first's): where these differ."""
    both = entry.experiment, first.experiment
    yield "are of different kinds", "the experiment", *(e["kind"] for e in both)
    fingerprints = entry.content["data"], first.content["data"]
    for name in dict.fromkeys([*fingerprints[1], *fingerprints[0]]):
        yield "have different data", name, *(fingerprint.get(name) for fingerprint in fingerprints)
    data = tuple(e["data"] for e in both)
    for name in VALIDATION if both[0]["kind"] == GENERATOR else ():
        yield "have different validation parts", name, *(d.get(name) for d in data)
    if both[0]["kind"] == GENERATOR and data[0]["kind"] == "Corpus":
        contexts = (e["model"]["context"] for e in both)  # of the windows that are scored
        yield "have different validation parts", "context", *contexts
    elif both[0]["kind"] == GENERATOR:
        yield "have different validation parts", "what is cut", *map(_cut, (entry, first))
    if both[0]["kind"] == CLASSIFIER:
        yield "have different classes", "labels", *(d.get("labels") for d in data)
    select = entry.training.select, first.training.select
    yield "are measured by different things", "select", *select
    if both[0]["kind"] == TRANSLATOR and select[0] in ("bleu", "exact_match"):
        yield "translate different parts", "bleu_sentences", *(e["bleu_sentences"] for e in both)
        case = (e["tokenizer"]["lowercase"] for e in both)
        yield "write different letters", "lowercase", *case
    elif both[0]["kind"] == TRANSLATOR:
        digests = (e.content["tokenizer"]["sha256"] for e in (entry, first))
        yield "have losses of different tokens", "the tokenizer's SHA-256", *digests
        if any(e["truncate"] for e in both):
            contexts = (e["model"]["context"] for e in both)
            yield "have losses of different tokens", "context", *contexts


def _cut(entry: Entry) -> str:
    """Runs that start from another's model cut the tokens of a text in two, others the text."""
    if not entry.experiment["pretraining"]:
        return "the text"
    return f"tokens {entry.content['tokenizer']['sha256']}"


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
    if any(entry.experiment.get("pretraining") for entry in entries):
        found.append("what came before training, of pre-trained models say, is not counted")
    members = {(entry.folder.resolve(), entry.members) for entry in entries}
    if len({folder for folder, _ in members}) < len(members):
        found.append(
            "tokens/s and minutes are a run's, of all that it has trained side by side in one "
            "program; what is told of each is at its own best step, whose checkpoint may not be "
            "kept: a run keeps the best of their mean"
        )
    return found


def _made_otherwise(entries: Sequence[Entry]) -> list[str]:
    """The libraries, and the source that decides numbers, which were not the same for all."""
    made = [entry.content.get("made_with", {}) for entry in entries]
    names = [n for n in dict.fromkeys(n for m in made for n in m) if n not in ("tlite", "commit")]
    return [name for name in names if len({m.get(name) for m in made}) > 1]
