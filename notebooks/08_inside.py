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
# # Inside a trained model: how two heads learn to copy
#
# **Teaches** what an induction head is, when it appears in training, and that a model without it no
# longer copies. **Needs** notebooks [1](01_attention.ipynb) and [5](05_generator.ipynb); the
# sequences are drawn, nothing is downloaded.
#
# A model reads random tokens whose sequence begins again after a while. Nothing can be known of the
# first round; from then on the next token is the one that followed the last time. One head cannot
# find it: "what came after the earlier copy of this token" takes two steps. A head of the first
# block writes into each position which token came before it; a head of the second block attends to
# the positions where that is the present token, and copies the token that stands there. The second
# of the two is an *induction head* (Olsson et al. 2022). We watch it appear, and take it out.

# %%
import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.inspection import (
    ablate_heads,
    logit_lens,
    repeated_tokens,
    run,
    score_attention_patterns,
)
from tlite.models import Embedding, FeedForward, GeneratorConfig
from tlite.pictures import plot_attention, plot_heads, plot_top_of_lens
from tlite.training import Trainer, TrainingConfig, generator_task

VOCABULARY, CONTEXT = 32, 32

# %% [markdown]
# ## The task
#
# Each sequence is a random one of 5 to 16 tokens, written again and again. The period differs, so a
# head cannot learn to look a fixed distance back.


# %%
def draw(data, rng, step, size):
    """Inputs and targets (B, T): periodic sequences of random tokens."""
    rng = F.fold_in(rng, step)
    once = jax.random.randint(rng, (size, CONTEXT), 0, VOCABULARY)
    period = jax.random.randint(F.fold_in(rng, 1), (size, 1), 5, 17)
    tokens = jnp.take_along_axis(once, jnp.arange(CONTEXT + 1) % period, axis=1)
    return tokens[:, :-1], tokens[:, 1:]


print(*np.asarray(draw(None, jax.random.key(0), 0, 1)[0][0]))

# %% [markdown]
# The model is the library's generator with one head in each of two blocks. `Trainer` runs the loop
# that notebook 5 writes out, with `draw` as the source of its batches; every 25 steps
# `score_attention_patterns` measures the heads on random sequences that are written twice.

# %%
config = GeneratorConfig(
    vocabulary_size=VOCABULARY,
    context=CONTEXT,
    width=64,
    num_heads=1,
    num_blocks=2,
    dropout=0.0,
    embedding=Embedding(init_std=1.0),
    positions="rotary",
    feed_forward=FeedForward(mlp_dim=64),
    block="pre_norm",
)
training = TrainingConfig(
    steps=400, batch_size=32, learning_rate=1e-2, schedule="cosine", warmup_steps=50
)
twice = repeated_tokens(jax.random.key(1), CONTEXT // 2, VOCABULARY, batch=64)
steps = list(range(0, training.steps + 1, 25))


def train(config):
    """Return the model, its training losses, and the scores of its heads at each of `steps`."""
    trainer = Trainer(generator_task(config)._replace(draw=draw), training, jnp.zeros(0, int))
    measure, state, scores, losses = jax.jit(score_attention_patterns), trainer.init(), [], []
    for step in steps:
        (model,) = trainer.models(state.parameters)
        scores.append(jax.device_get(measure(model, twice)))
        if step < training.steps:
            state, history = trainer.train(state, step, 25)
            losses.extend(history["loss"][:, 0])
    return model, losses, scores


model, losses, scores = train(config)

# %%
_, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
axes[0].plot(losses)
axes[0].set(xlabel="step", ylabel="training loss (nats per token)")
axes[0].grid(alpha=0.3)
by_step = np.stack([s["induction"] for s in scores])
for block, head in np.ndindex(by_step.shape[1:]):
    axes[1].plot(steps, by_step[:, block, head], marker="o", ms=3, label=f"{block}.{head}")
axes[1].set(xlabel="step", ylabel="induction score", ylim=(0, 1))
axes[1].legend(title="block.head")
axes[1].grid(alpha=0.3)
plt.show()

# %% [markdown]
# The loss falls in a step, and at the same time the induction score of a head of the second block
# rises. The numbers of the trained model, by kind of head:

# %%
for name in ("previous", "induction"):
    plot_heads(scores[-1][name], f"{name} score")
plt.show()
induction = scores[-1]["induction"]
block, head = np.unravel_index(induction.argmax(), induction.shape)
print(f"block {block}, head {head}: induction score {induction.max():.3f}")
previous = scores[-1]["previous"][0]
print(f"block 0, head {previous.argmax()}: previous-token score {previous.max():.3f}")

# %% [markdown]
# An induction score of 1 would mean that all of the head's attention goes to the token after the
# earlier copy. The previous-token score of the first block is lower, and that is enough: the second
# head compares positions, and softmax makes a clear decision out of a moderate difference.

# %% [markdown]
# ## Where the head attends
#
# In the second round each token attends to the token after its earlier copy: the bright diagonal,
# one position right of the copies.

# %%
text = repeated_tokens(jax.random.key(2), 10, VOCABULARY)[0]
labels = [str(token) for token in np.asarray(text)]
_, captured = run(model, text, capture=f"blocks.{block}.attention.weights")
(weights,) = captured.values()
plot_attention(np.asarray(weights)[head : head + 1], labels, title=f"block {block}, head {head}")
plt.show()

# %% [markdown]
# ## Taking it out
#
# The loss over the second round, as it is, and with each head silenced in turn (`ablate_heads`, one
# program for all of them). Guessing costs $\ln 32$ nats.


# %%
def second_round(logits):
    """Mean loss over the second copy."""
    half = CONTEXT // 2
    return F.token_cross_entropy(logits[:, half:-1], twice[:, half + 1 :]).mean()


whole = jax.jit(lambda model: second_round(model(twice)))(model)
without = ablate_heads(model, twice, metric=second_round)
plot_heads(np.asarray(without), "loss of the second round (nats)")
plt.show()
print(f"as it is {whole:.3f}, guessing {np.log(VOCABULARY):.3f}")
print(f"without block {block}, head {head}: {without[block, head]:.3f}")

# %% [markdown]
# ## Logit lens
#
# The output layer, applied after each block: in the second round the right token is there only
# after the second block.

# %%
lens = np.asarray(logit_lens(model, text))
plot_top_of_lens(lens.max(-1), lens.argmax(-1).astype(str), labels)
plt.show()
right = (lens[:, 10:-1].argmax(-1) == np.asarray(text)[11:]).mean(-1)
print("share of the second round that is right after embedding, block 0, block 1:", right)

# %% [markdown]
# ## Exercise
#
# Train a model of one block: there is no earlier block that could write down which token came
# before. How far does the loss fall, and what is the best induction score?
#
# ## Solution

# %%
_, losses_of_one, scores_of_one = train(dataclasses.replace(config, num_blocks=1))
best_of_one = scores_of_one[-1]["induction"].max()
for number, loss, best in ((1, losses_of_one[-1], best_of_one), (2, losses[-1], induction.max())):
    print(f"blocks: {number}, training loss {loss:.2f}, best induction score {best:.2f}")

# %% [markdown]
# One head of one block compares the present token with tokens, not with what came before them: it
# can't find the position after the earlier copy. The loss stays much higher.
#
# Next: [change one line](09_change_one_line.ipynb), your own attention beside the library's.
