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
# **Teaches** how to replace attention, optimizer, schedule, loss and initial values in one line
# each, how to train each change beside the unchanged model, and how to read the interval of the
# difference. **Needs** notebooks [1](01_attention.ipynb) and [5](05_generator.ipynb); the text is
# part of Python.
#
# Each change is a function in a cell, which replaces tlite's in an experiment:
#
# | field of the experiment | arguments | returns |
# | --- | --- | --- |
# | `model.attention` | query, key, value (..., H, T or S, K), mask | output, weights |
# | `training.optimizer` | learning rate | an optax `GradientTransformation` |
# | `training.schedule` | steps since the warm-up | factor of the learning rate |
# | `training.loss` | logits (..., V), targets (...) | a value for each target (...) |
# | `training.init` | key, shape, dtype | initial values of a matrix |
#
# The output of attention is (..., H, T, K), the weights are (..., H, T, S); the mask is True where
# a query may attend. The guides have the other components, layers and blocks
# ([own component](guides/own_component.md)), and more on training
# ([own optimizer](guides/own_optimizer.md)). Each function is tested before a run: attention that
# ignores the mask, or a loss that does not fall when predictions improve, is an error.

# %%
import contextlib
import io
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import tlite
from tlite import functional as F
from tlite.comparison.results import compare_runs
from tlite.decoding import generate
from tlite.inspection import run

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


def compare(values, expected):
    """Print the largest difference of two arrays."""
    print(f"largest difference {jnp.abs(values - expected).max():.0e}")


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
for values, expected in zip(
    attention(*inputs), F.scaled_dot_product_attention(*inputs), strict=True
):
    compare(values, expected)

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
compare(alibi(*inputs)[1], by_distance)

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


# %% [markdown]
# ## A line with something to learn
#
# The divisor $\sqrt K$ is a guess for all heads. Let head $h$ have a learned factor $\tau_h$ that
# is 1 before training: $\mathrm{softmax}(\tau_h\, q k^\top / \sqrt K)\, v$. A function with an
# attribute `init_params(rng, config)`, a dictionary of arrays, gets these parameters as its first
# argument. Scaling the queries scales the scores, so the attention above does the rest.


# %%
def tempered(params, query, key, value, mask=None):
    return attention(params.temperature[:, None, None] * query, key, value, mask)


tempered.init_params = lambda rng, config: {"temperature": jnp.ones(config.num_heads)}

# %% [markdown]
# ## Train and compare
#
# A change is a dictionary of fields and their values; `tlite.override` puts it into an experiment.

# %%
changes = {
    "unchanged": {},
    "attention": {"model.attention": alibi},
    "temperature": {"model.attention": tempered},
    "optimizer": {"training.optimizer": sign_descent, "training.learning_rate": 2e-3},
    "schedule": {"training.schedule": half_cosine},
    "loss": {"training.loss": poly_loss},
    "initial values": {"training.init": small_init},
}
variants = {name: tlite.override(experiment, change) for name, change in changes.items()}

# %% [markdown]
# `tlite.train` trains all variants with the same batches for each of three seeds, and compares the
# others with the first. Its log, which is hidden here, ends with a table of the differences, as
# `tlite compare` prints it; below are its figures. The runs go to a temporary folder: without `dir`
# they stay in `runs`.

# %%
folder = tempfile.TemporaryDirectory()
with contextlib.redirect_stdout(io.StringIO()):
    study = tlite.train(variants, seeds=3, dir=Path(folder.name, "study"))
results = compare_runs([study.folder])
unchanged = [*results.reference.values(results.metric).values()]
print(f"unchanged: validation loss {np.mean(unchanged):.3f} nats per character")
print("\nvalidation loss less that of the unchanged model (nats), 95 % interval, p by Holm")
effects = {row.label: diff for row, diff in results.intervals}
for name, diff in effects.items():
    print(f"{name:>14}  {diff.mean:+.3f} ± {diff.half_width:.3f}  {diff.p_adjusted:.2f}")

figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
for index, diff in enumerate(effects.values()):
    axis.errorbar(diff.mean, index, xerr=diff.half_width, fmt="o", capsize=4)
axis.axvline(0, color="black", linewidth=1)
axis.set_yticks(range(len(effects)), [*effects])
axis.set(xlabel="validation loss less the unchanged model's (nats): left is better")
axis.set_ylim(len(effects) - 0.5, -0.5)
axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ALiBi is better: without it this block sees which characters came before, but not in which order.
# The interval of descent by signs excludes 0, too, and yet the difference is not significant: of
# six intervals one may well exclude 0 by chance, which Holm's correction of the $p$-values takes
# into account. The seeds of "temperature" and of the other initial values are not paired with those
# of the unchanged model: seed $i$ draws other numbers. That the other changes make no significant
# difference does not mean that they make none: three seeds show large effects only. And these are
# models after 300 steps, whose loss is above the 2.067 of a prediction from the last character
# alone ([notebook 10](10_a_study.ipynb)): the table says nothing about the end of a longer
# training.
#
# A run records each function: a file with its definition, and with the functions, plain values
# (here `STEPS` and `WIDTH`) and imports that it uses. So a run can be resumed, loaded and inspected
# when the notebook is closed. What can't be written into a file is an error before the run: a
# lambda in place of the function (`init_params` may be one), or an array of the notebook. A run may
# come from anyone, so its code is executed only if you have trained with it yourself, or add
# `--trust` (in Python `trust=True`).

# %% [markdown]
# ## What the functions do in the trained models
#
# `tlite.load` opens a run's model, and `run` captures the weights that your function returns. The
# first head's slope is steepest, $m_1 = 1/4$: at the same scores, a character 16 positions back has
# $e^{-4}$ of the weight. The unchanged model has no information about distances.

# %%
models = {row.label: tlite.load(row.folder) for row in results.runs[:3]}
tokenizer = models["attention"][1]
text = tlite.data.BuiltinText().load()
tokens = jnp.asarray(tokenizer.encode(text[-64 * 32 :]).reshape(64, 32))
distance = np.arange(32)[:, None] - np.arange(32)
mean_distance = {}
for name in ("unchanged", "attention"):
    _, captured = run(models[name][0], tokens, capture="blocks.0.attention.weights")
    weights = np.asarray(captured["blocks.0.attention.weights"])  # (64, H, T, T)
    mean_distance[name] = (weights * distance)[..., 16:, :].sum(-1).mean((0, 2))
    print(f"{name:>9}: mean distance attended to, by head", mean_distance[name].round(1))
temperatures = models["temperature"][0].blocks[0].attention.custom.temperature[...]
print("temperature: learned factors by head", np.round(temperatures, 2))

# %% [markdown]
# ## Generation
#
# `generate` caches keys and values, and computes one query per new token. Your function runs there
# unchanged: it needs the positions of the keys only.

# %%
prompt = tokens[0, :20]
written = generate(models["attention"][0], prompt, num_tokens=60, rng=jax.random.key(2))
print(f"{tokenizer.decode(prompt)!r} + {tokenizer.decode(written)!r}")
folder.cleanup()

# %% [markdown]
# ## Exercise
#
# So et al. (2021, "Primer") found squared ReLU in a search: $\max(x, 0)^2$ in place of the demo's
# GELU. Write it as a function of one array, for the field `model.feed_forward.activation`. Is the
# difference significant? If not, how many seeds would show a difference of 0.02 nats?
#
# ## Solution


# %%
def squared_relu(x):
    return jnp.square(jax.nn.relu(x))


variant = tlite.override(experiment, {"model.feed_forward.activation": squared_relu})
with tempfile.TemporaryDirectory() as folder:
    with contextlib.redirect_stdout(io.StringIO()):
        pair = {"GELU": experiment, "squared ReLU": variant}
        study = tlite.train(pair, seeds=3, dir=Path(folder, "study"))
    ((_, activation),) = compare_runs([study.folder]).intervals
print(f"{activation.mean:+.3f} ± {activation.half_width:.3f}, p {activation.p:.2f}")
print("seeds that show 0.02 nats in 80 of 100 studies:", activation.required_seeds(0.02))

# %% [markdown]
# Decide first on the smallest difference that would matter to you, here 0.02 nats; `required_seeds`
# (and `tlite compare --smallest-effect 0.02`) computes the number from it and from the spread of
# the seeds. The measured difference is no substitute: it is itself uncertain.
#
# Next: [a study](10_a_study.ipynb), from the question to the conclusion.
