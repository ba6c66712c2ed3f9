"""Whether runs can be compared, and by what; and how their configs differ, as rows of text."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tlite.comparison.flops import CLASSIFIER, GENERATOR
from tlite.comparison.summaries import Metric, RunSummary
from tlite.errors import UserError

WEIGHT_METRICS = (
    Metric("loss", "validation loss (nats)", "nats"),
    Metric("bits_per_byte", "validation loss (bits per byte)", "bits per byte"),
    Metric("accuracy", "validation accuracy (%)", "points", lower=False, scale=100.0),
    Metric("bleu", "validation BLEU (greedy)", "BLEU", lower=False),
    Metric("exact_match", "exact matches (%)", "points", lower=False, scale=100.0),
)
METRICS = {metric.name: metric for metric in WEIGHT_METRICS} | {
    f"{average}_{name}": metric._replace(name=f"{average}_{name}", title=f"{title}, {average}")
    for average in ("ema", "average")
    for metric in WEIGHT_METRICS
    for name, title in [metric[:2]]
}
"""Metrics by their name in metrics.jsonl, of the weights and of their averages."""
ABSENT = "–"


def common_metric(runs: Sequence[RunSummary]) -> Metric:
    """What `select` names; bits per byte for generators whose tokenizers differ.

    Raises:
        UserError: the runs can't be compared; it names what differs.
    """
    check_comparable([(r.label, r.experiment, r.content["data"], _tokenizer(r)) for r in runs])
    if runs[0].experiment["kind"] == GENERATOR and len(set(map(_tokenizer, runs))) > 1:
        average = runs[0].training.best_weights
        return METRICS[f"{average}_bits_per_byte" if average else "bits_per_byte"]
    return METRICS[runs[0].training.best_metric]


def _tokenizer(run: RunSummary) -> str:
    return run.content["tokenizer"]["sha256"]


def check_comparable(models: Sequence[tuple[str, dict[str, Any], dict[str, Any], Any]]) -> None:
    """Raises a `UserError` where models are not measured alike; it names what differs.

    Args:
        models: label, experiment as `to_dict` writes it, fingerprint of its data, and what tells
            its tokenizer from others.
    """
    cut = any(experiment.get("truncate") for _, experiment, *_ in models)
    (reference, there), *rest = ((label, _measured(*model, cut)) for label, *model in models)
    for label, here in rest:
        for name in there | here:
            if here.get(name) != there.get(name):
                mine, other = (_short(side.get(name)) for side in (here, there))
                raise UserError(
                    f"{label} and {reference} are not measured alike, so they can't be compared: "
                    f"{name} is {mine} and {other}"
                )


def _measured(
    experiment: dict[str, Any], data: dict[str, Any], tokenizer: Any, cut: bool
) -> dict[str, Any]:
    """All that decides how a model is measured, by name.

    `cut` says whether any of those it is compared with cuts its pairs of texts to its context.
    """
    kind, source, model = (experiment[name] for name in ("kind", "data", "model"))
    select = experiment["training"]["best_metric"]
    found = {"the experiment": kind} | data | {"best_metric": select}
    if kind == CLASSIFIER:
        return found | {"labels": source.get("labels")}
    if kind == GENERATOR:
        parts = "validation_fraction", "validation_tokens"
        found |= {name: source.get(name) for name in parts}
        if source["kind"] == "Corpus":
            return found | {"context": model["context"]}  # of the windows that are scored
        # Runs that start from another's model cut the tokens of a text in two.
        return found | {"what is cut": f"tokens {tokenizer}" if experiment["init_from"] else "text"}
    if select.endswith("loss"):  # of translators, of their tokens
        return found | {"the tokenizer": tokenizer, "context": model["context"] if cut else None}
    scored = {"lowercase": experiment["tokenizer"]["lowercase"]}
    return found | {"bleu_sentences": experiment["bleu_sentences"]} | scored


def _short(value: Any) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return text if len(text) <= 24 else text[:20] + "..."


def warnings(runs: Sequence[RunSummary]) -> list[str]:
    """What is to be kept in mind, a sentence each."""
    found, experiments = [], [run.experiment for run in runs]
    of_generators = experiments[0]["kind"] == GENERATOR
    if of_generators and len({each["model"]["context"] for each in experiments}) > 1:
        found.append(
            "the contexts differ, and with them what a validation measures: a longer one sees more "
            "before each token"
        )
    if of_generators and len(set(map(_tokenizer, runs))) > 1:
        found.append("the tokenizers differ: losses are in bits per byte of the text")
    made = [run.content.get("made_with", {}) for run in runs]
    names = dict.fromkeys(name for versions in made for name in versions)
    known = {name: {versions[name] for versions in made if name in versions} for name in names}
    differ = [name for name, versions in known.items() if len(versions) > 1]
    if changed := [name for name in differ if name not in ("tlite", "commit")]:
        found.append(f"they were not made with the same {', '.join(changed)}")
    if pretrained := [run for run in runs if is_pretrained(run.experiment)]:
        found.append("what came before training, of pre-trained models say, is not counted")
        if one := [run.label for run in pretrained if run.training.seeds > 1]:
            found.append(
                f"one pre-trained model is under all seeds of {', '.join(one)}: what another would "
                "do is in no interval"
            )
    return found


def is_pretrained(experiment: dict[str, Any]) -> bool:
    """True if an experiment, as `to_dict` writes it, starts from a pretrained model."""
    stage = experiment.get("pretraining") or {"pretraining_steps": 0}
    return bool(experiment.get("init_from") or stage["pretraining_steps"])


def differing_fields(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """By the field's name what it is in each of the runs; only those that differ.

    A field of a model's part is "norm.epsilon"; the function that it calls is "norm" itself.
    """
    differ = _differ("", [run.experiment for run in runs])
    names = Counter(_last_name(path) for path, _ in differ)
    found = {}
    for path, values in differ:
        name, texts = _last_name(path), list(map(shown, values))
        if len(set(texts)) == 1:  # functions of one name, in files that have changed
            texts = [f"{texts[0]} ({digest})" for digest in _changed_digests(values)]
        found[name if names[name] == 1 else path] = texts
    return found


def _changed_digests(values: list[Any]) -> list[str]:
    """Digests of the first file that is not the same for all functions; repr of other values."""
    digests = [v.get("sha256") if isinstance(v, dict) else None for v in values]
    if not all(isinstance(files, dict) for files in digests):
        return list(map(repr, values))
    names = dict.fromkeys(name for files in digests for name in files)
    name = next(n for n in names if len({files.get(n) for files in digests}) > 1)
    return [files.get(name, ABSENT)[:8] for files in digests]


def _last_name(path: str) -> str:
    """The last name of a path; of what is in a model's part those after the model."""
    if path.startswith("model."):
        return path.removeprefix("model.").removesuffix(".function")
    return path.rpartition(".")[2]


def _differ(path: str, values: list[Any]) -> list[tuple[str, list[Any]]]:
    """(path, values) of what is not the same in all; parts of one kind are looked into."""
    if all(value == values[0] for value in values):
        return []
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1 or kinds <= {"", None, "function"}:
        return [(path, values)]
    values = [value.get("fields", value) for value in values]
    found = []
    for name in values[0]:
        if not all(name in value for value in values):
            continue  # a config that was not written by tlite may lack fields
        inner = f"{path}.{name}" if path else name
        found += _differ(inner, [value[name] for value in values])
    return found


def _kind(value: Any) -> Any:
    """What two values have in common if one looks into them: of the user's class all but fields."""
    if not isinstance(value, dict):
        return ""
    if value.get("kind") == "class":
        return repr({name: v for name, v in value.items() if name != "fields"})
    return value.get("kind")


def shown(value: Any) -> str:
    """A value as a person would write it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or ABSENT
    if not isinstance(value, dict):
        return str(value) or ABSENT
    own = value.get("kind") in ("function", "class")  # of the user's
    name = f"{value.get('name')} of {value.get('file')}" if own else value.get("kind", "")
    fields = value.get("fields", {}) if own else value
    given = [f"{n} {shown(v)}" for n, v in fields.items() if n != "kind" and v is not None]
    return name + (f"({', '.join(given)})" if given else "")
