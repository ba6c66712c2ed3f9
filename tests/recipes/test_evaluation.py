"""The report on a classifier: numbers that agree with each other, and what the pictures show."""

import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.recipes import LOGISTIC, TEXTS, labelled, train, varied
from tlite.comparison.statistics import variance
from tlite.recipes import ClassifierRecipe
from tlite.recipes.recipe import spread

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def stars(tmp_path_factory):
    """A model of five classes, two seeds."""
    return train(LOGISTIC, tmp_path_factory.mktemp("runs") / "stars")


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    """A model of two classes, which knows nothing of the 3 stars."""
    folder = tmp_path_factory.mktemp("runs")
    test = (str(folder / "test.jsonl"),)
    labelled(folder / "test.jsonl", [("So so", "3"), ("It is a chair", "3")])
    data = labelled(folder / "texts.jsonl", 4 * TEXTS, test=test)
    return train(varied(LOGISTIC, data=data, seeds=1), folder / "binary")


@pytest.fixture
def drawn(monkeypatch):
    """The Axes of each picture that is asked for, not written."""
    matplotlib.use("Agg")
    axes = {}

    def draw(run, plots):
        axes.update((name, plot()) for name, plot in plots.items())

    monkeypatch.setattr(ClassifierRecipe, "save_plots", draw)
    yield axes
    plt.close("all")


@pytest.fixture
def report(capsys):
    """What an evaluation prints."""

    def report(run, **settings) -> str:
        run.evaluate(**settings)
        return capsys.readouterr().out

    return report


def table(out: str, classes: list[str]) -> np.ndarray:
    """The printed confusions."""
    lines = out.split("columns predicted ones\n")[1].splitlines()[1 : len(classes) + 1]
    for line, name in zip(lines, classes, strict=True):
        assert line.strip().startswith(name)
    return np.array([[int(n) for n in line.split()[-len(classes) :]] for line in lines])


def predicted(run, split):
    """Texts and labels of a part, where they are known, and the members' probabilities."""
    known = [e for e in run.experiment.data.examples(split) if e.label is not None]
    labels = np.array([e.label for e in known])
    return np.array([e.text for e in known]), labels, run.predict(known)[0]


@pytest.mark.parametrize(("split", "member"), [("training", 0), ("validation", 1), ("test", 1)])
def test_confusions_and_scores_are_those_of_the_predictions(stars, drawn, report, split, member):
    classes = stars.experiment.data.classes
    out = report(stars, split=split, member=member)
    _, labels, probabilities = predicted(stars, split)
    wanted = np.zeros((5, 5), int)
    np.add.at(wanted, (labels, probabilities[member].argmax(-1)), 1)
    counts = table(out, classes)
    np.testing.assert_array_equal(counts, wanted)
    for index, name in enumerate(classes):
        precision, recall, _, support = re.search(rf"^ +{name} +(.*)$", out, re.M)[1].split()
        right = counts[index, index]
        assert float(precision) == pytest.approx(right / max(counts[:, index].sum(), 1), abs=0.006)
        assert float(recall) == pytest.approx(right / max(counts[index].sum(), 1), abs=0.006)
        assert float(support) == counts[index].sum()
    assert f"(member {member})" in out
    axes = drawn[f"{split}-confusion"]
    shown = {text.get_position(): text.get_text().split("\n")[1] for text in axes.texts}
    assert shown == {(column, row): str(n) for (row, column), n in np.ndenumerate(counts)}


def test_the_accuracy_is_everyones_with_its_spread(stars, drawn, report):
    out = report(stars, split="training")
    _, labels, probabilities = predicted(stars, "training")
    right = 100.0 * (probabilities.argmax(-1) == labels)
    first = f"training accuracy {spread(right.mean(1), '.1f')} %, {len(labels)} texts\n"
    assert out.startswith(f"step {stars.parameters()[1]}: {first}")
    told = re.match(r"95 % .*: ± (\d+\.\d) \(seeds \d+\.\d, texts", out.partition("\n")[2])
    assert float(told[1]) == pytest.approx(variance(right).half_width, abs=0.06)
    assert re.search(r"TF-IDF \+ logistic regression: training accuracy \d+\.\d %", out)


def test_the_mean_is_told_with_its_spread_over_several():
    assert spread(np.array([50.0]), ".1f") == "50.0"
    assert spread(np.array([50.0, 60.0, 70.0]), ".1f") == "60.0 ± 10.0"


def test_texts_that_are_left_out_are_not_scored_and_one_member_has_no_spread(binary, drawn, report):
    out = report(binary)
    assert "member" not in out
    assert "±" not in out.splitlines()[0]
    assert re.match(r"95 % for new texts, with this seed: ± \d+\.\d\n", out.partition("\n")[2])
    assert f"{4 * len(TEXTS) - 4} texts" in out.splitlines()[0]
    assert table(out, ["negative", "positive"]).sum(1).tolist() == [8, 8]
    shown = re.findall(r"predicted .* \(\d\.\d{3}\): (.*)", out)
    assert 3 <= len(shown) == len({*shown})  # of identical texts one


def test_the_most_certain_texts_are_shown_right_and_wrong(stars, drawn, report):
    out = report(stars, split="training")
    texts, labels, (probabilities, _) = predicted(stars, "training")
    most, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    for title, chosen in (("right", right), ("wrong", ~right)):
        shown = out.split(f"the most certain {title} ones (member 0)\n")[1].splitlines()[:3]
        best = sorted(dict(zip(texts[chosen], most[chosen], strict=True)).values())[:-4:-1]
        assert len(shown) == len(best) == 3
        for line, probability in zip(shown, best, strict=True):
            found = re.match(r"  (.*), predicted (.*) \((\d\.\d{3})\): This", line)
            truth, guess, certainty = found.groups()
            assert (truth == guess) == (title == "right")
            assert {truth, guess} <= {*stars.experiment.data.classes}
            assert float(certainty) == pytest.approx(probability, abs=6e-4)


def test_a_part_without_any_class_is_told(binary):
    message = complaint(binary.evaluate, split="test")
    assert message == "no text of the test part has one of the classes"


# Pictures


def groups(axes) -> dict[str, int]:
    """The labels that texts are grouped by, with how many texts."""
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    return {tick.split("\n")[0]: int(re.search(r"\((\d+) texts\)", tick)[1]) for tick in ticks}


def test_the_3_stars_appear_in_the_pictures_of_a_model_that_does_not_know_them(
    binary, drawn, report
):
    report(binary)
    axes = drawn["validation-probability"]
    assert groups(axes) == {"1": 8, "3": 4, "5": 8}
    assert axes.get_ylabel() == "probability of positive"
    bars = drawn["validation-predictions"]
    assert [label.get_text() for label in bars.get_xticklabels()] == ["1", "3", "5"]
    examples = list(binary.data.validation)
    three = np.array([example.value == "3" for example in examples])
    positive = binary.predict(examples)[0][0, three, 1]
    medians = [line.get_ydata()[0] for line in axes.lines if line.get_color() == "C1"]
    assert medians[1] == pytest.approx(np.median(positive), abs=1e-6)
    assert bars.containers[1][1].get_height() == pytest.approx(np.mean(positive > 0.5))


def test_of_five_classes_the_probability_of_the_true_one_is_drawn(stars, drawn, report):
    report(stars, split="training")
    axes = drawn["training-probability"]
    assert axes.get_ylabel() == "probability of the true class"
    counts = {v: sum(e.value == v for e in stars.data.training) for v in "12345"}
    assert groups(axes) == counts
