"""A classifier's report on a part of its data: scores, confusions, pictures, telling texts."""

import textwrap
from pathlib import Path
from typing import Literal

import numpy as np

from tlite.errors import UserError, disk_errors, needs_extra
from tlite.experiment import say_what_is_read
from tlite.inspection import (
    plot_confusion,
    plot_learning_curves,
    plot_predictions_by_value,
    plot_probability_by_value,
)
from tlite.recipes.classifier import ClassifierRecipe, percent
from tlite.recipes.ensemble import describe_ensemble
from tlite.recipes.recipe import check_member
from tlite.terminal import show
from tlite.training.metrics import read_metrics


def evaluate_classifier(
    run: ClassifierRecipe,
    checkpoint: str = "best",
    split: str = "validation",
    member: int | Literal["all"] = 0,
    beside: Path | None = None,
) -> None:
    """Print and draw how a classifier does on a part of its data.

    Args:
        member: whose precision, confusions and texts are shown; "all": those of the mean of the
            members' probabilities, whose accuracy and loss are printed too. Accuracy is everyone's.
        beside: another run, whose learning curves are drawn beside this one's.
    """
    with needs_extra("text"):
        from sklearn.metrics import classification_report, confusion_matrix
    number = len(run.experiment.training.members)
    member = 0 if member == "all" and number == 1 else member
    if member != "all":
        check_member(member, number)
    runs = [run] if beside is None else [run, ClassifierRecipe.open(beside)]
    classes = run.experiment.data.classes
    if split == "test":  # the other parts were told when the run was opened
        say_what_is_read(run.experiment, [split])
    examples = list(run.experiment.data.examples(split))
    of_members, step = run.predict(examples, checkpoint)
    labels = np.array([-1 if e.label is None else e.label for e in examples])
    known = labels >= 0
    if not known.any():
        raise UserError(f"no text of the {split} part has one of the classes")
    accuracy = (of_members.argmax(-1) == labels)[:, known].mean(1)
    print(f"step {step:,}: {split} accuracy {percent(accuracy)}, {known.sum():,} texts")
    run.print_baseline(split, examples)

    probabilities = of_members.mean(0) if member == "all" else of_members[member]
    predicted = probabilities.argmax(-1)
    which = f" (member {member})" if number > 1 else ""
    if member == "all":
        which = " (the ensemble)"
        right = 100 * (predicted == labels)[known].mean()
        losses = cross_entropies(np.stack([*of_members, probabilities])[:, known], labels[known])
        print(
            f"{describe_ensemble(run.experiment.training)}: accuracy {right:.1f} %, loss "
            f"{losses[-1]:.4f} (of one: {losses[:-1].mean():.4f} ± {losses[:-1].std(ddof=1):.4f})"
        )
    ids = list(range(len(classes)))
    print(f"\nscores by class{which}")
    show(
        classification_report(
            labels[known], predicted[known], labels=ids, target_names=classes, zero_division=0
        )
    )
    confusions = confusion_matrix(labels[known], predicted[known], labels=ids)
    print(f"confusions{which}: rows are true classes, columns predicted ones")
    show(_table(confusions, classes))
    for title, right in (("right", True), ("wrong", False)):
        print(f"\nthe most certain {title} ones{which}")
        shown = np.flatnonzero(known & ((predicted == labels) == right))
        for index in shown[np.argsort(-probabilities[shown].max(-1))][:3]:
            show(
                f"  {classes[labels[index]]}, predicted {classes[predicted[index]]} "
                f"({probabilities[index].max():.3f}): "
                f"{textwrap.shorten(examples[index].text, 150, placeholder=' ...')}"
            )
    draw(runs, split, probabilities, examples, confusions)


def cross_entropies(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log p of the labels (N,), the mean over them, for each of probabilities (M, N, C)."""
    chosen = probabilities[:, np.arange(len(labels)), labels].astype(np.float64)
    return -np.log(np.maximum(chosen, np.finfo(np.float32).tiny)).mean(1)


def draw(runs: list[ClassifierRecipe], split: str, probabilities, examples, confusions) -> None:
    """The pictures of the first run; with a second one, both runs' learning curves."""
    run = runs[0]
    classes = run.experiment.data.classes
    values = [example.value for example in examples]
    labels = np.array([-1 if e.label is None else e.label for e in examples])
    if len(classes) == 2:
        of_what, name, shown = probabilities[:, 1], classes[1], np.ones(len(values), bool)
    else:
        shown = labels >= 0
        of_what, name = probabilities[np.arange(len(labels)), labels], "the true class"
    shown_values = [value for value, s in zip(values, shown, strict=True) if s]
    plots = {
        f"{split}-confusion": lambda: plot_confusion(confusions, classes),
        f"{split}-probability": lambda: plot_probability_by_value(
            of_what[shown], shown_values, name
        ),
        f"{split}-predictions": lambda: plot_predictions_by_value(
            probabilities.argmax(-1), values, classes
        ),
    }
    if len(runs) > 1:
        curves = {_title(r): read_metrics(r.run.metrics, most=1000) for r in runs}
        plots["learning-curves"] = lambda: plot_learning_curves(curves)
    with disk_errors(run.run.plots):
        run.save_plots(plots)
    names = ", ".join(f"{name}.png" for name in plots)
    print(f"\ndrawn in {run.run.plots}: {names}")


def _title(run: ClassifierRecipe) -> str:
    dropout = getattr(run.experiment.model, "dropout", 0.0)
    return f"{run.experiment.name} {run.run.folder.name}\ndropout {dropout:g}"


def _table(counts: np.ndarray, classes: list[str]) -> str:
    width = max(*map(len, classes), 6) + 2
    rows = ["".join(f"{name:>{width}}" for name in ["", *classes])]
    for name, row in zip(classes, counts, strict=True):
        rows.append(f"{name:>{width}}" + "".join(f"{n:>{width},}" for n in row))
    return "\n".join(rows)
