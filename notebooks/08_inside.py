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
# At the end you know what an induction head is, when it appears in training, and that taking it out
# takes the copying with it.
#
# A model reads random tokens whose sequence begins again after a while. Nothing can be known of the
# first round; from then on the next token is the one that followed the last time. One head cannot
# find it: "what came after the earlier copy of this token" takes two steps. A head of the first
# block writes into each position which token came before it; a head of the second looks for
# positions that say "before me was the token you have now" and copies what stands there. That pair
# is an *induction head* (Olsson et al. 2022). We watch it appear, and take it out.

# %%
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
# The generator of the library with one head in each of two blocks, and its training loop; only
# where examples come from is new.

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
trainer = Trainer(generator_task(config)._replace(draw=draw), training, jnp.zeros(0, int))
twice = repeated_tokens(jax.random.key(1), CONTEXT // 2, VOCABULARY, batch=64)

measure, state, scores, losses = jax.jit(score_attention_patterns), trainer.init(), [], []
steps = list(range(0, training.steps + 1, 25))
for step in steps:
    (model,) = trainer.models(state.parameters)
    scores.append(jax.device_get(measure(model, twice)))
    if step < training.steps:
        state, history = trainer.train(state, step, 25)
        losses.extend(history["loss"][:, 0])

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
assert induction.max() > 0.8
assert block == 1

# %% [markdown]
# ## Where the head looks
#
# In the second round each token's query falls on the token after its earlier copy: the bright
# diagonal, one place right of the copies.

# %%
text = repeated_tokens(jax.random.key(2), 10, VOCABULARY)[0]
marks = [str(token) for token in np.asarray(text)]
_, captured = run(model, text, capture=f"blocks.{block}.attention.weights")
(weights,) = captured.values()
plot_attention(np.asarray(weights)[head : head + 1], marks, title=f"block {block}, head {head}")
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
assert without[block, head] > whole + 1

# %% [markdown]
# ## Logit lens
#
# What the model would say after each block: in the second round the answer is there only after the
# second.

# %%
lens = np.asarray(logit_lens(model, text))
plot_top_of_lens(lens.max(-1), lens.argmax(-1).astype(str), marks)
plt.show()
right = (lens[:, 10:-1].argmax(-1) == np.asarray(text)[11:]).mean(-1)
print("share of the second round that is right after embedding, block 0, block 1:", right)

# %% [markdown]
# ## Exercise
#
# Set `num_blocks=1`: there is no earlier block that could write down which token came before. How
# far does the loss fall, and what is the best induction score? (The assertions of two blocks fail:
# they are the answer.)
#
# Next: [change one line](09_change_one_line.ipynb), your own attention beside the library's.
