"""Checks that runs can be compared, their common metric, and differences of their configs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tlite.comparison.flops import CLASSIFIER, GENERATOR, base_kind
from tlite.comparison.summaries import Metric, RunSummary
from tlite.errors import UserError
from tlite.training.run_dir import UNLABELLED, component_fields

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
    """Return the best metric of the runs; bits per byte for generators with other tokenizers.

    Raises:
        UserError: the runs are not measured alike.
    """
    check_comparable([(r.label, r.experiment, r.content["data"], _tokenizer(r)) for r in runs])
    if runs[0].experiment["kind"] == GENERATOR and len(set(map(_tokenizer, runs))) > 1:
        average = runs[0].training.best_weights
        return METRICS[f"{average}_bits_per_byte" if average else "bits_per_byte"]
    return METRICS[runs[0].training.best_metric]


def _tokenizer(run: RunSummary) -> str:
    return run.content["tokenizer"]["sha256"]


def check_comparable(models: Sequence[tuple[str, dict[str, Any], dict[str, Any], Any]]) -> None:
    """Raise a `UserError` that names the difference if models are not measured alike.

    Args:
        models: label, experiment as `to_dict` writes it, fingerprint of its data, and an
            identification of its tokenizer.
    """
    truncates = any(experiment.get("truncate") for _, experiment, *_ in models)
    settings = [(label, _measurement(*model, truncates)) for label, *model in models]
    reference, expected = settings[0]
    for label, actual in settings[1:]:
        for name in expected | actual:
            if actual.get(name) != expected.get(name):
                one, other = (_shorten(side.get(name)) for side in (actual, expected))
                raise UserError(
                    f"{label} and {reference} are not measured alike, so they can't be compared: "
                    f"{name} is {one} and {other}"
                )


def _measurement(
    experiment: dict[str, Any], data: dict[str, Any], tokenizer: Any, truncates: bool
) -> dict[str, Any]:
    """Return all that decides how a model is measured, by name.

    Args:
        truncates: True if any of the models cuts pairs of texts to its context.
    """
    kind, source = experiment["kind"], experiment["data"]
    model = component_fields(experiment["model"])
    base, metric = base_kind(experiment), experiment["training"]["best_metric"]
    data = {name: value for name, value in data.items() if name != UNLABELLED}
    settings = {"the experiment": kind} | data | {"best_metric": metric}
    fields = component_fields(source)
    if base == CLASSIFIER:
        return settings | {"labels": fields.get("labels")}
    if base == GENERATOR:
        settings |= {n: fields.get(n) for n in ("validation_fraction", "validation_tokens")}
        if kind != GENERATOR:  # a user's class, which may have no bits per byte
            settings["the tokenizer"] = tokenizer
        if source["kind"] == "Corpus":
            return settings | {"context": model["context"]}  # of the windows that are scored
        # Runs that start from a pretrained model split the tokens of a text.
        return settings | {"split of": f"tokens {tokenizer}" if experiment["init_from"] else "text"}
    if metric.endswith(("loss", "accuracy")):  # of translators, of their tokens
        context = model["context"] if truncates else None
        return settings | {"the tokenizer": tokenizer, "context": context}
    return settings | {
        "bleu_sentences": experiment["bleu_sentences"],
        "lowercase": experiment["tokenizer"]["lowercase"],
    }


def _shorten(value: Any) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return text if len(text) <= 24 else text[:20] + "..."


def warnings(runs: Sequence[RunSummary]) -> list[str]:
    """Return limits of the comparison, a sentence each."""
    warnings, experiments = [], [run.experiment for run in runs]
    if base_kind(experiments[0]) == GENERATOR:
        if len({component_fields(e["model"])["context"] for e in experiments}) > 1:
            warnings.append("the contexts differ: a longer one sees more before each token")
        if len(set(map(_tokenizer, runs))) > 1:
            warnings.append("the tokenizers differ: losses are in bits per byte of the text")
    versions = [run.content.get("made_with", {}) for run in runs]
    names = dict.fromkeys(name for each in versions for name in each)
    values = {name: {each[name] for each in versions if name in each} for name in names}
    differ = [name for name, numbers in values.items() if len(numbers) > 1]
    if packages := [name for name in differ if name not in ("tlite", "commit")]:
        warnings.append(f"the versions of {', '.join(packages)} differ")
    if pretrained := [run for run in runs if is_pretrained(run.experiment)]:
        warnings.append("costs leave out pretraining")
        if several := [run.label for run in pretrained if run.training.seeds > 1]:
            warnings.append(
                f"all seeds of {', '.join(several)} start from one pretrained model: intervals "
                "leave out its variance"
            )
    return warnings


def is_pretrained(experiment: dict[str, Any]) -> bool:
    """Return True if an experiment, as `to_dict` writes it, starts from a pretrained model."""
    stage = experiment.get("pretraining") or {"pretraining_steps": 0}
    return bool(experiment.get("init_from") or stage["pretraining_steps"])


def differing_fields(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return the fields whose values differ: a text for each run by the field's name.

    A field of a model's component is "norm.epsilon"; the function that it calls is "norm" itself.
    """
    fields, differences = {}, _differing("", [run.experiment for run in runs])
    names = Counter(_short_name(path) for path, _ in differences)
    for path, values in differences:
        name, texts = _short_name(path), list(map(format_value, values))
        if len(set(texts)) == 1:  # functions of one name, in files that have changed
            texts = [f"{texts[0]} ({digest})" for digest in _changed_digests(values)]
        fields[name if names[name] == 1 else path] = texts
    return fields


def _changed_digests(values: list[Any]) -> list[str]:
    """Return the digests of the first file that differs between functions; repr of other values."""
    digests = [v.get("sha256") if isinstance(v, dict) else None for v in values]
    if not all(isinstance(files, dict) for files in digests):
        return list(map(repr, values))
    names = dict.fromkeys(name for files in digests for name in files)
    name = next(n for n in names if len({files.get(n) for files in digests}) > 1)
    return [files.get(name, ABSENT)[:8] for files in digests]


def _short_name(path: str) -> str:
    if path.startswith("model."):
        return path.removeprefix("model.").removesuffix(".function")
    return path.rpartition(".")[2]


def _differing(path: str, values: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return (path, values) of all that differs; components of one type are compared by field."""
    if all(value == values[0] for value in values):
        return []
    types = {_type_of(value) for value in values}
    if len(types) > 1 or types <= {"", None, "function"}:
        return [(path, values)]
    values = [component_fields(value) for value in values]
    # A config that was not written by tlite may lack fields.
    names = [name for name in values[0] if all(name in value for value in values)]
    inner = {name: f"{path}.{name}" if path else name for name in names}
    pairs = ((inner[name], [value[name] for value in values]) for name in names)
    return [difference for pair in pairs for difference in _differing(*pair)]


def _type_of(value: Any) -> Any:
    if not isinstance(value, dict):
        return ""
    if value.get("kind") in ("class", "library"):  # of the user: name, file and digest
        return repr({name: v for name, v in value.items() if name not in ("fields", "kwargs")})
    return value.get("kind")


def format_value(value: Any) -> str:
    """Return a value of a config as text: `Rotary(base 10000)`."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value)) or ABSENT
    if not isinstance(value, dict):
        return str(value) or ABSENT
    name, fields = value.get("kind", ""), value
    if name in ("function", "class"):
        name, fields = f"{value.get('name')} of {value.get('file')}", value.get("fields", {})
    elif name == "library":
        name, fields = str(value.get("name")), value.get("kwargs") or {}
    texts = [f"{n} {format_value(v)}" for n, v in fields.items() if n != "kind" and v is not None]
    return name + (f"({', '.join(texts)})" if texts else "")
