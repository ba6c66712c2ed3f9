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
# # A character generator out of functions
#
# **Teaches** how to build, train and sample a transformer in about fifty lines that hide nothing,
# and how to judge its loss by that of counting characters. **Needs** notebooks
# [1](01_attention.ipynb) and [3](03_encoder_block.ipynb); the text is part of Python.
#
# A generator is one function $f_\theta(c_1, \dots, c_t)$: from the characters so far to a score for
# each character that may come next. Here it consists of functions of `tlite.functional` alone: the
# parameters are a dictionary, training is a function, and so is generation.

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from tlite import functional as F
from tlite.data import BuiltinText, contiguous_windows, sample_windows, split_tokens
from tlite.models import Attention, GeneratorConfig, count_parameters
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task

# %% [markdown]
# ## The text
#
# Python's help topics, which every Python carries. A character becomes a number; the last twentieth
# is kept to measure the model by.

# %%
text = BuiltinText().load()[:200_000]
tokenizer = CharTokenizer(text)
training, held_out = split_tokens(tokenizer.encode(text), 0.05)
training = jnp.asarray(training)
print(f"{len(training):,} characters to learn from, {len(set(text))} different ones")
print(text[:300])

# %% [markdown]
# How good is a given loss? A model that knows nothing gives each of $V$ characters $1/V$: a loss of
# $\ln V$. The best that sees nothing of the text before a character gives it its frequency $p_c$;
# its loss is the entropy $-\sum_c p_c \ln p_c$ of the characters. The best that sees one character
# reaches the entropy of pairs less that of characters, the *bigram* entropy. A model with a lower
# loss uses more of the text than the last character.


# %%
def entropy(values):
    p = np.unique(values, return_counts=True)[1] / len(values)
    return -(p * np.log(p)).sum()


blind = entropy(held_out)
after_one = entropy(held_out[:-1] * len(tokenizer) + held_out[1:]) - entropy(held_out[:-1])
print(f"knowing nothing {np.log(len(tokenizer)):.2f} nats a character,")
print(f"the frequencies {blind:.2f}, the character before {after_one:.2f}")

# %% [markdown]
# ## The parameters
#
# Glorot's uniform numbers for the kernels, zeros for the biases, ones for the norms' scales.

# %%
width, num_heads, num_blocks, context = 48, 4, 2, 32
draw = jax.nn.initializers.glorot_uniform()


def make_linear(rng, shape):
    return F.LinearParameters(draw(rng, shape), jnp.zeros(shape[1]))


def make_norm():
    return F.NormParameters(jnp.ones(width), jnp.zeros(width))


def make_block(rng):
    shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    keys = jax.random.split(rng, 6)
    *attention, hidden, output = map(make_linear, keys, shapes)
    return {
        "attention": F.AttentionParameters(*attention),
        "attention_norm": make_norm(),
        "feed_forward": F.FeedForwardParameters(hidden, output),
        "feed_forward_norm": make_norm(),
    }


def init(rng):
    keys = jax.random.split(rng, num_blocks + 3)
    return {
        "embedding": 0.02 * jax.random.normal(keys[0], (len(tokenizer), width)),
        "positions": 0.02 * jax.random.normal(keys[1], (context, width)),
        "blocks": [make_block(k) for k in keys[3:]],
        "norm": make_norm(),
        "output": make_linear(keys[2], (width, len(tokenizer))),
    }


params = jax.jit(init)(jax.random.key(0))
print(f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters")

# %% [markdown]
# ## The model
#
# With a row of the table $E$ for each character and one of $P$ for each position,
#
# $$x_t = E_{c_t} + P_t, \qquad
# x \leftarrow x + \mathrm{attention}(\mathrm{norm}(x)), \qquad
# x \leftarrow x + \mathrm{feed\ forward}(\mathrm{norm}(x)),$$
#
# the last two in each block, and the logits are $\mathrm{norm}(x)\, W + b$. By the causal mask a
# position attends to itself and earlier ones only, so that one pass predicts the next character at
# every position.


# %%
def forward(params, tokens, is_causal=True):
    x = F.add_positions(params["positions"], F.embed(params["embedding"], tokens))
    mask = F.causal_mask(tokens.shape[-1]) if is_causal else None
    for block in params["blocks"]:
        y = F.layer_norm(block["attention_norm"], x)
        x += F.multi_head_attention(block["attention"], y, y, y, mask, num_heads=num_heads)[0]
        x += F.feed_forward(block["feed_forward"], F.layer_norm(block["feed_forward_norm"], x))
    return F.linear(params["output"], F.layer_norm(params["norm"], x))


def loss(params, tokens, targets, weights=None, is_causal=True):
    total, count = F.cross_entropy(forward(params, tokens, is_causal), targets, weights)
    return total / count


# %%
before = training[:context]
after = before.at[20].set((before[20] + 1) % len(tokenizer))  # another character at position 20
apart = jax.jit(forward)(params, jnp.stack([before, after]))
changed = np.asarray(apart[0] != apart[1]).any(-1)
print("positions whose logits change:", np.flatnonzero(changed))

# %% [markdown]
# ## Training
#
# A step draws windows that start anywhere and moves the parameters against the gradient, by Adam.
# What it draws is a function of its number, so there is no state beside the parameters and Adam's.
# `scan` makes one compiled call of many steps.

# %%
num_steps, batch_size = 700, 32
optimizer = optax.adam(optax.cosine_decay_schedule(5e-3, num_steps))


@partial(jax.jit, static_argnames="is_causal")
def train(params, state, numbers, is_causal=True):
    def step(carry, number):
        params, state = carry
        key = jax.random.fold_in(jax.random.key(1), number)
        windows = sample_windows(key, training, context, batch_size)
        value, gradient = jax.value_and_grad(loss)(params, *windows, is_causal=is_causal)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    return jax.lax.scan(step, (params, state), numbers)


# %%
windows = contiguous_windows(held_out, context)  # each held-out character but the first, once
measure = jax.jit(loss)
state, losses, measured = optimizer.init(params), [], {0: measure(params, *windows)}
for numbers in jnp.arange(num_steps).reshape(-1, 100):
    (params, state), values = train(params, state, numbers)
    losses.extend(values.tolist())
    measured[len(losses)] = measure(params, *windows)
    print(f"step {len(losses):4}, held-out loss {measured[len(losses)]:.3f}")

# %%
axes = plt.subplots(figsize=(6, 3.5), layout="constrained")[1]
axes.plot(losses, alpha=0.6, label="training, a batch")
axes.plot(measured.keys(), measured.values(), "o", label="held out")
axes.axhline(blind, color="gray", linestyle="--", label="knows the frequencies")
axes.axhline(after_one, color="gray", linestyle=":", label="knows the character before")
axes.set(xlabel="step", ylabel="loss (nats per character)")
axes.grid(alpha=0.3)
axes.legend()
plt.show()

final = float(measured[num_steps])
print(f"held-out loss {final:.2f} nats; from the frequencies {blind:.2f}, ", end="")
print(f"from the character before {after_one:.2f}")

# %% [markdown]
# ## Writing
#
# Take the last `context` characters, draw the next from
# $\mathrm{softmax}(\mathrm{logits} / \tau)$, append it, move the window on by one. A temperature
# $\tau$ below 1 makes the probable more probable.


# %%
@jax.jit
def write(params, rng, written, temperature):
    def step(t, written):
        window = jax.lax.dynamic_slice(written, (t - context,), (context,))
        logits = forward(params, window)[-1]
        drawn = F.sample(jax.random.fold_in(rng, t), logits, temperature)
        return written.at[t].set(drawn)

    return jax.lax.fori_loop(context, len(written), step, written)


prompt = jnp.asarray(held_out[:context])
written = jnp.concatenate([prompt, jnp.zeros(400, prompt.dtype)])
print(f"given {tokenizer.decode(prompt)!r}")
for temperature in (0.5, 1.0):
    sample = tokenizer.decode(write(params, jax.random.key(3), written, temperature))
    print(f"\n--- temperature {temperature}\n{sample[context:]}")

# %% [markdown]
# ## The same by the library
#
# A *config* names sizes and components of a model. A *task* holds the functions that training
# calls: initial parameters, the batch of a step, the loss. A `Trainer` compiles the loop above, for
# several seeds side by side. The initial values are other ones, so the losses differ a little.

# %%
config = GeneratorConfig(
    len(tokenizer),
    context,
    width=width,
    num_heads=num_heads,
    num_blocks=num_blocks,
    attention=Attention(qkv_bias=True),
    block="pre_norm",
    dropout=0.0,
)
settings = TrainingConfig(
    steps=num_steps, batch_size=batch_size, learning_rate=5e-3, schedule="cosine"
)
trainer = Trainer(generator_task(config), settings, training)
trained, history = trainer.train(trainer.init(), 0, num_steps)  # from step 0, so many steps
(model,) = trainer.models(trained.parameters)  # one, as there is one seed
total, count = jax.jit(lambda model: F.cross_entropy(model(windows[0]), *windows[1:]))(model)
print(f"{count_parameters(model):,} parameters, held-out loss {total / count:.2f}; ", end="")
print(f"by hand {final:.2f}")

# %% [markdown]
# An *experiment* adds where the text comes from, and its *run* a folder with checkpoints, so that
# it resumes after a kill ([notebook 9](09_change_one_line.ipynb)). `tlite.decoding.generate` caches
# the keys and values of earlier characters instead of computing the window again for each new one.

# %% [markdown]
# ## Exercise
#
# Train again without the causal mask, `is_causal=False`. What happens to the training loss, and
# why? What is the model worth when it writes?
#
# ## Solution
#
# Position $t$ then sees the characters at $t + 1$ and later, and the character at $t + 1$ is its
# target: the model learns to copy it, and the loss falls far below that of any model that predicts.
# In writing there is no next character to copy, so nothing of that is left. The cell compares the
# loss of all positions with that of the last one, whose target is not in the window.

# %%
params = jax.jit(init)(jax.random.key(0))
state, numbers = optimizer.init(params), jnp.arange(num_steps)
(params, _), losses_without = train(params, state, numbers, is_causal=False)
inputs, targets, _ = windows
logits = forward(params, inputs, is_causal=False)[:, -1]
at_last = F.token_cross_entropy(logits, targets[:, -1]).mean()
print(f"training loss {losses_without[-1]:.2f}, with the mask {losses[-1]:.2f}")
print(f"held-out loss of the last position {at_last:.2f}")

# %% [markdown]
# Next: [the classifier](06_classifier.ipynb), which reads a whole text and answers once.
