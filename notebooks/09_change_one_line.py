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
# At the end you have changed one line of attention, and a complete block, trained the results
# beside the original, and can say with a 95 % interval how much each of them improves.
#
# A model's config holds its components: attention, feed-forward layer, norm, positions, block. Put
# a function or a layer of your own in place of one, and it is used in training, validation,
# generation and inspection alike. Nothing else changes.
#
# | component | arguments | returns |
# | --- | --- | --- |
# | attention function | query, key, value (..., H, T or S, K), mask | output, weights |
# | norm, feed-forward function | params, x (..., D) | x (..., D) |
# | `FeedForward(activation=...)` | x (..., T, F) | x (..., T, F) |
# | positions | positions (..., T), width | vectors (..., T, D) |
# | layer, block | params, x (..., T, D), inputs | y, or (y, cache, aux) |
#
# The output is (..., H, T, K), the weights are (..., H, T, S); the mask is True where a query may
# attend. A function with an attribute `init_params(rng, config)`, a dictionary of arrays, gets
# these parameters as its first argument. A layer is a frozen dataclass with `init(rng, config)` and
# a call; of the keyword arguments `config`, `memory`, `cache`, `rng` and `tap` it gets those in its
# signature. `help(tlite.models.Attention)`, and of each other component, names the keyword
# arguments of functions. Before a run each component is tried in a small model: one that ignores
# the mask, for example, is an error.

# %%
import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.comparison.statistics import difference
from tlite.config import to_dict
from tlite.data import BuiltinText, split_tokens
from tlite.decoding import generate
from tlite.inspection import run
from tlite.models import Block, GeneratorConfig, apply_layer, apply_norm, init_block
from tlite.runs.experiment_files import load_experiment
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches

text = BuiltinText().load()[:200_000]
tokenizer = CharTokenizer(text)
training_tokens, held_out = split_tokens(tokenizer.encode(text), 0.05)

# %% [markdown]
# ## The original
#
# Attention is a function of `(query, key, value, mask)`, by head, that returns its output and its
# weights. Here is the library's, $\mathrm{softmax}(q k^\top / \sqrt K)\, v$, written out, and the
# config of a small generator of characters. `mine` is the same model with this function.


# %%
def attention(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights


original = GeneratorConfig(
    vocabulary_size=len(tokenizer),
    context=32,
    width=32,
    num_heads=4,
    num_blocks=1,
    dropout=0.0,
    positions="none",
    block="pre_norm",
)
mine = dataclasses.replace(original, attention=attention)

query, key, value = jax.random.normal(jax.random.key(0), (3, 4, 6, 8))  # 4 heads, 6 places
inputs = query, key, value, F.causal_mask(6)
by_library, by_mine = F.scaled_dot_product_attention(*inputs), attention(*inputs)
for theirs, own in zip(by_library, by_mine, strict=True):
    np.testing.assert_allclose(own, theirs, atol=1e-6)

# %% [markdown]
# ## One line
#
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


with_alibi = dataclasses.replace(mine, attention=alibi)

# %%
place = jnp.arange(6)
scores = query @ key.swapaxes(-1, -2) / 8**0.5 - slopes(4) * (place[:, None] - place)
by_distance = jax.nn.softmax(scores, where=F.causal_mask(6))
by_place = alibi(*inputs)[1]
print(f"largest difference of the weights: {jnp.abs(by_distance - by_place).max():.1e}")
np.testing.assert_allclose(by_place, by_distance, atol=1e-6)

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
with_temperature = dataclasses.replace(mine, attention=tempered)

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


side_by_side = dataclasses.replace(mine, block=Parallel())

# %% [markdown]
# ## Is it better?
#
# Five seeds each; `Trainer` computes them side by side. Seed $i$ of every variant sees the same
# batches. Where two variants have the same arrays, as the original and ALiBi do, seed $i$ also
# draws the same initial values, and the losses on the held-out text are compared in pairs. With the
# mean $d$ of the $n$ differences and their standard deviation $s$, `difference` gives
# $d \pm t\, s / \sqrt n$, and $t$ (2.78 for $n = 5$) makes it a 95 % interval for other seeds on
# this very text. Variants with other arrays draw other values: theirs are two independent groups,
# and the interval is Welch's. `tlite compare` does the same, and where runs have saved the scores
# of each window, its interval is also for new stretches of text like this one.

# %%
variants = {
    "original": mine,
    "ALiBi": with_alibi,
    "temperature": with_temperature,
    "distributed": side_by_side,
}
settings = TrainingConfig(
    steps=150, batch_size=16, learning_rate=1e-2, schedule="cosine", warmup_steps=20, seeds=5
)
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
def sentence(name, found):
    size = f"{abs(found.mean):.3f} ± {found.half_width:.3f} nats"
    if found.significant:
        return f"{name} is {size} {'better' if found.mean < 0 else 'worse'} than the original"
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
    of_tens = curve.mean(1).reshape(-1, 10).mean(1)
    axes[0].plot(np.arange(5, 150, 10), of_tens, style, label=name)
axes[0].set(xlabel="step", ylabel="training loss (nats per character)")
axes[0].legend()
for row, (name, found) in enumerate(results.items()):
    for seed, loss in losses[name].items():
        axes[1].plot(loss - losses["original"][seed], row, "o", color="gray", alpha=0.5)
    axes[1].errorbar(
        found.mean, row + 0.2, xerr=found.half_width, fmt="o", color=f"C{row + 1}", capsize=4
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
assert results["distributed"].mean < 0
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
places = np.arange(original.context)
how_far = places[:, None] - places
figure, axes = plt.subplots(2, 4, figsize=(10, 5.2), layout="constrained", sharex=True, sharey=True)
means = {}
for row, name in zip(axes, ("original", "ALiBi"), strict=True):
    _, captured = run(models[name][0], texts, capture="blocks.0.attention.weights")
    weights = np.asarray(captured["blocks.0.attention.weights"])  # (64, H, T, T)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    means[name] = (weights * how_far)[..., 16:, :].sum(-1).mean((0, 2))
    for head, plot in enumerate(row):
        image = plot.imshow(weights[0, head], cmap="Blues", vmin=0, vmax=0.5)
        plot.set_title(f"{name}, head {head}: {means[name][head]:.1f} back", fontsize=9)
    row[0].set_ylabel("query (character)")
for plot in axes[1]:
    plot.set_xlabel("key (character)")
figure.colorbar(image, ax=axes, label="attention weight, 0.5 or more", shrink=0.7)
plt.show()
for name, found in means.items():
    print(f"{name:>8}: mean distance of queries in the second half, by head:", np.round(found, 1))
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
# ## An experiment
#
# An experiment is a file that puts the function into a config in the same way:

# %%
MINE = '''
"""The demo with ALiBi."""

import dataclasses

import jax
import jax.numpy as jnp

from experiments.demo import experiment as demo


def alibi(query, key, value, mask=None):
    heads = jnp.arange(1, 1 + query.shape[-3])[:, None, None]
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    scores += 2.0 ** (-8 * heads / query.shape[-3]) * jnp.arange(key.shape[-2])
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights


model = dataclasses.replace(demo.model, positions="none", attention=alibi)
experiment = dataclasses.replace(demo, name="mine", model=model)
variants = {"original": demo, "ALiBi": experiment}
'''
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "mine.py")
    path.write_text(MINE)
    kept = to_dict(load_experiment(path))["model"]["attention"]["function"]
print("in config.json:", kept["kind"], kept["name"], "and the SHA-256 of", *kept["sha256"])
assert (kept["file"], kept["name"]) == ("mine.py", "alibi")

# %% [markdown]
#     tlite train mine.py --seeds 5       both, and a comparison as above
#     tlite generate RUN                  likewise evaluate, inspect and train --resume
#
# A run records the function's name and the SHA-256 of the file and of every file that it imports
# from its folder, and keeps a copy of them in its folder `code`: you may edit the file later, the
# run goes on with its copy. A run may come from anyone, so a copy is executed only if you have
# trained with these files yourself, or add `--trust` (in Python `trust=True`).
#
# ## Exercise
#
# So et al. (2021, "Primer") found squared ReLU in a search: $\max(x, 0)^2$ in place of
# $\max(x, 0)$. Write it as a function of one array and add
# `dataclasses.replace(mine, feed_forward=FeedForward(activation=...))` to the variants, with the
# `FeedForward` of `tlite.models`. What does the sentence say? If the difference is not significant,
# train with as many `seeds` as `required_seeds(0.01)` asks for: is the interval as narrow as
# $\sqrt{5 / n}$ of the first one?
#
# Next: [inside GPT-2](10_inside_gpt2.ipynb), a model that others have trained.
