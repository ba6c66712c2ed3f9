"""Fit the scaling law to a study of experiments/scaling.py, print and draw it:

    .venv/bin/python -m experiments.tools.scaling STUDY

The largest size is left out of the fit, and predicted by it.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import tyro
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.comparison.scaling import Law, Runs, bootstrap, fit, interval, predictions
from tlite.comparison.study import Study, read_study
from tlite.errors import UserError, disk_errors
from tlite.training.metrics import iterate_metrics


class Fit(NamedTuple):
    """A law fitted to all sizes but the largest, and its prediction of that."""

    law: Law
    laws: Law
    """Bootstrapped."""
    fitted: Runs
    largest: Runs
    band: Float[np.ndarray, "2 R"]
    """Lower and upper ends of the predicted losses of the largest size."""


def fit_smaller(runs: Runs) -> Fit:
    """Fit a law to all sizes but the largest, and predict the losses of that."""
    is_largest = runs.parameters == runs.parameters.max()
    fitted, largest = runs.subset(~is_largest), runs.subset(is_largest)
    law = fit(fitted)
    laws = bootstrap(fitted, law)
    drawn = predictions(fitted, law, laws, largest.parameters, largest.tokens)
    return Fit(law, laws, fitted, largest, interval(drawn))


def read_runs(study: Study) -> tuple[list[str], Runs]:
    """Return the names of the finished variants, and their sizes, tokens and losses."""
    names, rows = [], []
    for each in study.variants:
        if not each.ended:
            print(f"{each.name} is left out: it {'failed' if each.failed else 'is not finished'}")
            continue
        config = each.config()
        training, context = config.training, config.model.context
        examples = training.steps * training.batch_size * training.gradient_accumulation_steps
        *_, line = iterate_metrics(study.folder / each.run / "metrics.jsonl", "validation")
        names.append(each.name)
        losses = line.get("loss_replicas", [line["loss"]])
        rows.append((each.parameters, examples * context, losses))
    if not rows:
        raise UserError(f"no variant of {study.folder} is finished")
    if len({len(losses) for *_, losses in rows}) > 1:
        raise UserError(f"the variants of {study.folder} must have the same number of seeds")
    return names, Runs(*(np.array(column, float) for column in zip(*rows, strict=True)))


def report(folder: tyro.conf.Positional[Path]) -> None:
    """Print losses, law, prediction and compute-optimal sizes of a study; draw them into it.

    Args:
        folder: The folder of the study.

    Raises:
        UserError: it is no study, or has too few finished runs.
    """
    names, runs = read_runs(read_study(folder))
    result = fit_smaller(runs)
    print_runs(names, runs, result.law)
    print_law(result.law, result.laws)
    print_prediction(result)
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    plot_losses(axes, runs, result)
    path = folder / "scaling-law.png"
    measurements = {name: column.tolist() for name, column in runs._asdict().items()}
    with disk_errors(folder):
        figure.savefig(path, dpi=120)
        (folder / "scaling.json").write_text(json.dumps({"variants": names, **measurements}) + "\n")
    plt.close(figure)
    print(f"\nsaved in {path}")


def print_runs(names: list[str], runs: Runs, law: Law) -> None:
    """Print a line for each run, with the loss that the law gives."""
    several = runs.losses.shape[1] > 1
    print(f"{'variant':>10} {'parameters':>10} {'tokens':>10} {'loss':>7} {'law':>7} {'error':>7}")
    for name, parameters, tokens, losses in zip(names, *runs, strict=True):
        expected, mean = law.loss(parameters, tokens), losses.mean()
        spread = f" ± {losses.std(ddof=1):.4f}, {len(losses)} seeds" if several else ""
        sizes = f"{name:>10} {parameters:10,.0f} {tokens:10,.0f}"
        print(f"{sizes} {mean:7.4f} {expected:7.4f} {mean / expected - 1:+7.2%}{spread}")


def print_law(law: Law, laws: Law) -> None:
    """Print the numbers of the law with their bootstrap intervals."""
    print("\nL(N, D) = E + A / N^alpha + B / D^beta, in nats per character; with 95 % intervals:")
    for name, value, resampled in zip(Law._fields, law, laws, strict=True):
        lower, upper = interval(resampled)[:, 0]
        print(f"{name:>10} {value:10.4g}  {lower:.4g} to {upper:.4g}")
    lower, upper = interval(laws.beta / (laws.alpha + laws.beta))[:, 0]
    exponent = law.beta / (law.alpha + law.beta)
    size = f"N* ~ C^{exponent:.2f} ({lower:.2f} to {upper:.2f})"
    print(f"\ncompute-optimal, C = 6 N D: {size}, D* ~ C^{1 - exponent:.2f}")


def print_prediction(result: Fit) -> None:
    """Print predicted and measured losses of the largest size."""
    size = result.largest.parameters[0]
    print(f"\n{int(size):,} parameters, left out of the fit:")
    print(f"{'tokens':>10} {'predicted':>9}  {'95 %':^16} {'measured':>8} {'error':>7}")
    columns = result.largest.tokens, *result.band, result.largest.losses
    for tokens, lower, upper, losses in zip(*columns, strict=True):
        predicted, mean, ends = result.law.loss(size, tokens), losses.mean(), (lower, upper)
        band = "{:.4f} to {:.4f}".format(*ends)
        error = mean / predicted - 1
        print(f"{tokens:>10,.0f} {predicted:9.4f}  {band} {mean:8.4f} {error:+7.2%}")


def plot_losses(axes: Axes, runs: Runs, result: Fit) -> None:
    """Plot the losses of each size by training tokens, the law, and what it predicts."""
    tokens = np.geomspace(runs.tokens.min(), runs.tokens.max(), 100)
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for color, size in zip(colors, np.unique(runs.parameters), strict=False):
        one, is_largest = runs.subset(runs.parameters == size), size in result.largest.parameters
        if is_largest:
            order = np.argsort(one.tokens)
            band = {"color": color, "alpha": 0.2, "lw": 0, "label": "its prediction"}
            axes.fill_between(one.tokens[order], *result.band[:, order], **band)
        label = f"{shorten(size)}, left out of the fit" if is_largest else shorten(size)
        spread = one.losses.std(1, ddof=1) if one.losses.shape[1] > 1 else None
        style = {"marker": "o", "linestyle": "none", "color": color, "label": label}
        axes.errorbar(one.tokens, one.losses.mean(1), spread, **style)
        axes.plot(tokens, result.law.loss(size, tokens), "--" if is_largest else "-", color=color)
    axes.set(xlabel="training characters D", xscale="log")
    axes.set(ylabel="validation loss (nats per character)")
    axes.grid(alpha=0.3)
    axes.legend(title="parameters N", fontsize="small")


def shorten(size: float) -> str:
    """Return 7,344 as "7.34k"."""
    return f"{size / 1e6:.3g}M" if size >= 1e6 else f"{size / 1e3:.3g}k"


def main() -> int:
    try:
        tyro.cli(report)
    except UserError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
