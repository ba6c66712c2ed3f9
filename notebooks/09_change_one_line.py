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
# # Change one line
#
# At the end you have changed attention, the optimizer, the schedule, the loss and the initial
# values in one line each, trained each beside the unchanged model, and can say with a 95 % interval
# what it changed. Then you do it by hand, for a learned parameter and a complete block.
#
# Each is a function in a cell, which replaces tlite's in an experiment:
#
# | field of the experiment | arguments | returns |
# | --- | --- | --- |
# | `model.attention` | query, key, value (..., H, T or S, K), mask | output, weights |
# | `model.norm`, `model.feed_forward` | params, x (..., D) | x (..., D) |
# | `FeedForward(activation=...)` | x (..., T, F) | x (..., T, F) |
# | `model.positions` | positions (..., T), width | vectors (..., T, D) |
# | a layer, `model.block` | params, x (..., T, D), inputs | y, or (y, cache, aux) |
# | `training.optimizer` | learning rate | an optax `GradientTransformation` |
# | `training.schedule` | steps since the warm-up | factor of the learning rate |
# | `training.loss` | logits (..., V), targets (...) | a value for each target (...) |
# | `training.init` | key, shape, dtype | initial values of a matrix |
#
# The output of attention is (..., H, T, K), the weights are (..., H, T, S); the mask is True where
# a query may attend. A function with an attribute `init_params(rng, config)`, a dictionary of
# arrays, gets these parameters as its first argument. A layer is a frozen dataclass with
# `init(rng, config)` and a call; of the keyword arguments `config`, `memory`, `cache`, `rng` and
# `tap` it gets those in its signature. `help(tlite.models.Attention)`, and of each other component,
# names the keyword arguments of functions. Each function is tried before a run: attention that
# ignores the mask, or a loss that does not fall when predictions improve, is an error.

# %%
import contextlib
import dataclasses
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import tlite
from tlite import functional as F
from tlite.comparison.results import compare_runs
from tlite.comparison.statistics import difference
from tlite.data import BuiltinText, split_tokens
from tlite.decoding import generate
from tlite.inspection import run
from tlite.models import Block, apply_layer, apply_norm, init_block
from tlite.text import CharTokenizer
from tlite.training import Trainer, generator_task, validation_batches

WIDTH, STEPS = 32, 300
settings = {
    "model.context": 32,
    "model.width": WIDTH,
    "model.num_blocks": 1,
    "model.positions": "none",
    "training.steps": STEPS,
    "training.evaluate_every": STEPS,
    "training.batch_size": 16,
    "training.learning_rate": 1e-2,
    "training.schedule": "constant",
    "training.warmup_steps": 20,
    "training.precision": "float32",
}
experiment = tlite.override(tlite.load_experiment("demo"), settings)

# %% [markdown]
# ## Attention
#
# Attention is a function of `(query, key, value, mask)`, by head, that returns its output and its
# weights. Here is the library's, $\mathrm{softmax}(q k^\top / \sqrt K)\, v$, written out.


# %%
def attention(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights


query, key, value = jax.random.normal(jax.random.key(0), (3, 4, 6, 8))  # 4 heads, 6 tokens
inputs = query, key, value, F.causal_mask(6)
for expected, actual in zip(
    F.scaled_dot_product_attention(*inputs), attention(*inputs), strict=True
):
    np.testing.assert_allclose(actual, expected, atol=1e-6)

# %% [markdown]
# The model above has no position encoding. ALiBi (Press et al. 2022) subtracts from each score a
# penalty that grows with the distance, steep in some heads and slight in others:
#
# $$\mathrm{softmax}\big(q_t k_s^\top / \sqrt K - m_h (t - s)\big), \qquad m_h = 2^{-8h/H}.$$
#
# The function does not get the positions of the queries, and does not need them. Softmax does not
# change if one number is added to all scores of a row; in the row of query $t$ the term $-m_h t$ is
# such a number. So one more line, $+ m_h s$ with the position $s$ of the key, is enough.


# %%
def alibi(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    scores += slopes(query.shape[-3]) * jnp.arange(key.shape[-2])  # the line
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights


def slopes(num_heads):
    return 2.0 ** (-8 * jnp.arange(1, num_heads + 1) / num_heads)[:, None, None]  # (H, 1, 1)


position = jnp.arange(6)
scores = query @ key.swapaxes(-1, -2) / 8**0.5 - slopes(4) * (position[:, None] - position)
by_distance = jax.nn.softmax(scores, where=F.causal_mask(6))
by_position = alibi(*inputs)[1]
print(f"largest difference of the weights: {jnp.abs(by_position - by_distance).max():.1e}")
np.testing.assert_allclose(by_position, by_distance, atol=1e-6)

# %% [markdown]
# ## Optimizer, schedule, loss, initial values
#
# | function | equation | source |
# | --- | --- | --- |
# | `sign_descent` | $\theta \leftarrow \theta - \eta\, \mathrm{sign}(g)$ | Bernstein et al. 2018 |
# | `half_cosine` | $\eta_t = \eta\, (1 + \cos(\pi t / T)) / 2$ | Loshchilov and Hutter 2017 |
# | `poly_loss` | $-\log p + 1 - p$, with the probability $p$ of the target | Leng et al. 2022 |
# | `small_init` | normal, variance $2 / (5 D)$ | Nguyen and Salazar 2019 |
#
# The loss is of training only: a validation's loss is always the cross-entropy, so that variants
# can be compared. All signs are as large as each other, so descent by signs gets a smaller learning
# rate. The model's own matrices are Glorot's, of variance $2 / (I + O)$.


# %%
def sign_descent(learning_rate):
    return optax.chain(optax.scale_by_sign(), optax.scale_by_learning_rate(learning_rate))


def half_cosine(step):
    return (1 + jnp.cos(jnp.pi * step / STEPS)) / 2


def poly_loss(logits, targets):
    loss = F.token_cross_entropy(logits, targets)
    return loss + 1 - jnp.exp(-loss)


def small_init(key, shape, dtype):
    return (2 / (5 * WIDTH)) ** 0.5 * jax.random.normal(key, shape, dtype)


changes = {
    "unchanged": {},
    "attention": {"model.attention": alibi},
    "optimizer": {"training.optimizer": sign_descent, "training.learning_rate": 2e-3},
    "schedule": {"training.schedule": half_cosine},
    "loss": {"training.loss": poly_loss},
    "initial values": {"training.init": small_init},
}
variants = {name: tlite.override(experiment, change) for name, change in changes.items()}

# %% [markdown]
# `tlite.train` trains all variants with the same seeds and batches, and compares the others with
# the first. Its log, which is hidden here, ends with a table of the differences, as
# `tlite compare` prints it; below are its figures. The runs go to a temporary folder: without `dir`
# they stay in `runs`.

# %%
with tempfile.TemporaryDirectory() as folder:
    with contextlib.redirect_stdout(io.StringIO()):
        study = tlite.train(variants, seeds=3, dir=Path(folder, "study"))
    results = compare_runs([study.folder])
recorded = results.runs[1].experiment["model"]["attention"]["function"]
print("in config.json:", recorded["kind"], recorded["name"])

print("validation loss less that of the unchanged model (nats), 95 % interval, p by Holm")
for row, diff in results.intervals:
    print(f"{row.label:>14}  {diff.mean:+.3f} ± {diff.half_width:.3f}  {diff.p_adjusted:.2f}")

figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
for index, (_, diff) in enumerate(results.intervals):
    axis.errorbar(diff.mean, index, xerr=diff.half_width, fmt="o", capsize=4)
axis.axvline(0, color="black", linewidth=1)
axis.set_yticks(range(5), [row.label for row, _ in results.intervals])
axis.set(xlabel="validation loss less the unchanged model's (nats): left is better")
axis.set_ylim(4.5, -0.5)
axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ALiBi is better: without it this model has no information about positions. The interval of descent
# by signs excludes 0, too, and yet the difference is not significant: of five intervals one may
# well exclude 0 by chance, which Holm's correction of the $p$-values takes into account. The
# interval of the other initial values is wide, because their seeds are not paired with those of the
# unchanged model: seed $i$ draws other numbers. The schedule and the loss make no significant
# difference. That does not mean that they make none: three seeds and 300 steps show large effects
# only.
#
# A run records each function: a file with its cell, and with the functions, plain values (here
# `STEPS` and `WIDTH`) and imports that it uses. So a run can be resumed, loaded and inspected when
# the notebook is closed. What can't be written into a file is an error before the run: a lambda, or
# an array of the notebook. A run may come from anyone, so its code is executed only if you have
# trained with it yourself, or add `--trust` (in Python `trust=True`).

# %%
effect = {row.label: diff for row, diff in results.intervals}["attention"]
assert effect.mean + effect.half_width < 0  # the whole interval

# %% [markdown]
# ## A line with something to learn
#
# The divisor $\sqrt K$ is a guess for all heads. Let head $h$ have a learned factor $\tau_h$ that
# is 1 before training: $\mathrm{softmax}(\tau_h\, q k^\top / \sqrt K)\, v$. `init_params` returns
# the initial parameters, which then are the first argument. Scaling the queries scales the scores,
# so the attention above does the rest.


# %%
def tempered(params, query, key, value, mask=None):
    return attention(params.temperature[:, None, None] * query, key, value, mask)


tempered.init_params = lambda rng, config: {"temperature": jnp.ones(config.num_heads)}

# %% [markdown]
# ## A block
#
# A block is a component too. The one above computes the feed-forward layer after attention. Wang
# and Komatsuzaki (2021, "GPT-J") compute both from the same vector, side by side, with one norm
# less:
#
# $$x + \mathrm{attention}(\mathrm{norm}(x)) + \mathrm{feed\ forward}(\mathrm{norm}(x)).$$
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


# %% [markdown]
# ## By hand
#
# This is what `tlite.train` does, in a few lines and with five seeds; `Trainer` computes them side
# by side. Seed $i$ of every variant sees the same batches. Where two variants have the same arrays,
# as the original and ALiBi do, seed $i$ also draws the same initial values, and the losses on the
# held-out text are compared in pairs. With the mean $d$ of the $n$ differences and their standard
# deviation $s$, `difference` gives $d \pm t\, s / \sqrt n$, and $t$ (2.78 for $n = 5$, 4.30 for
# $n = 3$) makes it a 95 % interval for other seeds on this very text. Variants with other arrays
# draw other values: theirs are two independent groups, and the interval is Welch's. The intervals
# above are also for new stretches of text like this one: a run saves the score of each window.

# %%
text = BuiltinText().load()[:200_000]
tokenizer = CharTokenizer(text)
training_tokens, held_out = split_tokens(tokenizer.encode(text), 0.05)
original = dataclasses.replace(
    experiment.model, vocabulary_size=len(tokenizer), attention=attention
)
variants = {
    "original": original,
    "ALiBi": dataclasses.replace(original, attention=alibi),
    "temperature": dataclasses.replace(original, attention=tempered),
    "parallel": dataclasses.replace(original, block=Parallel()),
}
settings = dataclasses.replace(experiment.training, seeds=5, schedule="cosine", steps=150)
losses, curves, models, arrays = {}, {}, {}, {}
for name, config in variants.items():
    trainer = Trainer(generator_task(config), settings, jnp.asarray(training_tokens))
    state, history = trainer.train(trainer.init(), 0, settings.steps)
    batches = validation_batches(held_out, config.context, 32, trainer.num_shards)
    sums = trainer.evaluate(state.parameters, batches)
    losses[name] = dict(enumerate(sums["loss"].sum(-1) / sums["count"].sum(-1)))  # by seed
    curves[name], models[name] = history["loss"], trainer.models(state.parameters)
    arrays[name] = {array: values.shape for array, values in state.parameters.items()}


# %%
def sentence(name, diff):
    size = f"{abs(diff.mean):.3f} ± {diff.half_width:.3f} nats"
    if diff.significant:
        return f"{name} is {size} {'better' if diff.mean < 0 else 'worse'} than the original"
    return f"{name}: no significant difference ({size})"


results = {
    name: difference(losses[name], losses["original"], paired=arrays[name] == arrays["original"])
    for name in list(losses)[1:]
}
for name, by_seed in losses.items():
    print(f"{name:>12}: {np.mean([*by_seed.values()]):.3f} nats per character, five seeds")
print(*(sentence(*result) for result in results.items()), sep="\n")
needed = results["ALiBi"].required_seeds(0.01)
print(f"to show an effect of 0.01 nats of such an attention in 80 of 100 studies: {needed} seeds")

_, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for (name, curve), style in zip(curves.items(), ("-", "-", "--", ":"), strict=True):
    smoothed = curve.mean(1).reshape(-1, 10).mean(1)
    axes[0].plot(np.arange(5, 150, 10), smoothed, style, label=name)
axes[0].set(xlabel="step", ylabel="training loss (nats per character)")
axes[0].legend()
for row, (name, diff) in enumerate(results.items()):
    for seed, loss in losses[name].items():
        axes[1].plot(loss - losses["original"][seed], row, "o", color="gray", alpha=0.5)
    axes[1].errorbar(
        diff.mean, row + 0.2, xerr=diff.half_width, fmt="o", color=f"C{row + 1}", capsize=4
    )
axes[1].axvline(0, color="black", linewidth=1)
axes[1].set_yticks(range(len(results)), list(results))
axes[1].set(xlabel="held-out loss less the original's (nats): left is better", ylim=(2.5, -0.5))
for plot in axes:
    plot.grid(alpha=0.3)
plt.show()

# %% [markdown]
# Gray dots are seeds, the coloured bars are the intervals of their means. ALiBi helps here: without
# it this model has no information about positions. So does the parallel block, after 150 steps,
# which says little about the end of a long training. The temperatures change the loss of so small a
# model, after so few steps, by less than half as much as ALiBi does, which is no verdict on them.
# One 95 % interval in twenty misses the truth: a difference that matters is worth more seeds and
# steps. How many seeds? Decide first on the smallest difference that would matter to you, here 0.01
# nats; `required_seeds` (and `tlite compare --smallest-effect 0.01`) computes the number from it
# and from the spread of the seeds. The measured difference is no substitute: it is itself
# uncertain, and a number of seeds computed from it is off by more than a factor of two in most
# studies.

# %%
assert results["ALiBi"].significant
assert results["ALiBi"].mean < 0
assert results["parallel"].mean < 0
assert abs(results["temperature"].mean) < abs(results["ALiBi"].mean) / 2
temperatures = np.stack(
    [m.blocks[0].attention.custom.temperature[...] for m in models["temperature"]]
)
print("learned temperatures by seed (rows) and head:", np.round(temperatures, 2), sep="\n")
assert (np.abs(temperatures - 1) > 0.01).any()

# %% [markdown]
# ## The weights
#
# `run` captures the weights that your function returns. The first head's slope is steepest,
# $m_1 = 1/4$: at the same scores, a character 16 positions back has $e^{-4}$ of the weight. The
# upper row is the original, which has no information about distances.

# %%
texts = jnp.asarray(held_out[: 64 * original.context].reshape(64, -1))
positions = np.arange(original.context)
distance = positions[:, None] - positions
figure, axes = plt.subplots(2, 4, figsize=(10, 5.2), layout="constrained", sharex=True, sharey=True)
means = {}
for row, name in zip(axes, ("original", "ALiBi"), strict=True):
    _, captured = run(models[name][0], texts, capture="blocks.0.attention.weights")
    weights = np.asarray(captured["blocks.0.attention.weights"])  # (64, H, T, T)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    means[name] = (weights * distance)[..., 16:, :].sum(-1).mean((0, 2))
    for head, plot in enumerate(row):
        image = plot.imshow(weights[0, head], cmap="Blues", vmin=0, vmax=0.5)
        plot.set_title(f"{name}, head {head}: {means[name][head]:.1f} back", fontsize=9)
    row[0].set_ylabel("query (character)")
for plot in axes[1]:
    plot.set_xlabel("key (character)")
figure.colorbar(image, ax=axes, label="attention weight, 0.5 or more", shrink=0.7)
plt.show()
for name, distances in means.items():
    print(
        f"{name:>8}: mean distance of queries in the second half, by head:", np.round(distances, 1)
    )
assert means["ALiBi"][0] == means["ALiBi"].min()
assert means["ALiBi"][0] < means["original"].min()

# %% [markdown]
# ## Generation
#
# `generate` caches keys and values, and computes one query per new token. Your function runs there
# unchanged: it needs the positions of the keys only.

# %%
prompt = jnp.asarray(held_out[:20])
written = generate(models["ALiBi"][0], prompt, num_tokens=60, rng=jax.random.key(2))
print(f"{tokenizer.decode(prompt)!r} + {tokenizer.decode(written)!r}")

# %% [markdown]
# ## Exercises
#
# 1. So et al. (2021, "Primer") found squared ReLU in a search: $\max(x, 0)^2$ in place of the
#    demo's GELU. Write it as a function of one array and add
#    `"activation": {"model.feed_forward.activation": ...}` to `changes`. Is the difference
#    significant? If not, train with as many `seeds` as `required_seeds(0.01)` asks for: is the
#    interval as narrow as $\sqrt{3 / n}$ of the first one, or narrower, and why?
# 2. A learning rate that suits AdamW need not suit descent by signs. Give `tlite.train` also
#    `tune={"training.learning_rate": (3e-4, 3e-2)}`, which tunes each variant before it is trained.
#    What is left of the difference?
#
# Next: [a study](10_a_study.ipynb), from the question to the conclusion.
