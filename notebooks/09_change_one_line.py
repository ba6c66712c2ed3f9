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
# At the end you have changed one line of attention, and a whole block, trained the results beside
# the original, and can say with a 95 % interval what each is worth.
#
# A model's config holds its parts: attention, feed-forward layer, norm, positions, block. Each is a
# small dataclass that draws its parameters and computes. Hand over a function, or a part, of your
# own, and it is what trains, what validates, what generates and what is drawn. There is no second
# place to change.
#
# | given as | a function of yours gets | and returns |
# | --- | --- | --- |
# | `attention` | query (..., H, T, K), key and value (..., H, S, K), mask | output, weights |
# | `feed_forward` | params, x (..., T, D) | y (..., T, D) |
# | `FeedForward(activation=...)` | x (..., T, F) | the same shape |
# | `norm` | params, x (..., D) | x (..., D) |
# | `positions` | positions (..., T), D | vectors to add (..., T, D) |
#
# | given as | a part of yours, a dataclass with `init`, gets | and returns |
# | --- | --- | --- |
# | `attention`, `feed_forward` | params, x (..., T, D), look | y, and rows to cache or None |
# | `norm` | params, x (..., D) | x (..., D) |
# | `block` | params, x (..., T, D), look, config | x, and rows by layer |
#
# The output is (..., H, T, K), the weights are (..., H, T, S), rows (..., T, N). The mask is true
# where a query may attend. `help(tlite.models.Attention)`, and of each other part, says what may be
# asked for beside, and what `params` are. Before a run each is tried: one that forgets its mask,
# say, is refused.

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
from tlite.cli.experiment_files import load_experiment
from tlite.comparison.statistics import difference
from tlite.config import to_dict
from tlite.data import BuiltinText, split_tokens
from tlite.decoding import generate
from tlite.inspection import run
from tlite.models import Attention, Block, GeneratorConfig
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches

text = BuiltinText().load()[:200_000]
tokenizer = CharTokenizer(text)
training_tokens, held_out = split_tokens(tokenizer.encode(text), 0.05)

# %% [markdown]
# ## The original, in your hands
#
# An attention is a function of `(query, key, value, mask)`, by head, that returns its output and
# its weights. Here is the library's, $\mathrm{softmax}(q k^\top / \sqrt K)\, v$, written out, and a
# config of a small generator of characters. `mine` is the same model with the function in your
# hands.


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
# The model above is told nothing about positions. ALiBi (Press et al. 2022) takes from each score a
# penalty that grows with the distance, steep in some heads and slight in others:
#
# $$\mathrm{softmax}\big(q_t k_s^\top / \sqrt K - m_h (t - s)\big), \qquad m_h = 2^{-8h/H}.$$
#
# An attention is not told where its queries stand, and it need not know. Softmax does not change if
# the same number is added to a whole row of scores; within the row of query $t$ the term $-m_h t$
# is such a number. So one line more, $+ m_h s$, does all of the work, and $s$ is the place of the
# key.


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
# The divisor $\sqrt K$ is a guess for all heads. Let head $h$ have a factor $\tau_h$ of its own
# that begins at 1: $\mathrm{softmax}(\tau_h\, q k^\top / \sqrt K)\, v$. What has something to
# learn is a part: `init` draws its parameters, here those of the library's attention and the
# factors, and its call gets them with $x$ and with what else a layer looks at (`F.Look`: masks,
# positions, caches). Scaling the queries scales the scores, so the attention above does the rest.


# %%
@dataclass(frozen=True)
class Tempered(Attention):
    """Attention with a factor of the scores for each head."""

    start: float = 1.0
    """The factors before training."""

    def init(self, rng, config):
        own = {"temperature": jnp.full(config.num_heads, self.start)}
        return super().init(rng, config)._replace(own=own)

    def __call__(self, params, x, look):
        factors = params.own.temperature[:, None, None]

        def tempered(query, key, value, mask=None):
            return attention(factors * query, key, value, mask)

        return F.attention_layer(params, x, look, attention=tempered)


with_temperature = dataclasses.replace(mine, attention=Tempered())

# %% [markdown]
# ## A whole block
#
# A block is a part too. The one above computes the feed-forward layer after attention. Wang and
# Komatsuzaki (2021, "GPT-J") have both read the same vector, side by side, and need one norm less:
#
# $$x + \mathrm{attention}(\mathrm{norm}(x)) + \mathrm{feed\ forward}(\mathrm{norm}(x)).$$
#
# The layers are still the config's own, whichever these are. `look.at` says what each of them looks
# at, and what attention gives beside its output are the keys and values that a cache keeps. (There
# is no dropout in this block, as there is none in these models.)


# %%
@dataclass(frozen=True)
class Parallel(Block):
    """x + attention(norm(x)) + feed_forward(norm(x))."""

    pre_norm: bool = True  # so the last block is followed by a norm

    def init(self, rng, config, index, *, across):
        block = super().init(rng, config, index, across=across)
        return block._replace(feed_forward_norm=None)

    def __call__(self, params, x, look, config):
        y = config.norm(params.attention_norm, x)
        attended, kept = config.attention(params.attention, y, look.at("attention"))
        fed, _ = config.feed_forward(params.feed_forward, y, look.at("feed_forward"))
        return x + attended + fed, {"attention": kept, "feed_forward": None}


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
    "parallel": side_by_side,
}
settings = TrainingConfig(
    steps=150, batch_size=16, learning_rate=1e-2, schedule="cosine", warmup_steps=20, seeds=5
)
losses, curves, models, arrays = {}, {}, {}, {}
for name, config in variants.items():
    trainer = Trainer(generator_task(config), settings, jnp.asarray(training_tokens))
    members, history = trainer.train(trainer.init(), 0, settings.steps)
    batches = validation_batches(held_out, config.context, 32, trainer.num_shards)
    sums = trainer.evaluate(members.parameters, batches)
    losses[name] = dict(enumerate(sums["loss"].sum(-1) / sums["count"].sum(-1)))  # by seed
    curves[name], models[name] = history["loss"], trainer.models(members.parameters)
    arrays[name] = {array: values.shape for array, values in members.parameters.items()}


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
# Gray dots are seeds, the coloured bars the intervals of their means. ALiBi helps here: without it
# this model hardly knows what stands where. So does the parallel block, after 150 steps, which says
# little about the end of a long training. The temperatures change the loss of so small a model,
# trained for so short a time, by less than half of what ALiBi does, and that is no verdict on them.
# One 95 % interval in twenty misses the truth: a difference that matters is worth more seeds and
# steps. How many seeds? Decide first how small a difference would still matter to you, here 0.01
# nats; `required_seeds` (and `tlite compare --smallest-effect 0.01`) takes that, and the spread of
# the seeds. The difference that was just measured is no substitute: it is itself uncertain, and a
# number of seeds computed from it is off by more than a factor of two in most studies.

# %%
assert results["ALiBi"].significant
assert results["ALiBi"].mean < 0
assert results["parallel"].mean < 0
assert abs(results["temperature"].mean) < abs(results["ALiBi"].mean) / 2
temperatures = np.stack([m.blocks[0].attention.own.temperature[...] for m in models["temperature"]])
print("learned temperatures by seed (rows) and head:", np.round(temperatures, 2), sep="\n")
assert (np.abs(temperatures - 1) > 0.01).any()

# %% [markdown]
# ## Where they look
#
# `run` captures the weights that a function of yours returns. The first head's slope is steepest,
# $m_1 = 1/4$: at the same scores, what is 16 characters back has $e^{-4}$ of the weight. Above it
# the original, that can only guess what is near.

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
    print(f"{name:>8}: a query of the second half looks so far back, by head:", np.round(found, 1))
assert means["ALiBi"][0] == means["ALiBi"].min()
assert means["ALiBi"][0] < means["original"].min()

# %% [markdown]
# ## The same line writes
#
# `generate` keeps the keys and values of what it has seen and asks the model for one more query a
# token. Yours runs there too, unchanged: it needs the keys' places alone.

# %%
prompt = jnp.asarray(held_out[:20])
written = generate(models["ALiBi"][0], prompt, num_tokens=60, rng=jax.random.key(2))
print(f"{tokenizer.decode(prompt)!r} + {tokenizer.decode(written)!r}")

# %% [markdown]
# ## An experiment
#
# What has been worth a cell is soon worth a file, which hands its function to a config just so:

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
#     tlite train mine.py --seeds 5       both, and the comparison with sentences as above
#     tlite generate RUN --code mine.py   so do evaluate, inspect and train --resume
#
# A run records the function's name and the SHA-256 of the file and of every file that it imports
# from its folder, and no code. A run may come from anyone, so a command never runs a file because a
# run names it: you name it, and it runs only if none of these files has changed since.
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
