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
# # Your own equation
#
# Attention, activation, norm, positions and the feed-forward layer are values in a model's config:
# a name, or a function. Hand over a function of your own, and it is what trains, what validates,
# what generates and what is drawn. There is no second place to change. Here are three small ideas,
# each a few lines: a temperature that every head learns, ALiBi, and squared ReLU. Each is trained
# beside the original, on the same batches from the same start, with several seeds: a difference
# that is smaller than its spread is no difference.

# %%
import dataclasses
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.config import from_dict, to_dict
from tlite.data import BuiltinText, split_tokens
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.experiment import GeneratorExperiment
from tlite.experiment_files import load_experiment
from tlite.inspection import run
from tlite.models import GeneratorConfig, TransformerGenerator
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches

text = BuiltinText().load()[:200_000]
tokenizer = CharTokenizer(text)
training_tokens, held_out = split_tokens(tokenizer.encode(text), 0.05)

# %% [markdown]
# The original: a small generator of characters that is told nothing about positions. It still has
# the causal mask, so that a place differs from another by how much it sees.

# %%
original = GeneratorConfig(
    vocabulary_size=len(tokenizer),
    context=32,
    width=32,
    num_heads=4,
    num_blocks=1,
    norm_first=True,
    positions="none",
    dropout=0.0,
)
window = jnp.asarray(held_out[: original.context])


def make(config):
    return TransformerGenerator(config, key=jax.random.key(0))


by_original = make(original)(window)

# %% [markdown]
# ## 1. A temperature that each head learns
#
# Attention's weights are $\mathrm{softmax}(q k^\top / \sqrt K)$. The divisor $\sqrt K$ is a guess
# for all heads. Let head $h$ have a factor $\tau_h$ of its own that begins at 1:
#
# $$\mathrm{softmax}(\tau_h \, q k^\top / \sqrt K)\, v.$$
#
# An attention is a function of `(query, key, value, mask)`, by head, that returns its output and
# its weights. What it is to learn is made by its attribute `parameters`, a function of
# `(config, key)`, and comes in as the first argument. Scaling the queries scales the scores, so the
# library's attention does the rest.


# %%
def tempered(own, query, key, value, mask=None):
    query = own.temperature[:, None, None] * query  # (H, 1, 1) * (..., H, T, K)
    return F.scaled_dot_product_attention(query, key, value, mask)


tempered.parameters = lambda config, key: {"temperature": jnp.ones(config.num_heads)}

with_temperature = dataclasses.replace(original, attention=tempered)
model = make(with_temperature)
print(f"blocks.0.attention.own.temperature = {model.blocks[0].attention.own.temperature[...]}")

# %% [markdown]
# With $\tau = 1$ nothing is changed, to the bit: what else there is is drawn as before.

# %%
np.testing.assert_array_equal(model(window), by_original)

# %% [markdown]
# Do gradients reach it? They do, and a nudge of one temperature changes the loss as the gradient
# says.


# %%
@jax.jit
def loss(model):
    total, count = F.cross_entropy(model(window[:-1]), window[1:])
    return total / count


def nudged(model, amount):
    """The model with the first temperature of the first block a little higher."""

    def nudge(path, leaf):
        here = jax.tree_util.keystr(path, simple=True, separator=".")
        mine = here.startswith("blocks.0.attention.own.temperature")
        return leaf.at[0].add(amount) if mine else leaf

    return jax.tree_util.tree_map_with_path(nudge, model)


gradient = jax.jit(jax.grad(loss))(model).blocks[0].attention.own.temperature[...]
slope = (loss(nudged(model, 0.03)) - loss(nudged(model, -0.03))) / 0.06
print("gradient by the temperatures of block 0:", gradient)
print(f"the first one by a difference: {slope:.6f}")
assert (gradient != 0).all()
assert jnp.allclose(gradient[0], slope, rtol=0.05)

# %% [markdown]
# ## 2. ALiBi
#
# Press et al. (2022) drop positions and take from each score a penalty that grows with the
# distance, steep in some heads and slight in others:
#
# $$\mathrm{softmax}\big(q_t k_s^\top / \sqrt K - m_h (t - s)\big), \qquad m_h = 2^{-8h/H}.$$
#
# An attention is not told where its queries stand, and it need not know. Softmax does not change if
# the same number is added to a whole row of scores; within the row of query $t$ the term $-m_h t$
# is such a number. So $+ m_h s$ does all of the work, and $s$ is the place of the key. That it
# needs the keys' places alone is what lets it run unchanged with a cache, where a single query
# comes with the keys of all that went before.


# %%
def alibi(query, key, value, mask=None):
    slopes = 2.0 ** (-8 * jnp.arange(1, query.shape[-3] + 1) / query.shape[-3])
    scores = jnp.einsum("...tk,...sk->...ts", query, key) / query.shape[-1] ** 0.5
    scores += slopes[:, None, None] * jnp.arange(key.shape[-2])
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights


with_alibi = dataclasses.replace(original, attention=alibi)

# %%
scores, place = jax.random.normal(jax.random.key(1), (6, 6)), jnp.arange(6)
distance, causal = place[:, None] - place, F.causal_mask(6)
by_distance = jax.nn.softmax(scores - 0.5 * distance, where=causal)
by_place = jax.nn.softmax(scores + 0.5 * place, where=causal)
print("largest difference of the weights:", jnp.abs(by_distance - by_place).max())
assert jnp.allclose(by_distance, by_place, atol=1e-6)

# %% [markdown]
# The library has ALiBi too, written with the distances: `positions="alibi"`. Both give one model.

# %%
by_ours = make(with_alibi)(window)
by_library = make(dataclasses.replace(original, positions="alibi"))(window)
assert jnp.allclose(by_ours, by_library, atol=1e-5)
assert not jnp.allclose(by_ours, by_original, atol=1e-3)

# %% [markdown]
# ## 3. Squared ReLU
#
# So et al. (2021, "Primer") found it in a search: $\max(x, 0)^2$ in place of $\max(x, 0)$. An
# activation is a function of one array.


# %%
def squared_relu(x):
    return jax.nn.relu(x) ** 2


with_squared_relu = dataclasses.replace(original, activation=squared_relu)
hidden = jnp.array([-2.0, 0.0, 3.0])
assert (squared_relu(hidden) == jnp.array([0.0, 0.0, 9.0])).all()

# %% [markdown]
# ## Do they help?
#
# Five seeds each; `Trainer` computes them side by side. Seed $i$ of each variant begins with the
# same numbers and sees the same batches, so their losses on the held-out text are compared in
# pairs. $d$ is the mean of the five differences, and the interval
# $d \pm 2.78\, s / \sqrt 5$ has a chance of 95 % to hold the true one (Student's t with 4 degrees
# of freedom; $s$ is the standard deviation of the differences).

# %%
variants = {
    "original": original,
    "temperature": with_temperature,
    "ALiBi": with_alibi,
    "squared ReLU": with_squared_relu,
}
settings = TrainingConfig(
    steps=150, batch_size=16, learning_rate=1e-2, schedule="cosine", warmup_steps=20, seeds=5
)
losses, curves, models = {}, {}, {}
for name, config in variants.items():
    trainer = Trainer(generator_task(config), settings, jnp.asarray(training_tokens))
    members, history = trainer.train(trainer.init(), 0, settings.steps)
    batches = validation_batches(held_out, config.context, 32, trainer.num_shards)
    sums = trainer.evaluate(members.parameters, batches)
    losses[name] = sums["loss"].sum(-1) / sums["count"].sum(-1)
    curves[name], models[name] = history["loss"], trainer.models(members.parameters)

# %%
differences, intervals = {}, {}
for name, found in losses.items():
    print(f"{name:>12}: {found.mean():.3f} nats, seeds {found.min():.3f} to {found.max():.3f}")
    if name != "original":
        paired = found - losses["original"]
        d, half = paired.mean(), 2.78 * paired.std(ddof=1) / len(paired) ** 0.5
        told = "either way possible" if abs(d) < half else "better" if d < 0 else "worse"
        print(f"{'':12}  d = {d:+.3f}, from {d - half:+.3f} to {d + half:+.3f}: {told}")
        differences[name], intervals[name] = d, half

_, axes = plt.subplots(1, 2, figsize=(11, 3.5), layout="constrained")
for name, curve in curves.items():
    axes[0].plot(curve.mean(1).reshape(-1, 10).mean(1), label=name)
axes[0].set(xlabel="step / 10", ylabel="training loss (nats), mean of 5 seeds")
axes[0].grid(alpha=0.3)
axes[0].legend()
for row, (name, found) in enumerate(losses.items()):
    if name != "original":
        axes[1].plot(found - losses["original"], [row] * len(found), "o", color="gray", alpha=0.5)
        axes[1].errorbar(
            differences[name], row, xerr=intervals[name], fmt="o", color=f"C{row}", capsize=4
        )
axes[1].axvline(0, color="black", linewidth=1)
axes[1].set_yticks(range(1, len(losses)), list(losses)[1:])
axes[1].set(xlabel="held-out loss less the original's (nats): left is better", ylim=(3.5, 0.5))
axes[1].grid(alpha=0.3)

# %% [markdown]
# ALiBi helps here: without it this model hardly knows what stands where. The other two change the
# loss of so small a model, trained for so short a time, by less than half of that, and in most
# runs of this cell by less than five seeds can tell from nothing. That is no verdict on them: so
# short an experiment just can't see what they are said to do for larger models. Nor is one interval
# in twenty that misses a rarity; a difference that matters is worth other seeds and more steps.

# %%
assert differences["ALiBi"] + intervals["ALiBi"] < 0
for name in ("temperature", "squared ReLU"):
    assert abs(differences[name]) < abs(differences["ALiBi"]) / 2
temperatures = np.stack([m.blocks[0].attention.own.temperature[...] for m in models["temperature"]])
print("temperatures by seed (rows) and head:", np.round(temperatures, 2), sep="\n")
assert (np.abs(temperatures - 1) > 0.01).any()

# %% [markdown]
# ## Where they look
#
# `run` captures the weights that a function of yours returns. The first head's slope is steepest,
# $m_1 = 1/4$: at the same scores, what is 16 characters back has $e^{-4}$ of the weight. The last
# one's is $1/256$. Beside it the original, that can only guess what is near.

# %%
shown = {"original": models["original"][0], "ALiBi": models["ALiBi"][0]}
texts = jnp.asarray(held_out[: 64 * original.context].reshape(64, -1))
places = np.arange(original.context)
how_far = places[:, None] - places
_, axes = plt.subplots(2, 4, figsize=(11, 5.5), layout="constrained")
means = {}
for row, (name, model) in zip(axes, shown.items(), strict=True):
    _, captured = run(model, texts, capture="blocks.0.attention.weights")
    weights = np.asarray(captured["blocks.0.attention.weights"])  # (64, H, T, T)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert (weights[..., how_far < 0] == 0).all()
    means[name] = (weights * how_far)[..., 16:, :].sum(-1).mean((0, 2))
    for head, plot in enumerate(row):
        plot.imshow(weights[0, head], cmap="Blues", vmin=0, vmax=0.5)
        plot.set_title(f"{name}, head {head}: {means[name][head]:.1f} back", fontsize=9)
        plot.set(xticks=[], yticks=[])
for name, found in means.items():
    print(f"{name:>8}: a query of the second half looks so far back, by head:", np.round(found, 1))
assert means["ALiBi"][0] == means["ALiBi"].min()
assert means["ALiBi"][0] < means["original"].min()

# %% [markdown]
# ## Writing, with a cache
#
# `generate` keeps the keys and values of what it has seen and asks the model for one more query a
# token. The same function runs there. So the text with the cache is the text of whole passes over
# the window, also after the window has begun to slide. (Token $i$ is drawn with
# `fold_in(key, i)` in both.)

# %%
prompt, num_tokens, key = window[:8], 60, jax.random.key(2)


def by_whole_passes(model):
    @jax.jit
    def choose(padded, length, number):
        row = model(padded)[length - 1]  # no place sees the padding: it comes after
        return F.sample(jax.random.fold_in(key, number), row)

    tokens = prompt.tolist()
    for number in range(num_tokens):
        seen = np.array(tokens[-original.context :])
        padded = np.pad(seen, (0, original.context - len(seen)))
        tokens.append(int(choose(padded, len(seen), number)))
    return tokens[len(prompt) :]


assert len(prompt) + num_tokens > original.context
for name in ("temperature", "ALiBi"):
    model = models[name][0]
    written = generate(model, prompt, num_tokens=num_tokens, key=key)
    np.testing.assert_array_equal(written, by_whole_passes(model))
    print(f"{name:>12}: {tokenizer.decode(prompt)!r} + {tokenizer.decode(written)!r}")

# %% [markdown]
# ## An experiment
#
# What has been worth a cell is soon worth a file. It hands its function to a config just so:

# %%
MINE = '''
"""The demo with ALiBi."""

import dataclasses

import jax
import jax.numpy as jnp

from experiments.demo import experiment as demo


def alibi(query, key, value, mask=None):
    slopes = 2.0 ** (-8 * jnp.arange(1, query.shape[-3] + 1) / query.shape[-3])
    scores = jnp.einsum("...tk,...sk->...ts", query, key) / query.shape[-1] ** 0.5
    scores += slopes[:, None, None] * jnp.arange(key.shape[-2])
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights


model = dataclasses.replace(demo.model, positions="none", attention=alibi)
experiment = dataclasses.replace(demo, name="mine", model=model)
'''
folder = Path(tempfile.mkdtemp())
(folder / "mine.py").write_text(MINE)
experiment = load_experiment(folder / "mine.py")
saved = to_dict(experiment)
print(json.dumps(saved["model"]["attention"], indent=2))

# %% [markdown]
#     tlite train mine.py
#     tlite evaluate runs/mine/... --code mine.py
#     tlite generate runs/mine/... --code mine.py
#     tlite inspect runs/mine/... --code mine.py
#     tlite train --resume runs/mine/... --code mine.py
#
# A run's config.json holds what is printed above: the file's name, the function's, and the file's
# SHA-256; it holds no code. A run may come from anyone, so a command never runs a file because a
# run says so: you name it, and it is run only if it is, to the letter, the one the run was made
# with. Keep it beside the run; a new idea is a new file.

# %%
assert from_dict(GeneratorExperiment, saved) == experiment
saved["model"]["attention"]["sha256"] = "0" * 64  # as if the run were of another file
told = ""
try:
    from_dict(GeneratorExperiment, saved)
except UserError as error:
    told = str(error)
print(told)
assert "--code mine.py" in told
