"""A classifier's report on a part of its data: scores, confusions, pictures, telling texts."""

import textwrap

import numpy as np

from tlite.errors import UserError, needs_extra
from tlite.recipes.data import say_what_is_read
from tlite.recipes.ensemble import describe_ensemble
from tlite.recipes.loading import check_member
from tlite.recipes.options import Evaluate
from tlite.recipes.recipe import Recipe, spread
from tlite.terminal import show
from tlite.training.metrics import read_metrics
from tlite.training.runs import Run, open_run


def evaluate_classifier(recipe: Recipe, options: Evaluate) -> None:
    """Print and draw how a classifier does on a part of its data.

    Precision, confusions and texts are those of the options' member; with "all" of the mean of the
    members' probabilities, whose accuracy and loss are printed too. Accuracy is everyone's.
    """
    with needs_extra("text"):
        from sklearn.metrics import confusion_matrix
    number = recipe.experiment.training.seeds
    together = recipe.is_together(options.member)
    member = 0 if options.member == "all" else options.member
    check_member(member, number)
    split, beside = options.split, options.beside
    runs = [recipe.run]
    if beside is not None:
        runs.append(open_run(beside, type(recipe.experiment)))
    classes = recipe.experiment.data.classes
    if split == "test":  # the other parts were told when the run was opened
        say_what_is_read(recipe.experiment, [split])
    examples = list(recipe.experiment.data.examples(split))
    of_members, step = recipe.predict(examples, options.checkpoint)
    labels = np.array([-1 if e.label is None else e.label for e in examples])
    known = labels >= 0
    if not known.any():
        raise UserError(f"no text of the {split} part has one of the classes")
    accuracy = (of_members.argmax(-1) == labels)[:, known].mean(1)
    print(
        f"step {step:,}: {split} accuracy {spread(100 * accuracy, '.1f')} %, {known.sum():,} texts"
    )
    recipe.print_baseline(split, examples)

    probabilities = of_members.mean(0) if together else of_members[member]
    predicted = probabilities.argmax(-1)
    which = f" (member {member})" if number > 1 else ""
    if together:
        which = " (the ensemble)"
        right = 100 * (predicted == labels)[known].mean()
        losses = cross_entropies(np.stack([*of_members, probabilities])[:, known], labels[known])
        print(
            f"{describe_ensemble(recipe.experiment.training)}: accuracy {right:.1f} %, loss "
            f"{losses[-1]:.4f} (of one: {losses[:-1].mean():.4f} ± {losses[:-1].std(ddof=1):.4f})"
        )
    ids = list(range(len(classes)))
    confusions = confusion_matrix(labels[known], predicted[known], labels=ids)
    print_classes(which, classes, labels[known], predicted[known], confusions)
    print_certain(which, classes, examples, labels, probabilities)
    draw(recipe, runs, split, probabilities, examples, confusions)


def print_classes(which: str, classes: list[str], labels, predicted, confusions) -> None:
    """Precision, recall and F1 of each class, and which is taken for which."""
    from sklearn.metrics import classification_report

    ids = list(range(len(classes)))
    settings = {"labels": ids, "target_names": classes, "zero_division": 0}
    print(f"\nscores by class{which}")
    show(classification_report(labels, predicted, **settings))
    print(f"confusions{which}: rows are true classes, columns predicted ones")
    show(_table(confusions, classes))


def print_certain(which: str, classes: list[str], examples, labels, probabilities) -> None:
    """The texts of a known class of which the model is most certain, rightly and wrongly."""
    predicted = probabilities.argmax(-1)
    for title, right in (("right", True), ("wrong", False)):
        print(f"\nthe most certain {title} ones{which}")
        shown = np.flatnonzero((labels >= 0) & ((predicted == labels) == right))
        for index in shown[np.argsort(-probabilities[shown].max(-1))][:3]:
            show(
                f"  {classes[labels[index]]}, predicted {classes[predicted[index]]} "
                f"({probabilities[index].max():.3f}): "
                f"{textwrap.shorten(examples[index].text, 150, placeholder=' ...')}"
            )


def cross_entropies(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log p of the labels (N,), the mean over them, for each of probabilities (M, N, C)."""
    chosen = probabilities[:, np.arange(len(labels)), labels].astype(np.float64)
    return -np.log(np.maximum(chosen, np.finfo(np.float32).tiny)).mean(1)


def draw(recipe: Recipe, runs: list[Run], split: str, probabilities, examples, confusions) -> None:
    """The pictures of a recipe's run; of several runs also their learning curves."""
    from tlite import pictures  # matplotlib is slow to import

    classes = recipe.experiment.data.classes
    values = [example.value for example in examples]
    labels = np.array([-1 if e.label is None else e.label for e in examples])
    if len(classes) == 2:
        of_what, name, shown = probabilities[:, 1], classes[1], np.ones(len(values), bool)
    else:
        shown = labels >= 0
        of_what, name = probabilities[np.arange(len(labels)), labels], "the true class"
    shown_values = [value for value, s in zip(values, shown, strict=True) if s]
    plots = {
        f"{split}-confusion": lambda: pictures.plot_confusion(confusions, classes),
        f"{split}-probability": lambda: pictures.plot_probability_by_value(
            of_what[shown], shown_values, name
        ),
        f"{split}-predictions": lambda: pictures.plot_predictions_by_value(
            probabilities.argmax(-1), values, classes
        ),
    }
    if len(runs) > 1:
        curves = {_title(run): read_metrics(run.metrics, most=1000) for run in runs}
        plots["learning-curves"] = lambda: pictures.plot_learning_curves(curves)
    recipe.save_plots(plots)
    names = ", ".join(f"{name}.png" for name in plots)
    print(f"\ndrawn in {recipe.run.plots}: {names}")


def _title(run: Run) -> str:
    dropout = getattr(run.experiment.model, "dropout", 0.0)
    return f"{run.experiment.name} {run.folder.name}\ndropout {dropout:g}"


def _table(counts: np.ndarray, classes: list[str]) -> str:
    width = max(*map(len, classes), 6) + 2
    rows = ["".join(f"{name:>{width}}" for name in ["", *classes])]
    for name, row in zip(classes, counts, strict=True):
        rows.append(f"{name:>{width}}" + "".join(f"{n:>{width},}" for n in row))
    return "\n".join(rows)
