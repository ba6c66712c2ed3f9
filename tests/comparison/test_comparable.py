"""What is compared, by which measure, and what is refused in one sentence that says why."""

import dataclasses
from dataclasses import replace

import pytest

from tests.helpers.fake_runs import CLASSIFIER, DATA, GENERATOR, TRANSLATOR, fake_run, varied
from tlite.comparison.comparable import MEASURES, common_measure, warnings
from tlite.comparison.entries import find_entries
from tlite.data import LabelledText, TextFile
from tlite.data.corpus import Corpus
from tlite.errors import UserError
from tlite.experiment import Pretraining


def entries(tmp_path, *runs):
    """Of (experiment, what else is told of its run)."""
    folders = [
        fake_run(tmp_path / f"r{index}", experiment, **settings)
        for index, (experiment, settings) in enumerate(runs)
    ]
    return find_entries(folders).entries


def refused(tmp_path, *runs):
    with pytest.raises(UserError) as caught:
        common_measure(entries(tmp_path, *runs))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("select", ["loss", "accuracy"])
def test_it_is_what_select_names(tmp_path, select):
    experiment = varied(GENERATOR, select=select)
    measure = common_measure(entries(tmp_path, (experiment, {}), (experiment, {})))
    assert measure is MEASURES[select]


def test_what_is_better():
    lower = {name for name, measure in MEASURES.items() if measure.lower}
    assert lower == {"loss", "bits_per_byte"}
    assert MEASURES["loss"].better(-0.1)
    assert not MEASURES["loss"].better(0.1)
    assert MEASURES["bleu"].better(0.1)
    assert not MEASURES["accuracy"].better(-0.1)


def test_generators_with_other_tokens_are_compared_by_bits_per_byte(tmp_path):
    runs = entries(tmp_path, (GENERATOR, {}), (GENERATOR, {"tokens": "u"}))
    assert common_measure(runs) is MEASURES["bits_per_byte"]
    assert "the tokenizers differ" in warnings(runs)[0]


def test_a_classifiers_tokens_may_differ(tmp_path):
    runs = entries(tmp_path, (CLASSIFIER, {}), (CLASSIFIER, {"tokens": "u"}))
    assert common_measure(runs) is MEASURES["accuracy"]
    assert warnings(runs) == []


def test_other_data_is_refused(tmp_path):
    told = refused(tmp_path, (GENERATOR, {}), (GENERATOR, {"data": DATA | {"sha256": "e" * 64}}))
    assert told == (
        "r1 and r0 have different data, so they can't be compared: "
        f"sha256 is {'e' * 20}... and {'d' * 20}..."
    )
    assert "characters is 7 and 1,000" in refused(
        tmp_path / "b", (GENERATOR, {}), (GENERATOR, {"data": DATA | {"characters": 7}})
    )
    assert "have different data" in refused(
        tmp_path / "c", (GENERATOR, {}), (GENERATOR, {"data": {"characters": 1000}})
    )


def test_the_same_text_from_elsewhere_is_the_same_data(tmp_path):
    other = replace(GENERATOR, data=TextFile("a.txt"))
    assert common_measure(entries(tmp_path, (GENERATOR, {}), (other, {})))


def test_other_validation_parts_are_refused(tmp_path):
    other = replace(GENERATOR, data=replace(GENERATOR.data, validation_fraction=0.2))
    told = refused(tmp_path, (GENERATOR, {}), (other, {}))
    assert "have different validation parts" in told
    assert told.endswith("validation_fraction is 0.2 and 0.05")
    corpora = [replace(GENERATOR, data=Corpus("c", validation_tokens=n)) for n in (100, 200)]
    told = refused(tmp_path / "corpora", *((corpus, {}) for corpus in corpora))
    assert told.endswith("validation_tokens is 200 and 100")


def test_other_kinds_are_refused(tmp_path):
    told = refused(tmp_path, (GENERATOR, {}), (CLASSIFIER, {}))
    assert "are of different kinds" in told
    assert "ClassifierExperiment and GeneratorExperiment" in told


def test_other_measures_are_refused(tmp_path):
    told = refused(tmp_path, (GENERATOR, {}), (varied(GENERATOR, select="accuracy"), {}))
    assert told.endswith("select is accuracy and loss")


def test_other_classes_are_refused(tmp_path):
    stars, binary = (
        replace(CLASSIFIER, data=LabelledText(training=("a",), labels=labels))
        for labels in ({"1": "bad", "5": "good"}, {"1": "no", "5": "yes"})
    )
    assert "have different classes" in refused(tmp_path, (stars, {}), (binary, {}))


def test_translations_of_other_parts_or_letters_are_refused(tmp_path):
    fewer = replace(TRANSLATOR, bleu_sentences=10)
    assert "bleu_sentences is 10 and 1,000" in refused(tmp_path, (TRANSLATOR, {}), (fewer, {}))
    lower = replace(TRANSLATOR, tokenizer=replace(TRANSLATOR.tokenizer, lowercase=True))
    told = refused(tmp_path / "b", (TRANSLATOR, {}), (lower, {}))
    assert "write different letters" in told
    assert "lowercase is True and False" in told


def test_a_translators_loss_needs_the_same_tokens_and_its_bleu_does_not(tmp_path):
    by_loss = varied(TRANSLATOR, select="loss")
    told = refused(tmp_path, (by_loss, {}), (by_loss, {"tokens": "u"}))
    assert "have losses of different tokens" in told
    runs = entries(tmp_path / "b", (TRANSLATOR, {}), (TRANSLATOR, {"tokens": "u"}))
    assert common_measure(runs) is MEASURES["bleu"]
    shorter = replace(by_loss, bleu_sentences=10)
    runs = entries(tmp_path / "c", (by_loss, {}), (shorter, {}))
    assert common_measure(runs) is MEASURES["loss"]


def test_another_context_of_a_generator_is_warned_of(tmp_path):
    runs = entries(tmp_path, (GENERATOR, {}), (varied(GENERATOR, {"context": 4}), {}))
    assert common_measure(runs)
    (told,) = warnings(runs)
    assert "the contexts differ" in told


def test_one_pretrained_model_under_several_seeds_is_one_draw(tmp_path):
    first = replace(CLASSIFIER, pretraining=Pretraining())
    none = replace(CLASSIFIER, pretraining=Pretraining(pretraining_steps=0))
    runs = entries(
        tmp_path, (CLASSIFIER, {}), (first, {}), (none, {}), (varied(first, seeds=1), {})
    )
    assert warnings(runs) == [
        "what came before training, of pre-trained models say, is not counted",
        "one pre-trained model is under all seeds of r1: what another would do is in no interval",
    ]


def test_what_was_made_with_other_sources_is_warned_of(tmp_path):
    runs = entries(tmp_path, (GENERATOR, {}), (GENERATOR, {}))
    assert warnings(runs) == []
    changed = {"jax": "0.11", "commit": "d", "tlite": "2", "tlite/training": "x"}
    content = runs[1].content | {"made_with": changed}
    runs[1] = dataclasses.replace(runs[1], content=content)
    assert warnings(runs) == ["they were not made with the same jax, tlite/training"]
