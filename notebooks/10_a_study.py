# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # A study, from the question to the conclusion
#
# **Teaches** how to answer one question about a model: a rule for the decision, tuning for each
# variant, training to a converged loss, an interval, and what the result does not say. **Needs**
# notebooks [3](03_encoder_block.ipynb) and [9](09_change_one_line.ipynb); the text is part of
# Python.
#
# The question: a block computes the feed-forward layer after attention. Wang and Komatsuzaki (2021,
# "GPT-J") compute both from the same vector, side by side, with one norm less:
#
# $$x + \mathrm{attention}(\mathrm{norm}(x)) + \mathrm{feed\ forward}(\mathrm{norm}(x)).$$
#
# That is faster on some devices. Does it cost anything in loss?

# %%
import contextlib
import dataclasses
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tlite
from tlite.comparison.results import compare_runs
from tlite.comparison.statistics import difference
from tlite.data import split_tokens
from tlite.models import Block, apply_layer, apply_norm, init_block
from tlite.text import CharTokenizer

# %% [markdown]
# ## The rule, before the first run
#
# - **Metric**: the cross-entropy of the validation text after the last step.
# - **Smallest effect of interest**: 0.02 nats per character; smaller differences do not matter.
# - **Tuning**: each variant gets its own learning rate, from the same choices. A rate that suits
#   one variant would favour it.
# - **Seeds**: five of each, other ones than those of the tuning.
# - **Converged**: twice as many steps must not change the answer, and the loss must be well below
#   that of counting pairs of characters; a comparison above that says little about the model.
# - **Decision**: by the 95 % interval of the difference.

# %%
EFFECT = 0.02


def conclude(low, high):
    """Return what the 95 % interval of (variant less reference) says about the loss."""
    if low > -EFFECT and high < EFFECT:
        return "no difference that matters"
    if high < 0:
        return "the variant is better"
    if low > 0:
        return "the variant is worse"
    return "undecided: a difference that matters may exist"


# %% [markdown]
# ## The two blocks
#
# `apply_layer` calls the layers of the config, whichever these are. Beside its output a layer
# returns its entries of the cache, here the keys and values of attention, and scalars for the loss.
# (This block has no dropout, as these models have none.)


# %%
@dataclass(frozen=True)
class Parallel(Block):
    """x + attention(norm(x)) + feed_forward(norm(x))."""

    pre_norm: bool = True  # so a norm follows the last block

    def init(self, rng, config):
        params = init_block(rng, dataclasses.replace(config, block="pre_norm"))
        return params._replace(feed_forward_norm=None)

    def __call__(self, params, x, inputs, *, config, cache=None):
        y = apply_norm(config.norm, params.attention_norm, x)
        attended, entries, _ = apply_layer(
            config.attention, params.attention, y, inputs, config=config,
            cache=None if cache is None else cache["attention"],
        )  # fmt: skip
        fed, _, _ = apply_layer(config.feed_forward, params.feed_forward, y, inputs, config=config)
        return x + attended + fed, {"attention": entries}, {}


STEPS = 1000
settings = {
    "model.context": 32,
    "model.width": 32,
    "model.num_blocks": 1,
    "training.steps": STEPS,
    "training.evaluate_every": 200,
    "training.precision": "float32",
}
sequential = tlite.override(tlite.load_experiment("demo"), settings)
variants = {
    "sequential": sequential,
    "parallel": tlite.override(sequential, {"model.block": Parallel()}),
}

# %% [markdown]
# The text's own statistics give the loss to stay below: that of the best prediction from the last
# character alone, as in [notebook 5](05_generator.ipynb).


# %%
def entropy(values):
    p = np.unique(values, return_counts=True)[1] / len(values)
    return -(p * np.log(p)).sum()


data = sequential.data
text = data.load()
_, held_out = split_tokens(CharTokenizer(text).encode(text), data.validation_fraction)
pairs = held_out[:-1].astype(int) * (held_out.max() + 1) + held_out[1:]
bigram_floor = entropy(pairs) - entropy(held_out[:-1])
print(f"{len(text):,} characters, {len(held_out):,} of them for validation")
print(f"from the last character alone: {bigram_floor:.3f} nats per character")

# %% [markdown]
# ## Tuning
#
# `tlite.tune` trains each choice, here with half of the steps and with one seed, which the study
# does not use.

# %%
RATES = [1e-2, 3e-2]
folder = tempfile.TemporaryDirectory()
tuned = {}
for name, variant in variants.items():
    with contextlib.redirect_stdout(io.StringIO()):
        space = {"training.learning_rate": RATES}
        short = tlite.override(variant, {"training.steps": STEPS // 2})
        tuning = tlite.tune(short, space, trials=2, seeds=1, dir=Path(folder.name, name))
    tuned[name] = tlite.override(variant, tuning.values)
    print(f"{name}: learning rate {tuned[name].training.learning_rate:g}")

# %% [markdown]
# ## Training
#
# Five seeds of each variant, with two numbers of steps; each has its own decay of the learning
# rate.

# %%
results = {}
for steps in (STEPS, 2 * STEPS):
    experiments = {
        name: tlite.override(each, {"training.steps": steps}) for name, each in tuned.items()
    }
    with contextlib.redirect_stdout(io.StringIO()):
        study = tlite.train(experiments, seeds=5, dir=Path(folder.name, f"study-{steps}"))
    results[steps] = compare_runs([study.folder], EFFECT)
    for run in results[steps].runs:
        losses = [*run.values(results[steps].metric).values()]
        mean, deviation = np.mean(losses), np.std(losses, ddof=1)
        print(f"{steps} steps, {run.label:>10}, {run.parameters:,} parameters:", end=" ")
        print(f"{mean:.3f} (SD {deviation:.3f})")
folder.cleanup()

# %%
figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
long = results[2 * STEPS]
for run in long.runs:
    steps, values = run.curve(long.metric)
    axes[0].plot(steps, values.mean(1), marker=".", label=run.label)
axes[0].axhline(bigram_floor, color="gray", linestyle=":", label="last character alone")
axes[0].set(ylabel="validation loss (nats per character)")
early = {}
reference, variant = long.runs
for step in reference.validations:
    values = [run.values(long.metric, step) for run in (variant, reference)]
    early[step] = difference(*values, paired=False)
axes[1].errorbar(
    [*early], [d.mean for d in early.values()], yerr=[d.half_width for d in early.values()],
    fmt="o", capsize=4,
)  # fmt: skip
axes[1].axhspan(-EFFECT, EFFECT, alpha=0.15, label="does not matter")
axes[1].axhline(0, color="black", linewidth=1)
axes[1].set(ylabel="parallel less sequential (nats)")
for plot in axes:
    plot.set_xlabel("step")
    plot.grid(alpha=0.3)
    plot.legend()
plt.show()

# %% [markdown]
# On the left the losses, on the right their difference with its interval over seeds.
#
# ## The conclusion
#
# The interval of the decision is wider than those of the figure: it is for new seeds *and* new
# stretches of text ([statistics](guides/statistics.md)).

# %%
for steps, result in results.items():
    ((_, diff),) = result.intervals
    low, high = diff.mean - diff.half_width, diff.mean + diff.half_width
    print(f"{steps} steps: {diff.mean:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}:", end=" ")
    print(conclude(low, high))
final = [np.mean([*run.values(r.metric).values()]) for r in results.values() for run in r.runs[:1]]
print(f"sequential, {STEPS} and {2 * STEPS} steps: {final[0]:.3f} and {final[1]:.3f}")

# %% [markdown]
# With both numbers of steps the parallel block is worse, by several times the smallest effect of
# interest, and both models are far below the loss of the last character alone. By the rule that
# settles it: the answer is the same with twice as many steps, although the losses still fall. The
# right figure shows why the rule asks for that. After 200 steps the parallel block was *better*,
# by its interval over seeds: who stops there may conclude the opposite.
#
# What the study does not say:
#
# - **Other sizes.** With a single block, nothing follows attention but the output layer, so that
#   the parallel feed-forward layer never sees what attention has read. GPT-J has 28 blocks: there
#   the layers of later blocks do.
# - **Other learning rates.** The better rate of both variants was the larger choice; a still larger
#   one may be better for either.
# - **Speed**, which was the reason for the parallel block, was not measured.
#
# ## Exercises
#
# 1. Smaller differences shall count, too: how many seeds would show a difference of 0.01 nats in 80
#    of 100 studies? Can more seeds make the interval as narrow as one likes?
# 2. Somebody compares each run at its best validation in place of its last. Is that fair?
#
# ## Solutions

# %%
((_, diff),) = results[2 * STEPS].intervals
for effect in (0.02, 0.01, 0.005):
    print(f"to show {effect} nats: {diff.required_seeds(effect) or 'more than 1,000'} seeds each")
by_seeds, by_text = diff.half_widths_by_source
print(
    f"95 % half-width over seeds alone {by_seeds:.4f}, over stretches of text alone {by_text:.4f}"
)

# %% [markdown]
# 1. No number of seeds: more of them narrow the first of these two half-widths only. The second
#    depends on the validation text, and only a longer text narrows it. This study could settle the
#    question because the difference is larger than it had to be.
# 2. No: the best validation is chosen on the same text that measures it, so it is better than the
#    model. The variant whose curve is noisier gains more by that. A step that is fixed beforehand,
#    such as the last, favours none.
#
# Next: [a scaling law](11_scaling_law.ipynb), or how a loss depends on size and text.
