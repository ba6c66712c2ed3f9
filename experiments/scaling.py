"""A scaling law on a laptop: what parameters and training tokens do to the loss on Shakespeare.

Six sizes and four budgets of one generator on all of the plays, two seeds each. Every run has a
cosine that ends at its own budget, and is scored once, at its end, on the whole validation part.
The longest budget goes over the text 1.7 times. The learning rate goes by the size: it is
0.01 sqrt(32 / width), as found for 16x2, 32x3 and 64x4 at 1.5 million characters. The law is fitted
without the largest size, which it then has to predict. All parameters are multiplied with every
token, as the embedding is the output layer too and positions have none: N counts them all.

command   make scaling   (or, of a study that is there: python -m experiments.scaling STUDY)
machine   two cores of an AMD EPYC with AVX-512
time      80 min for 20 variants, all but the four larger ones of 8M, beside much other work
result    E 1.43, alpha 0.29, beta 0.82; 449,952 parameters, left out of the fit, at 4M characters:
          predicted 1.658 (1.618 to 1.686), measured 1.6556 +- 0.0015
"""

import dataclasses
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tyro

from experiments.scaling_pictures import plot_compute, plot_losses
from tlite.comparison.scaling import Law, Runs, bootstrap, fit, interval, predictions
from tlite.comparison.study import Study, read_study
from tlite.data import Shakespeare
from tlite.errors import UserError, disk_errors
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig, LMHead
from tlite.training import TrainingConfig
from tlite.training.metrics import iterate_metrics

SIZES = {  # width, blocks
    "16x2": (16, 2),
    "24x2": (24, 2),
    "32x3": (32, 3),
    "48x3": (48, 3),
    "64x4": (64, 4),
    "96x4": (96, 4),
}
BUDGETS = {"1M": 1_000_000, "2M": 2_000_000, "4M": 4_000_000, "8M": 8_000_000}
BATCH, CONTEXT = 16, 64

experiment = GeneratorExperiment(
    name="scaling",
    data=Shakespeare(),
    model=GeneratorConfig(
        context=CONTEXT,
        block="pre_norm",
        norm="rms",
        feed_forward=FeedForward(activation="gelu"),
        positions="rotary",
        dropout=0.0,
        bias=False,
        head=LMHead(tied=True),
    ),
    training=TrainingConfig(
        batch_size=BATCH,
        schedule="cosine",
        beta2=0.99,
        weight_decay=0.1,
        clip_norm=1.0,
        seeds=2,
        precision="auto",
    ),
    prompt="LYSANDER.\n",
)


def variant(width: int, num_blocks: int, tokens: int) -> GeneratorExperiment:
    """The generator of a size, trained on so many tokens."""
    steps = tokens // (BATCH * CONTEXT)
    num_heads = max(width // 16, 2)
    model = dataclasses.replace(
        experiment.model, width=width, num_heads=num_heads, num_blocks=num_blocks
    )
    training = dataclasses.replace(
        experiment.training,
        steps=steps,
        warmup_steps=steps // 20,
        evaluate_every=steps,
        learning_rate=0.01 * (32 / width) ** 0.5,
    )
    return dataclasses.replace(experiment, model=model, training=training)


variants = {
    f"{size}-{budget}": variant(*shape, tokens)
    for budget, tokens in BUDGETS.items()
    for size, shape in SIZES.items()
}


def measured(study: Study) -> tuple[list[str], Runs]:
    """The names of the variants that have come to their end, and what they measured."""
    names, rows = [], []
    for each in study.variants:
        if not each.ended:
            print(f"{each.name} is left out: it {'failed' if each.failed else 'is not finished'}")
            continue
        config = each.config()
        training = config.training
        tokens = (
            training.steps
            * training.batch_size
            * training.gradient_accumulation_steps
            * config.model.context
        )
        *_, line = iterate_metrics(study.folder / each.run / "metrics.jsonl", "validation")
        losses = line.get("loss_replicas", [line["loss"]])
        names.append(each.name)
        rows.append((each.parameters, tokens, losses))
    if not rows:
        raise UserError(f"no variant of {study.folder} is finished")
    if len({len(losses) for *_, losses in rows}) > 1:
        raise UserError(f"the variants of {study.folder} must have the same number of seeds")
    return names, Runs(*(np.array(column, float) for column in zip(*rows, strict=True)))


def report(folder: tyro.conf.Positional[Path]) -> None:
    """Print losses, law, prediction and compute-optimal sizes of a study; draw them into it.

    Args:
        folder: The study's; its largest size is left out of the fit.

    Raises:
        UserError: it is no study, or has too few runs that are finished.
    """
    names, runs = measured(read_study(folder))
    held = runs.parameters == runs.parameters.max()
    fitted, largest = runs.chosen(~held), runs.chosen(held)
    law = fit(fitted)
    laws = bootstrap(fitted, law)
    drawn = interval(predictions(fitted, law, laws, largest.parameters, largest.tokens))
    print_runs(names, runs, law)
    print_law(law, laws)
    print(f"\n{int(largest.parameters[0]):,} parameters, left out of the fit:")
    print(f"{'tokens':>10} {'predicted':>9}  {'95 %':^16} {'measured':>8} {'error':>7}")
    for tokens, lower, upper, loss in zip(largest.tokens, *drawn, largest.losses, strict=True):
        law_says, mean = law.loss(largest.parameters[0], tokens), loss.mean()
        said = f"{lower:.4f} to {upper:.4f}"
        print(f"{tokens:>10,.0f} {law_says:9.4f}  {said} {mean:8.4f} {mean / law_says - 1:+7.2%}")
    print_optimal(runs, law, laws)
    figure, axes = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    plot_losses(fitted, law, largest, drawn, unit="character", axes=axes[0])
    plot_compute(runs, law, unit="character", axes=axes[1])
    path = folder / "scaling-law.png"
    measurements = {name: column.tolist() for name, column in runs._asdict().items()}
    with disk_errors(folder):
        figure.savefig(path, dpi=120)
        (folder / "scaling.json").write_text(json.dumps({"variants": names, **measurements}) + "\n")
    plt.close(figure)
    print(f"\nsaved in {path}")


def print_runs(names: list[str], runs: Runs, law: Law) -> None:
    """A line for each run, with what the law says of it."""
    several = runs.losses.shape[1] > 1
    print(f"{'variant':>10} {'parameters':>10} {'tokens':>10} {'loss':>7} {'law':>7} {'error':>7}")
    for name, parameters, tokens, losses in zip(names, *runs, strict=True):
        says, mean = law.loss(parameters, tokens), losses.mean()
        spread = f" ± {losses.std(ddof=1):.4f}, {len(losses)} seeds" if several else ""
        sizes = f"{name:>10} {parameters:10,.0f} {tokens:10,.0f}"
        print(f"{sizes} {mean:7.4f} {says:7.4f} {mean / says - 1:+7.2%}{spread}")


def print_law(law: Law, laws: Law) -> None:
    """The law's numbers and what the bootstrap makes of them."""
    print("\nL(N, D) = E + A / N^alpha + B / D^beta, in nats per character; with 95 % intervals:")
    for name, value, resampled in zip(Law._fields, law, laws, strict=True):
        lower, upper = interval(resampled)[:, 0]
        print(f"{name:>10} {value:10.4g}  {lower:.4g} to {upper:.4g}")


def print_optimal(runs: Runs, law: Law, laws: Law) -> None:
    """The best size for some amounts of compute within those of the grid, and ten times more."""
    flops = 6 * runs.parameters * runs.tokens
    lower, upper = interval(laws.beta / (laws.alpha + laws.beta))[:, 0]
    exponent = law.beta / (law.alpha + law.beta)
    print(
        f"\ncompute-optimal, C = 6 N D: N* ~ C^{exponent:.2f} ({lower:.2f} to {upper:.2f}),", end=""
    )
    print(f" D* ~ C^{1 - exponent:.2f}")
    print(f"{'C':>9} {'N*':>10} {'95 %':^22} {'D*':>12} {'loss':>7}")
    for c in np.geomspace(flops.min(), 10 * flops.max(), 6):
        parameters, tokens = law.optimal(c)
        low, high = interval(laws.optimal(c)[0])[:, 0]
        ends = f"{low:,.0f} to {high:,.0f}"
        loss = law.loss(parameters, tokens)
        print(f"{c:9.2g} {parameters:10,.0f} {ends:^22} {tokens:12,.0f} {loss:7.3f}")


def main() -> int:
    try:
        tyro.cli(report)
    except UserError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
