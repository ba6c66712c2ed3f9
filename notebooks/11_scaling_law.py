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
# # A scaling law: what a larger model is worth, and what a longer training
#
# **Teaches** how to fit a scaling law to small trainings, how sure its predictions are, and which
# questions it can decide and which it can't. **Needs** notebooks [5](05_generator.ipynb) and
# [10](10_a_study.ipynb), and partial derivatives; the text is part of Python.
#
# You have an hour of a computer. A small model can read much text in it, a large one little. Which
# is better, and how good will it be? Hoffmann et al. (2022) answer with a formula, fitted to many
# small trainings: a model of $N$ parameters trained on $D$ tokens ends at the loss
#
# $$L(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta}.$$
#
# $E$ is what no model learns of this text. $A / N^\alpha$ is lost because the model is finite, and
# $B / D^\beta$ because its training is. Here five numbers are fitted to twelve trainings of a few
# seconds, and then used to predict the loss of a model that is larger than all of them.

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from tlite import functional as F
from tlite.comparison.scaling import Runs, bootstrap, fit, interval, predictions
from tlite.data import BuiltinText, contiguous_windows, sample_windows, split_tokens
from tlite.models import CausalLM, GeneratorConfig, LMHead
from tlite.text import CharTokenizer

CONTEXT, BATCH = 32, 8
text = BuiltinText().load()
tokenizer = CharTokenizer(text)
training, held_out = split_tokens(tokenizer.encode(text), 0.03)
training, windows = jnp.asarray(training), contiguous_windows(held_out, CONTEXT)
print(f"{len(training):,} characters to learn from, {len(held_out):,} to measure by")

# %% [markdown]
# ## One training
#
# A generator of one block. Nothing in it is only looked up: the embedding is the output layer too,
# and rotary positions have no table. So all of its parameters are multiplied with every token, and
# all of them count as $N$. A training step then costs about 6 operations for each parameter and
# token: 2 forward, 4 backward.


# %%
def make(width, rng):
    config = GeneratorConfig(
        vocabulary_size=len(tokenizer),
        context=CONTEXT,
        width=width,
        num_heads=2,
        num_blocks=1,
        dropout=0.0,
        bias=False,
        positions="rotary",
        norm="rms",
        block="pre_norm",
        head=LMHead(tied=True),
    )
    return CausalLM(config, rng=rng)


def count(width):
    model = jax.eval_shape(partial(make, width), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(model))


def loss(model, tokens, targets, weights=None):
    total, number = F.cross_entropy(model(tokens), targets, weights)
    return total / number


# %% [markdown]
# The number of steps is an argument, so that one compiled program of a size serves every budget.
# The learning rate rises for a twentieth of the schedule and falls to 0 at its end as a cosine
# does; its peak is lower for wider models. Two seeds are trained at once.

# %%
adam = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


@partial(jax.jit, static_argnums=0)
@partial(jax.vmap, in_axes=(None, 0, None, None))
def train(width, seed, num_steps, schedule):
    """The held-out loss after `num_steps` steps of a schedule that ends after `schedule` steps."""
    key, peak = jax.random.key(seed), 0.01 * (32 / width) ** 0.5
    model = make(width, key)

    def step(number, carry):
        model, state = carry
        drawn = sample_windows(F.fold_in(key, number), training, CONTEXT, BATCH)
        gradient = jax.grad(loss)(model, *drawn)
        updates, state = adam.update(gradient, state)
        rate = peak * (1 + jnp.cos(jnp.pi * number / schedule)) / 2
        rate *= jnp.minimum(1, (number + 1) / (schedule / 20))
        return jax.tree.map(lambda a, by: a - rate * by, model, updates), state

    model, _ = jax.lax.fori_loop(0, num_steps, step, (model, adam.init(model)))
    return loss(model, *windows)


# %% [markdown]
# ## The grid
#
# Four sizes, three budgets; and a fifth size, which is to be predicted. Each training has a
# schedule that ends where it does, as Hoffmann et al. have it: in the middle of a longer one the
# learning rate has not come down yet.

# %%
widths, budgets, seeds, rows = [8, 16, 24, 32, 48], [250, 500, 1000], jnp.arange(2), []
for width in widths:
    by_budget = [np.asarray(train(width, seeds, steps, steps)) for steps in budgets]
    rows += [
        (count(width), steps * BATCH * CONTEXT, losses)
        for steps, losses in zip(budgets, by_budget, strict=True)
    ]
    means = ", ".join(f"{losses.mean():.3f}" for losses in by_budget)
    print(f"{count(width):6,} parameters: {means} nats per character")

everything = Runs(*(np.array(column, float) for column in zip(*rows, strict=True)))
is_largest = everything.parameters == everything.parameters.max()
runs, largest = everything.subset(~is_largest), everything.subset(is_largest)

# %% [markdown]
# ## The fit
#
# `fit` minimises the Huber loss of $\log L(N, D) - \log(\text{measured})$: relative errors beyond
# a thousandth count by their size and not by its square, so that one unlucky run does not bend the
# curve. How sure are its five numbers? Draw the runs anew from themselves, with replacement, fit
# again, and do so a hundred times (the bootstrap): the middle 95 % of what comes out is an
# interval.

# %%
law = fit(runs)
laws = bootstrap(runs, law, resamples=100)
for name, value, resampled in zip(law._fields, law, laws, strict=True):
    lower, upper = interval(resampled)[:, 0]
    print(f"{name:>5} = {value:8.4g}, from {lower:.4g} to {upper:.4g}")

# %% [markdown]
# The intervals are wide: $E$ and $A / N^\alpha$ can stand in for each other where $N$ spans about
# a factor of ten. What they give *together* is known much better. Here is the size that the fit has
# not seen. The band covers two errors: of the fitted law, and of a single run around its law.

# %%
drawn = interval(predictions(runs, law, laws, largest.parameters, largest.tokens))
predicted = law.loss(largest.parameters, largest.tokens)
measured = largest.losses.mean(1)
for place, tokens in enumerate(largest.tokens):
    lower, upper = drawn[:, place]
    inside = "inside" if lower <= measured[place] <= upper else "outside"
    print(
        f"{tokens:7,.0f} tokens: predicted {predicted[place]:.3f}, "
        f"from {lower:.3f} to {upper:.3f};",
        end="",
    )
    print(f" measured {measured[place]:.3f}, {inside}")

# %%
_, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
sizes = np.unique(everything.parameters)
tokens = np.geomspace(everything.tokens.min(), everything.tokens.max(), 100)
for index, size in enumerate(sizes):
    colour = plt.get_cmap("viridis")(0.85 * index / (len(sizes) - 1))
    measured = everything.subset(everything.parameters == size)
    style = "--" if size in largest.parameters else "-"
    for panel, cost in (axes[0], 1), (axes[1], 6 * size):  # of a token: by D, and by C = 6 N D
        label = f"{size / 1000:.3g}k"
        panel.plot(cost * measured.tokens, measured.losses.mean(1), "o", color=colour, label=label)
        panel.plot(cost * tokens, law.loss(size, tokens), style, color=colour)
axes[0].fill_between(largest.tokens, *drawn, color=colour, alpha=0.2, label="its prediction")
flops = np.geomspace(6 * sizes.min() * tokens.min(), 6 * sizes.max() * tokens.max(), 100)
axes[1].plot(flops, law.loss(*law.optimal(flops)), "k:", label="compute-optimal")
axes[0].set_xlabel("training characters D")
axes[1].set_xlabel("training compute C = 6 N D (floating-point operations)")
for panel in axes:
    panel.set(xscale="log", ylabel="validation loss (nats per character)")
    panel.grid(alpha=0.3, which="both")
    panel.legend(title="parameters N", fontsize="small")
plt.show()

# %% [markdown]
# ## How to spend an hour
#
# With $C = 6 N D$ operations to spend, $D = C / (6 N)$, and the loss is a function of $N$ alone.
# Its derivative is 0 where $\alpha A / N^\alpha = \beta B / D^\beta$, and so
#
# $$N^* = G \left(\frac{C}{6}\right)^{\beta / (\alpha + \beta)}, \qquad
# D^* = \frac{1}{G} \left(\frac{C}{6}\right)^{\alpha / (\alpha + \beta)}, \qquad
# G = \left(\frac{\alpha A}{\beta B}\right)^{1 / (\alpha + \beta)}.$$
#
# That is the dotted line of the right picture: no curve lies below it, and each touches it once.
# Where two sizes' curves cross, the larger one takes over.

# %%
flops = 6 * np.median(everything.parameters) * np.median(everything.tokens)
parameters, tokens = law.optimal(flops)
sizes = np.geomspace(parameters / 30, parameters * 30, 3001)
by_search = sizes[law.loss(sizes, flops / 6 / sizes).argmin()]
print(f"{flops:.2g} operations: {parameters:,.0f} parameters, {tokens:,.0f} tokens,", end=" ")
print(f"loss {law.loss(parameters, tokens):.3f}; by search {by_search:,.0f} parameters")

exponent, ends = law.beta / (law.alpha + law.beta), interval(laws.beta / (laws.alpha + laws.beta))
print(f"N* grows as C^{exponent:.2f}, 95 % interval {ends[0, 0]:.2f} to {ends[1, 0]:.2f}")

# %% [markdown]
# ## What the law can decide, and what it can't
#
# The law is a fit with an interval, and so are most answers. Here are three: the loss of
# this budget at its best size, the loss if the size is wrong by a factor of 3 in either direction,
# and the best size itself, for this budget and for 100 times as much.

# %%
low, high = interval(laws.loss(*laws.optimal(flops)))[:, 0]
print(f"the best loss of this budget: {law.loss(parameters, tokens):.3f}, {low:.3f} to {high:.3f}")
for factor in (1 / 3, 3):
    worse = law.loss(factor * parameters, tokens / factor) - law.loss(parameters, tokens)
    print(f"{factor:.2g} times the best size: a loss higher by {worse:.3f}")
for budget in (flops, 100 * flops):
    low, high = interval(laws.optimal(budget)[0])[:, 0]
    print(f"best size for {budget:.1g} operations: {law.optimal(budget)[0]:,.0f}", end=", ")
    print(f"{low:,.0f} to {high:,.0f}")

# %% [markdown]
# It can decide what loss to expect from a size or a budget near those measured, and it can tell
# that the size need not be exact: near the optimum the loss is flat. It can't decide how the hour
# should be spent. The interval of the exponent includes nearly everything from "mostly more text"
# to "mostly more parameters", and it leaves the best size open, the more so the further the budget
# is from those measured. Advice needs a wider grid: that of
# [RESULTS](../experiments/RESULTS.md#a-scaling-law) spans a factor of 27 in size.

# %% [markdown]
# ## What counts as a parameter
#
# In a model of billions the embedding is a trifle. Here it is half of the smallest model. Leave it
# out, as is often done, and the same losses belong to other sizes: the exponents change, and with
# them the advice. Pearce and Song (2024) trace much of the disagreement between two well-known laws
# to this.

# %%
tables = {count(width): width * len(tokenizer) for width in widths}
inner = np.array([size - tables[int(size)] for size in runs.parameters])
without = fit(runs._replace(parameters=inner))
share = tables[count(8)] / count(8)
print(f"the embedding is {share:.0%} of the smallest model")
for name, one in (("with", law), ("without", without)):
    print(f"{name:>8} it: alpha {one.alpha:.2f}, N* ~ C^{one.beta / (one.alpha + one.beta):.2f}")

# %% [markdown]
# `make scaling` does the same with six sizes and four budgets on all of Shakespeare's plays
# ([experiments/scaling.py](../experiments/scaling.py)).
#
# ## Exercises
#
# 1. Give every budget the schedule of the longest: `train(width, seeds, steps, 1000)`. Are runs
#    that are cut off worse than those that were planned to be so short? Which of the five numbers
#    moves most, and what would it make you do with an hour?
# 2. Predict a longer training in place of a larger model: 2,000 steps of the width 24. Train it. Is
#    the prediction as good?
#
# ## Solutions

# %%
cut_off = []
for width, planned in zip(widths[:-1], runs.losses.reshape(-1, 3, 2), strict=True):
    by_budget = [np.asarray(train(width, seeds, steps, 1000)) for steps in budgets[:2]]
    cut_off += [*by_budget, planned[2]]
    means = ", ".join(f"{losses.mean():.3f}" for losses in cut_off[-3:])
    print(f"{count(width):6,} parameters, schedule of 1,000 steps: {means}")
law_of_cut = fit(runs._replace(losses=np.array(cut_off, float)))
for name, planned, cut in zip(law._fields, law, law_of_cut, strict=True):
    print(f"{name:>5}: planned {planned:.4g}, cut off {cut:.4g}")
for name, one in (("planned", law), ("cut off", law_of_cut)):
    print(f"{name}: N* ~ C^{one.beta / (one.alpha + one.beta):.2f}")

# %%
parameters, tokens = np.array([count(24)]), np.array([2000 * BATCH * CONTEXT])
measured = np.asarray(train(24, seeds, 2000, 2000)).mean()
predicted = law.loss(parameters, tokens)[0]
low, high = interval(predictions(runs, law, laws, parameters, tokens))[:, 0]
print(f"predicted {predicted:.3f}, from {low:.3f} to {high:.3f}; measured {measured:.3f}")

# %% [markdown]
# 1. They are not worse here, but better: so short a training gains more from a higher learning
#    rate than from its decay. All five numbers move, most of all $A$, and then $\alpha$.
#    The exponent of $N^*$ halves, so that this law would have you spend more of the hour on text
#    and less on size: a law describes models together with their schedule.
# 2. The prediction is as good as that of the larger size: its interval holds the measured loss.
