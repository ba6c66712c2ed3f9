"""Runs are compared by a common metric or refused; differing fields have short names."""

import json
from dataclasses import replace
from fnmatch import fnmatch

import optax
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.fake_runs import CLASSIFIER, DATA, GENERATOR, MASKED, TRANSLATOR, fake_run
from tests.helpers.runs import varied
from tlite.comparison.comparable import (
    METRICS,
    common_metric,
    differing_fields,
    warnings,
)
from tlite.comparison.summaries import read_summaries
from tlite.data import LabelledText, TextFile
from tlite.data.corpus import Corpus
from tlite.experiment import BPE, Pretrained, Pretraining
from tlite.models import Attention, LogisticConfig
from tlite.training.run_dir import UNLABELLED


def summaries(tmp_path, *runs):
    """Read runs of experiments, or of (experiment, arguments of `fake_run`)."""
    pairs = [run if isinstance(run, tuple) else (run, {}) for run in runs]
    folders = [fake_run(tmp_path / f"r{i}", run, **args) for i, (run, args) in enumerate(pairs)]
    return read_summaries(folders)[0]


OTHER_TOKENS = {"tokens": "u"}
BY_LOSS = varied(TRANSLATOR, best_metric="loss")
BY_ACCURACY = varied(TRANSLATOR, best_metric="accuracy")  # of tokens


@pytest.mark.parametrize(
    ("runs", "metric"),
    [
        ([GENERATOR, GENERATOR], "loss"),
        ([varied(GENERATOR, best_metric="accuracy")] * 2, "accuracy"),
        ([varied(MASKED, best_metric="accuracy")] * 2, "accuracy"),
        ([GENERATOR, (GENERATOR, OTHER_TOKENS)], "bits_per_byte"),
        ([varied(GENERATOR, ema=0.9, best_metric="ema_loss")] * 2, "ema_loss"),
        ([CLASSIFIER, (CLASSIFIER, OTHER_TOKENS)], "accuracy"),
        ([CLASSIFIER, (CLASSIFIER, {"data": DATA | {UNLABELLED: "u"}})], "accuracy"),
        ([TRANSLATOR, (TRANSLATOR, OTHER_TOKENS)], "bleu"),
        ([BY_LOSS, replace(BY_LOSS, bleu_sentences=10)], "loss"),
        # The same text in another file is the same data.
        ([GENERATOR, replace(GENERATOR, data=TextFile("a.txt"))], "loss"),
    ],
)
def test_the_measure_is_the_best_metric_or_bits_per_byte(tmp_path, runs, metric):
    assert common_metric(summaries(tmp_path, *runs)) is METRICS[metric]


def with_data(experiment, *sources):
    return [replace(experiment, data=data) for data in sources]


TEXT, CORPUS = GENERATOR.data, replace(GENERATOR, data=Corpus("c"))
LABELLED = [LabelledText(training=("a",), labels={"1": label}) for label in ("bad", "no")]
OTHER_DATA = {"data": DATA | {"sha256": "e" * 64}}
OTHER_TEXTS = {"data": DATA | {"SHA-256 of the validation part": "e" * 64}}
DIFFERENTLY_MEASURED = {
    f"sha256 is {'e' * 20}... and {'d' * 20}...": (GENERATOR, (GENERATOR, OTHER_DATA)),
    # Equally many texts in each: their scores must not be paired.
    f"SHA-256 of the validation part is {'e' * 20}... and None": (
        CLASSIFIER,
        (CLASSIFIER, OTHER_TEXTS),
    ),
    "the experiment is ClassifierExperiment and GeneratorExperiment": (GENERATOR, CLASSIFIER),
    "best_metric is accuracy and loss": (GENERATOR, varied(GENERATOR, best_metric="accuracy")),
    "validation_fraction is 0.2 and 0.05": with_data(
        GENERATOR, TEXT, replace(TEXT, validation_fraction=0.2)
    ),
    "validation_fraction is 0.3 and 0.05": with_data(
        MASKED, TEXT, replace(TEXT, validation_fraction=0.3)
    ),
    "the tokenizer is v and t": (MASKED, (MASKED, {"tokens": "v"})),  # it has no bits per byte
    "validation_tokens is 200 and 100": with_data(
        GENERATOR, *(Corpus("c", validation_tokens=number) for number in (100, 200))
    ),
    "context is 4 and 8": (CORPUS, varied(CORPUS, context=4)),
    "labels is {'1': 'no'} and {'1': 'bad'}": with_data(CLASSIFIER, *LABELLED),
    "bleu_sentences is 10 and 1,000": (TRANSLATOR, replace(TRANSLATOR, bleu_sentences=10)),
    "lowercase is True and False": (
        TRANSLATOR,
        replace(TRANSLATOR, tokenizer=replace(TRANSLATOR.tokenizer, lowercase=True)),
    ),
    "the tokenizer is u and t": (BY_LOSS, (BY_LOSS, OTHER_TOKENS)),
    "the tokenizer is x and t": (BY_ACCURACY, (BY_ACCURACY, {"tokens": "x"})),
}


@pytest.mark.parametrize(("difference", "runs"), DIFFERENTLY_MEASURED.items())
def test_differently_measured_runs_are_refused(tmp_path, difference, runs):
    message = complaint(common_metric, summaries(tmp_path, *runs))
    assert message.startswith("r1 and r0 are not measured alike, so ")
    assert message.partition("compared: ")[2] == difference


def test_another_validation_part_of_user_data_is_refused(tmp_path):
    runs = summaries(tmp_path, GENERATOR, GENERATOR)
    for run, fraction in zip(runs, (0.1, 0.5), strict=True):
        fields = {"validation_fraction": fraction}
        data = {"kind": "class", "name": "Mine", "file": "mine.py", "sha256": {}, "fields": fields}
        run.experiment["data"] = data
    assert complaint(common_metric, runs).endswith("validation_fraction is 0.5 and 0.1")


def test_limits_of_a_comparison_are_warnings(tmp_path):
    assert warnings(summaries(tmp_path, CLASSIFIER, (CLASSIFIER, OTHER_TOKENS))) == []
    generators = GENERATOR, varied(GENERATOR, context=4), (GENERATOR, OTHER_TOKENS)
    contexts, tokens = warnings(summaries(tmp_path / "generators", *generators))
    assert contexts.startswith("the contexts differ")
    assert tokens.startswith("the tokenizers differ")
    first = replace(CLASSIFIER, pretraining=Pretraining())
    none = replace(CLASSIFIER, pretraining=Pretraining(pretraining_steps=0))
    one_seed = varied(first, seeds=1)
    _, shared = warnings(summaries(tmp_path / "pretrained", CLASSIFIER, first, none, one_seed))
    assert "all seeds of r1" in shared
    one, other = summaries(tmp_path / "versions", GENERATOR, GENERATOR)
    assert warnings([one, other]) == []
    changed = {"jax": "0.11", "commit": "d", "tlite": "2", "tlite/training": "x"}
    other = replace(other, content=other.content | {"made_with": changed})
    assert warnings([one, other]) == ["the versions of jax differ"]


OTHER = replace(CLASSIFIER, pretraining=Pretraining(), name="other")
THIRD = replace(OTHER, pretraining=Pretraining(pretraining_dropout=0.3))
LAMB = varied(GENERATOR, optimizer=optax.lamb)
RMS = {"norm": "rms", "attention": Attention(windows=(4, 0))}
BY_NAME = [replace(GENERATOR, data=Corpus(n), init_from=Pretrained(f"{n}-model")) for n in "ab"]
DIFFERING = [
    (
        [GENERATOR, varied(GENERATOR, **RMS, learning_rate=3e-4, seeds=5), GENERATOR],
        {
            "norm.method": ["layer", "rms", "layer"],
            "attention.windows": ["–", "4, 0", "–"],
            "learning_rate": ["0.001", "0.0003", "0.001"],
            "seeds": ["3", "5", "3"],
        },
    ),
    # Functions of optax.
    (
        [GENERATOR, LAMB, varied(LAMB, schedule=optax.cosine_decay_schedule(1.0, 50))],
        {
            "optimizer": ["AdamW(*", "optax.lamb", "optax.lamb"],
            "schedule": ["constant", "constant", "optax.cosine_decay_schedule(*decay_steps 50*)"],
        },
    ),
    # Other data, tokenizers and models.
    (
        [GENERATOR, replace(GENERATOR, data=TextFile("a.txt"), tokenizer=BPE(300))],
        {
            "data": ["*", "TextFile(path a.txt, *"],
            "tokenizer": ["Characters", "BPE(num_subwords 300)"],
        },
    ),
    (
        [CLASSIFIER, replace(CLASSIFIER, model=LogisticConfig(11, 2))],
        {"model": ["*", "LogisticConfig(vocabulary_size 11, *"]},
    ),
    # Fields that only some runs have; names that occur twice.
    (
        [CLASSIFIER, OTHER, THIRD],
        {"name": ["fake", "other", "other"], "pretraining": ["none", "*", "*_dropout 0.3*"]},
    ),
    ([OTHER, THIRD], {"pretraining_dropout": ["0.1", "0.3"]}),
    (BY_NAME, {"data.folder": ["a", "b"], "init_from.folder": ["a-model", "b-model"]}),
]


@pytest.mark.parametrize(("experiments", "expected"), DIFFERING)
def test_differing_fields_have_the_shortest_name(tmp_path, experiments, expected):
    fields = differing_fields(summaries(tmp_path, *experiments))
    assert fields.keys() == expected.keys()
    for name, patterns in expected.items():
        assert all(map(fnmatch, fields[name], patterns)), fields[name]


def custom_row(folder, component, reference, sha256="0", helper="2"):
    """Return the run of a run with a user's component or function, whose file does not exist."""
    run = fake_run(folder)
    content = json.loads((run / "config.json").read_text())
    digests = {"mine.py": 64 * sha256, "helper.py": 64 * helper}
    reference = reference | {"file": "mine.py", "sha256": digests}
    model, is_class = content["experiment"]["model"], reference["kind"] == "class"
    model[component] = reference if is_class else model[component] | {"function": reference}
    (run / "config.json").write_text(json.dumps(content))
    return read_summaries([run])[0][0]


def test_user_functions_differ_by_name_and_changed_file(tmp_path):
    (plain,) = summaries(tmp_path, GENERATOR)
    alibi = "attention", {"kind": "function", "name": "alibi"}
    a = custom_row(tmp_path / "a", *alibi)
    b = custom_row(tmp_path / "b", *alibi, sha256="1")
    c = custom_row(tmp_path / "c", *alibi, helper="3")
    name = "alibi of mine.py"
    assert differing_fields([plain, a]) == {"attention": ["auto", name]}
    assert differing_fields([a, b]) == {"attention": [f"{name} (00000000)", f"{name} (11111111)"]}
    assert differing_fields([a, c]) == {"attention": [f"{name} (22222222)", f"{name} (33333333)"]}


def test_user_components_differ_by_name_and_fields(tmp_path):
    (plain,), block = summaries(tmp_path, GENERATOR), {"kind": "class", "name": "Parallel"}
    a, b, c = (
        custom_row(tmp_path / name, "block", block | {"fields": {"pre_norm": norm}}, digest)
        for name, digest, norm in (("a", "0", True), ("b", "0", False), ("c", "1", True))
    )
    name = "Parallel of mine.py(pre_norm yes)"
    assert differing_fields([plain, a])["block"][1] == name
    assert differing_fields([a, b]) == {"block.pre_norm": ["yes", "no"]}
    assert differing_fields([a, c]) == {"block": [f"{name} (00000000)", f"{name} (11111111)"]}
