"""By which measure runs are compared, what is refused or warned of, and how configs differ."""

import dataclasses
import json
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from tests.helpers.fake_runs import CLASSIFIER, DATA, GENERATOR, TRANSLATOR, fake_run, varied
from tlite.comparison.comparable import (
    MEASURES,
    common_measure,
    differing_fields,
    shown,
    warnings,
)
from tlite.comparison.rows import read_rows
from tlite.data import LabelledText, TextFile
from tlite.data.corpus import Corpus
from tlite.errors import UserError
from tlite.experiment import BPE, Pretrained, Pretraining
from tlite.models import Attention, LogisticConfig


def rows(tmp_path, *runs):
    """Of experiments, or of (experiment, what else is told of its run)."""
    pairs = [run if isinstance(run, tuple) else (run, {}) for run in runs]
    folders = [fake_run(tmp_path / f"r{i}", run, **said) for i, (run, said) in enumerate(pairs)]
    return read_rows(folders)[0]


def test_less_is_better_of_losses_alone():
    lower = {name for name, measure in MEASURES.items() if measure.lower}
    assert lower == {"loss", "bits_per_byte"}


OTHER_TOKENS = {"tokens": "u"}
BY_LOSS = varied(TRANSLATOR, best_metric="loss")


@pytest.mark.parametrize(
    ("runs", "measure"),
    [
        ([GENERATOR, GENERATOR], "loss"),
        ([varied(GENERATOR, best_metric="accuracy")] * 2, "accuracy"),
        ([GENERATOR, (GENERATOR, OTHER_TOKENS)], "bits_per_byte"),
        ([CLASSIFIER, (CLASSIFIER, OTHER_TOKENS)], "accuracy"),
        ([TRANSLATOR, (TRANSLATOR, OTHER_TOKENS)], "bleu"),
        ([BY_LOSS, replace(BY_LOSS, bleu_sentences=10)], "loss"),
        # The same text from elsewhere is the same data.
        ([GENERATOR, replace(GENERATOR, data=TextFile("a.txt"))], "loss"),
    ],
)
def test_the_measure_is_what_select_names_or_bits_per_byte(tmp_path, runs, measure):
    assert common_measure(rows(tmp_path, *runs)) is MEASURES[measure]


def refused(tmp_path, *runs):
    with pytest.raises(UserError, match=r"^r1 and r0 are not measured alike, so [^\n]*$") as caught:
        common_measure(rows(tmp_path, *runs))
    return str(caught.value).partition("compared: ")[2]


def test_other_data_is_refused(tmp_path):
    other = GENERATOR, {"data": DATA | {"sha256": "e" * 64}}
    told = f"sha256 is {'e' * 20}... and {'d' * 20}..."
    assert refused(tmp_path, GENERATOR, other) == told
    other = GENERATOR, {"data": {"characters": 1000}}
    assert refused(tmp_path / "b", GENERATOR, other).startswith("sha256 is None and d")


def with_data(experiment, *sources):
    return [replace(experiment, data=data) for data in sources]


OF_TEXT, OF_CORPUS = GENERATOR.data, replace(GENERATOR, data=Corpus("c"))
LABELLED = [LabelledText(training=("a",), labels={"1": label}) for label in ("bad", "no")]
MEASURED_OTHERWISE = {
    "the experiment is ClassifierExperiment and GeneratorExperiment": (GENERATOR, CLASSIFIER),
    "best_metric is accuracy and loss": (GENERATOR, varied(GENERATOR, best_metric="accuracy")),
    "validation_fraction is 0.2 and 0.05": with_data(
        GENERATOR, OF_TEXT, replace(OF_TEXT, validation_fraction=0.2)
    ),
    "validation_tokens is 200 and 100": with_data(
        GENERATOR, *(Corpus("c", validation_tokens=number) for number in (100, 200))
    ),
    "context is 4 and 8": (OF_CORPUS, varied(OF_CORPUS, {"context": 4})),
    "labels is {'1': 'no'} and {'1': 'bad'}": with_data(CLASSIFIER, *LABELLED),
    "bleu_sentences is 10 and 1,000": (TRANSLATOR, replace(TRANSLATOR, bleu_sentences=10)),
    "lowercase is True and False": (
        TRANSLATOR,
        replace(TRANSLATOR, tokenizer=replace(TRANSLATOR.tokenizer, lowercase=True)),
    ),
    "the tokenizer is u and t": (BY_LOSS, (BY_LOSS, OTHER_TOKENS)),
}


@pytest.mark.parametrize("told", MEASURED_OTHERWISE)
def test_what_is_measured_otherwise_is_refused(tmp_path, told):
    assert refused(tmp_path, *MEASURED_OTHERWISE[told]) == told


def test_what_is_to_be_kept_in_mind(tmp_path):
    assert warnings(rows(tmp_path, CLASSIFIER, (CLASSIFIER, OTHER_TOKENS))) == []
    of_generators = GENERATOR, varied(GENERATOR, {"context": 4}), (GENERATOR, OTHER_TOKENS)
    longer, tokens = warnings(rows(tmp_path / "generators", *of_generators))
    assert longer.startswith("the contexts differ")
    assert tokens.startswith("the tokenizers differ")
    first = replace(CLASSIFIER, pretraining=Pretraining())
    none = replace(CLASSIFIER, pretraining=Pretraining(pretraining_steps=0))
    one_seed = varied(first, seeds=1)
    assert warnings(rows(tmp_path / "pretrained", CLASSIFIER, first, none, one_seed)) == [
        "what came before training, of pre-trained models say, is not counted",
        "one pre-trained model is under all seeds of r1: what another would do is in no interval",
    ]


def test_what_was_made_with_other_sources_is_warned_of(tmp_path):
    one, other = rows(tmp_path, GENERATOR, GENERATOR)
    assert warnings([one, other]) == []
    changed = {"jax": "0.11", "commit": "d", "tlite": "2", "tlite/training": "x"}
    other = dataclasses.replace(other, content=other.content | {"made_with": changed})
    assert warnings([one, other]) == ["they were not made with the same jax, tlite/training"]


OTHER = replace(CLASSIFIER, pretraining=Pretraining(), name="other")
THIRD = replace(OTHER, pretraining=Pretraining(pretraining_dropout=0.3))
PARTS = {"norm": "rms", "attention": Attention(windows=(4, 0))}
BY_NAME = [replace(GENERATOR, data=Corpus(n), init_from=Pretrained(f"{n}-model")) for n in "ab"]
DIFFERING = [
    (
        [GENERATOR, varied(GENERATOR, PARTS, learning_rate=3e-4, seeds=5), GENERATOR],
        {
            "norm.method": ["layer", "rms", "layer"],
            "attention.windows": ["–", "4, 0", "–"],
            "learning_rate": ["0.001", "0.0003", "0.001"],
            "seeds": ["3", "5", "3"],
        },
    ),
    # Another source of data, another tokenizer, another kind of model.
    (
        [GENERATOR, replace(GENERATOR, data=TextFile("a.txt"), tokenizer=BPE(300))],
        {"data": ["*", "TextFile(path a.txt, *"], "tokenizer": ["Characters", "BPE(pieces 300)"]},
    ),
    (
        [CLASSIFIER, replace(CLASSIFIER, model=LogisticConfig(11, 2))],
        {"model": ["*", "LogisticConfig(vocabulary_size 11, *"]},
    ),
    # Parts that only some have; names that two parts have.
    (
        [CLASSIFIER, OTHER, THIRD],
        {"name": ["fake", "other", "other"], "pretraining": ["none", "*", "*_dropout 0.3*"]},
    ),
    ([OTHER, THIRD], {"pretraining_dropout": ["0.1", "0.3"]}),
    (BY_NAME, {"data.folder": ["a", "b"], "init_from.folder": ["a-model", "b-model"]}),
]


@pytest.mark.parametrize(("experiments", "expected"), DIFFERING)
def test_fields_that_differ_are_told_by_the_shortest_name(tmp_path, experiments, expected):
    found = differing_fields(rows(tmp_path, *experiments))
    assert found.keys() == expected.keys()
    for name, texts in expected.items():
        assert all(map(fnmatch, found[name], texts)), found[name]


def own(folder, part, kind, name, sha256="0" * 64, helper="2" * 64, **fields):
    """A run with a part, or its function, of the user's, whose file there is not."""
    run = fake_run(folder)
    content = json.loads((run / "config.json").read_text())
    digests = {"mine.py": sha256, "helper.py": helper}
    reference = {"kind": kind, "file": "mine.py", "name": name, "sha256": digests} | fields
    model = content["experiment"]["model"]
    model[part] = reference if kind == "class" else model[part] | {"function": reference}
    (run / "config.json").write_text(json.dumps(content))
    return run


def test_user_functions_differ_by_name_and_changed_file(tmp_path):
    alibi = "attention", "function", "alibi"
    plain, a = fake_run(tmp_path / "plain"), own(tmp_path / "a", *alibi)
    b = own(tmp_path / "b", *alibi, sha256="1" * 64)
    assert differing_fields(read_rows([plain, a])[0]) == {"attention": ["auto", "alibi of mine.py"]}
    assert differing_fields(read_rows([a, b])[0]) == {
        "attention": ["alibi of mine.py (00000000)", "alibi of mine.py (11111111)"]
    }
    c = own(tmp_path / "c", *alibi, helper="3" * 64)
    assert differing_fields(read_rows([a, c])[0]) == {
        "attention": ["alibi of mine.py (22222222)", "alibi of mine.py (33333333)"]
    }


def test_user_components_differ_by_name_and_fields(tmp_path):
    plain, block = fake_run(tmp_path / "plain"), ("block", "class", "Parallel")
    a, b, c = (
        own(tmp_path / name, *block, digest * 64, fields={"pre_norm": pre_norm, "scale": None})
        for name, digest, pre_norm in (("a", "0", True), ("b", "0", False), ("c", "1", True))
    )

    def told(*runs):
        return differing_fields(read_rows(runs)[0])

    name = "Parallel of mine.py(pre_norm yes)"
    assert told(plain, a)["block"][1] == name
    assert told(a, b) == {"block.pre_norm": ["yes", "no"]}
    assert told(a, c) == {"block": [f"{name} (00000000)", f"{name} (11111111)"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "none"), (True, "yes"), (False, "no"), (10_000, "10,000"), (1e-8, "1e-08")],
        *[("", "–"), ([], "–"), ([1, 2], "1, 2"), ("rms", "rms"), ({"1": "bad"}, "(1 bad)")],
    ],
)
def test_values_as_a_person_would_write_them(value, text):
    assert shown(value) == text
