"""Draw the pictures of the README, light and dark, into experiments/pictures: `make pictures`.

Attention and induction are those of models that are trained here, in three minutes. The other
pictures are drawn from what their commands have printed into experiments/results.
"""

import io
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import tyro
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve
from PIL import Image

from experiments.tools.scaling import fit_smaller, plot_losses
from tlite import functional as F
from tlite import inspection
from tlite.comparison.scaling import Runs
from tlite.models import Embedding, FeedForward, GeneratorConfig
from tlite.pictures.labels import matplotlib_label
from tlite.runs import Run
from tlite.runs.experiment_files import load_experiment
from tlite.runs.models import load
from tlite.training import Trainer, TrainingConfig, generator_task

ROOT = Path(__file__).parents[1]
RESULTS, PICTURES = ROOT / "results", ROOT / "pictures"
THEMES = {"light": ("#1f2328", "#d0d7de"), "dark": ("#e6edf3", "#3d444d")}  # ink, lines
COLOURS = ["#4c8dff", "#e5534b", "#46a758", "#d29922", "#a371f7", "#39c5cf"]  # legible on both
WIDTH = 7.0  # inches, of 110 dots


def theme(name: str) -> AbstractContextManager:
    """Return the settings for a light or a dark page, whose background shows through."""
    ink, lines = THEMES[name]
    inks = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return matplotlib.rc_context(
        dict.fromkeys(inks, ink)
        | {"axes.edgecolor": lines, "grid.color": lines, "savefig.transparent": True}
        | {"axes.prop_cycle": matplotlib.cycler(color=COLOURS), "legend.frameon": False}
        | {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
    )


def new_figure(height: float, columns: int = 1) -> tuple[Figure, np.ndarray]:
    return plt.subplots(1, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False)


def save(name: str, draw: Callable[[], Figure]) -> None:
    """Write both themes of a picture, in a palette of 128 colours."""
    PICTURES.mkdir(exist_ok=True)
    for kind in THEMES:
        with theme(kind):
            figure, file = draw(), io.BytesIO()
            figure.savefig(file, format="png", dpi=110)
            plt.close(figure)
        path = PICTURES / f"{name}{'' if kind == 'light' else '-dark'}.png"
        image = Image.open(file)
        image.quantize(128, Image.Quantize.FASTOCTREE).save(path, optimize=True)
        print(f"{path.relative_to(ROOT.parent)}: {path.stat().st_size / 1000:.0f} kB")


def comparison() -> Figure:
    """Learning curves of a study: mean over seeds with a band of one standard deviation."""
    figure, ((axes,),) = new_figure(3.4)
    for entry in json.loads((RESULTS / "study.json").read_text())["runs"]:
        steps, values = entry["curve"]["steps"], np.array(entry["curve"]["values"])
        mean, spread = values.mean(1), values.std(1, ddof=1)
        norm, positions = entry["label"].split()
        style = "-" if norm == "pre_norm" else "--"
        colour = COLOURS[["learned", "sinusoidal", "rotary"].index(positions)]
        label = f"{norm.replace('_', '-')}, {positions}"
        axes.plot(steps, mean, style, color=colour, marker="o", ms=3, label=label)
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
    axes.set(xlabel="step", ylabel="validation loss (nats per character)")
    axes.grid(alpha=0.5)
    axes.legend(title="five seeds each")
    return figure


def scaling_law() -> Figure:
    """Losses by size and tokens; the law predicts those of the largest size."""
    measured = json.loads((RESULTS / "scaling.json").read_text())
    runs = Runs(*(np.array(measured[name], float) for name in Runs._fields))
    figure, ((axes,),) = new_figure(3.6)
    plot_losses(axes, runs, fit_smaller(runs))
    return figure


def benchmark() -> Figure:
    """Tokens per second of a model of GPT-2's shape, beside transformers, and their ratio."""
    log = (RESULTS / "bench-only-gpt2.log").read_text(encoding="utf-8")
    works = re.findall(r"^GPT-2's shape, [^:]*: (.*?)\n(.*?tlite / .*?)\n", log, flags=re.S | re.M)
    figure, grid = new_figure(2.1, len(works))
    for axes, (title, rows) in zip(grid[0], works, strict=True):
        rates = re.findall(r"^  ([\w ,]+?) {2,}([\d,]+) ", rows, flags=re.M)
        names = [name.removeprefix("Hugging Face, ") for name, _ in rates]
        values = [int(rate.replace(",", "")) for _, rate in rates]
        bars = axes.barh(names, values, color=[COLOURS[0], *[COLOURS[3]] * (len(names) - 1)])
        axes.bar_label(bars, [f" {value:,}" for value in values])
        ratio = re.search(r"tlite / .*: ([\d.]+) ", rows)[1]
        axes.set_title(f"{title.replace('(s)', 's')}\n{ratio} times as fast", fontsize=9)
        axes.set(xlim=(0, 1.3 * max(values)), xticks=[])
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.tick_params(left=False)
    return figure


VOCABULARY, CONTEXT = 32, 32


def draw_repeated(data, rng, step, size):
    """Return inputs and targets (B, T): random tokens repeated with a period of 5 to 16."""
    rng = F.fold_in(rng, step)
    once = jax.random.randint(rng, (size, CONTEXT), 0, VOCABULARY)
    period = jax.random.randint(F.fold_in(rng, 1), (size, 1), 5, 17)
    tokens = jnp.take_along_axis(once, jnp.arange(CONTEXT + 1) % period, axis=1)
    return tokens[:, :-1], tokens[:, 1:]


def train_induction() -> tuple[list[int], np.ndarray, np.ndarray]:
    """Train the model of notebooks/08_inside.py on repeated tokens.

    Returns:
        Steps (N,), the induction score of each block's head at them (N, 2), the loss of each step.
    """
    config = GeneratorConfig(
        vocabulary_size=VOCABULARY,
        context=CONTEXT,
        width=64,
        num_heads=1,
        num_blocks=2,
        feed_forward=FeedForward(mlp_dim=64),
        positions="rotary",
        block="pre_norm",
        embedding=Embedding(init_std=1.0),
    )
    training = TrainingConfig(
        steps=600, batch_size=32, learning_rate=1e-2, schedule="cosine", warmup_steps=50
    )
    task = generator_task(config)._replace(draw=draw_repeated)
    trainer = Trainer(task, training, jnp.zeros(0, int))
    repeated = inspection.repeated_tokens(jax.random.key(1), CONTEXT // 2, VOCABULARY, batch=64)
    state, scores, losses = trainer.init(), [], []
    steps = list(range(0, training.steps + 1, 25))
    for step in steps:
        (model,) = trainer.models(state.parameters)
        patterns = inspection.score_attention_patterns(model, repeated)
        scores.append(np.asarray(patterns["induction"])[:, 0])
        if step < training.steps:
            state, history = trainer.train(state, step, 25)
            losses.extend(history["loss"][:, 0])
    return steps, np.array(scores), np.array(losses)


def induction(steps: list[int], scores: np.ndarray, losses: np.ndarray) -> Figure:
    """The loss falls in a step as a head of the second block begins to copy."""
    figure, ((left, right),) = new_figure(2.8, 2)
    left.plot(losses, color=COLOURS[0])
    left.set(xlabel="step", ylabel="loss (nats per token)")
    for block, colour in enumerate((COLOURS[3], COLOURS[2])):
        right.plot(steps, scores[:, block], color=colour, marker="o", ms=3, label=f"block {block}")
    right.set(xlabel="step", ylabel="induction score", ylim=(-0.03, 1.03))
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.5)
    return figure


BLOCK, HEAD = 1, 1  # a head that finds where words begin
TEXT = "raise ValueError if the value is not a number"


def attention_arcs(weights: np.ndarray, tokens: list[str], threshold: float = 0.1) -> Figure:
    """Draw one head's attention (T, T) as arcs from each query to its keys.

    The width grows with the weight; weights below the threshold are left out. A query that
    attends to itself has a bar above it.
    """
    labels = [matplotlib_label(token) for token in tokens]
    ends = np.cumsum([max(len(label.replace("\\", "")), 1) + 0.35 for label in labels])
    middle, width = (np.r_[0, ends[:-1]] + ends) / 2, ends[-1]  # in letters
    pairs = np.argwhere(weights >= threshold)
    height = 0.5 * max([*np.abs(middle[pairs[:, 0]] - middle[pairs[:, 1]]), 4.0])
    size = WIDTH, max(WIDTH / width * (height + 3.2), 0.8)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for query, key in pairs:
        (start, end), weight = middle[[query, key]], weights[query, key]
        top = 0.9 + abs(start - end) * 2 / 3
        points = [(start, 0.9), (start, top), (end, top), (end, 0.9)]  # nearly half an ellipse
        if query == key:
            points = [(start + shift, 1.0) for shift in (-0.3, -0.1, 0.1, 0.3)]
        curve = Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * 3])
        style = {"lw": 0.5 + 2.5 * weight, "alpha": min(0.15 + 0.85 * weight, 1.0)}
        axes.add_patch(PathPatch(curve, fill=False, ec=COLOURS[0], capstyle="round", **style))
    style = {"ha": "center", "va": "baseline", "fontsize": min(72 * WIDTH / width * 1.25, 14)}
    for label, x in zip(labels, middle, strict=True):
        axes.text(x, 0.1, label, alpha=1.0 if label.strip("␣↵⇥") else 0.45, **style)
    axes.set(xlim=(-0.4, width + 0.4), ylim=(-0.6, height + 1.2))
    axes.axis("off")
    return figure


def head_weights(run: Path) -> np.ndarray:
    """Return the weights (T, T) of the head on the text."""
    model, tokenizer = load(run)
    name = f"blocks.{BLOCK}.attention.weights"
    _, captured = inspection.run(model, jnp.asarray(tokenizer.encode(TEXT)), capture=name)
    return np.asarray(captured[name])[HEAD]


def main(demo: Path | None = None) -> None:
    """Draw the pictures of the README.

    Args:
        demo: A run of `make demo`; trained if None.
    """
    matplotlib.use("Agg")
    save("comparison", comparison)
    save("scaling-law", scaling_law)
    save("benchmark", benchmark)
    training = train_induction()
    save("induction", lambda: induction(*training))
    with tempfile.TemporaryDirectory() as folder:
        if demo is None:
            Run.create(load_experiment("demo"), demo := Path(folder, "demo")).train()
        weights = head_weights(demo)
    save("attention", lambda: attention_arcs(weights, [*TEXT]))


if __name__ == "__main__":
    tyro.cli(main)
