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
# # A model in Hugging Face's format: write, open and inspect it
#
# **Teaches** how to write and open a model in the format of Hugging Face's transformers, how to
# find the heads in it that copy, and how to measure the loss without them.
# **Needs** [notebook 8](08_inside.ipynb), and the extra `text`; nothing is downloaded.
#
# `tlite.load` opens a folder or a hub name of transformers. What is opened is a model like any
# other of tlite: every intermediate value has a name, and every tool works on it.
#
# The model here is a small one of GPT-2's architecture, trained below to copy, and
# written as a folder of transformers. To look into a published model instead, put its name into the
# next cell: the rest of the notebook reads sizes and heads from the model that is opened. The
# results in the text are those of the small model.

# %%
import os
import string
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tlite
from tlite import functional as F
from tlite.inspection import (
    logit_lens,
    logit_lens_top_k,
    repeated_tokens,
    run,
    score_attention_patterns,
    tap_names,
)
from tlite.models import Attention, Embedding, FeedForward, GeneratorConfig, LMHead
from tlite.pictures import plot_attention, plot_heads, plot_top_of_lens
from tlite.pretrained import save_pretrained
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task

PUBLISHED = ""  # or a hub name such as "openai-community/gpt2", or a folder of transformers

# %% [markdown]
# ## The model
#
# The small model reads sequences of random letters, each written again and again, with a period
# that differs. It has GPT-2's components (learned positions, norms before the layers, GELU, biases
# everywhere) in two blocks of two heads. Its output layer is not tied to the embedding: tied, it
# learned more slowly.

# %%
LETTERS = string.ascii_lowercase + " .,;:!"
CONTEXT = 32


def draw(data, rng, step, size):
    """Inputs and targets (B, T): periodic sequences of random letters."""
    rng = F.fold_in(rng, step)
    once = jax.random.randint(rng, (size, CONTEXT), 0, len(LETTERS))
    period = jax.random.randint(F.fold_in(rng, 1), (size, 1), 5, 17)
    tokens = jnp.take_along_axis(once, jnp.arange(CONTEXT + 1) % period, axis=1)
    return tokens[:, :-1], tokens[:, 1:]


def train():
    """Return a small GPT-2 that has learned to copy, and its tokenizer."""
    tokenizer = CharTokenizer(LETTERS)
    config = GeneratorConfig(
        vocabulary_size=len(tokenizer),
        context=CONTEXT,
        width=64,
        num_heads=2,
        num_blocks=2,
        dropout=0.0,
        embedding=Embedding(init_std=0.5),
        positions="learned",
        attention=Attention(qkv_bias=True),
        feed_forward=FeedForward(mlp_dim=64, activation="gelu"),
        block="pre_norm",
        head=LMHead(bias=False),
    )
    training = TrainingConfig(
        steps=600, batch_size=32, learning_rate=5e-3, schedule="cosine", warmup_steps=50
    )
    trainer = Trainer(generator_task(config)._replace(draw=draw), training, jnp.zeros(0, int))
    state, history = trainer.train(trainer.init(), 0, training.steps)
    print(f"training loss {history['loss'][-1, 0]:.3f} nats, guessing {np.log(len(LETTERS)):.3f}")
    return trainer.models(state.parameters)[0], tokenizer


# %% [markdown]
# `save_pretrained` writes the files of transformers, and `tlite.load` opens them. The logits are
# the same afterwards. (Tests compare them with those of transformers' own GPT-2.)

# %%
if PUBLISHED:
    model, tokenizer = tlite.load(PUBLISHED)
else:
    original, characters = train()
    with tempfile.TemporaryDirectory() as folder:
        family = save_pretrained(folder, original, characters, family="gpt2")
        print(family, sorted(os.listdir(folder)))
        model, tokenizer = tlite.load(folder)
    letters = jnp.asarray(tokenizer.encode("copy me; copy me; copy"))
    print(f"largest difference {jnp.abs(model(letters) - original(letters)).max():.0e}")
config = model.config
number = sum(leaf.size for leaf in jax.tree.leaves(model))
print(f"{number:,} parameters, {config.num_blocks} blocks, {config.num_heads} heads")

# %% [markdown]
# ## What can be seen
#
# Each value has a name, whoever has trained the model:

# %%
print(*tap_names(model)[:12], "...", tap_names(model)[-1], sep="\n")

# %% [markdown]
# ## Which heads copy
#
# Random tokens, written twice. An *induction head* attends from a token of the second round to the
# one that came after it in the first (Olsson et al. 2022). The score is the share of its attention
# that goes there.

# %%
HALF, BATCH = 16, 8
known = len(tokenizer) if PUBLISHED else len(LETTERS)  # not the symbol for unknown characters
twice = repeated_tokens(jax.random.key(1), HALF, min(config.vocabulary_size, known), BATCH)
scores = jax.device_get(jax.jit(score_attention_patterns)(model, twice))
for name in ("previous", "induction"):
    plot_heads(scores[name], f"{name} score")
plt.show()
induction, previous = scores["induction"], scores["previous"]
block, head = np.unravel_index(induction.argmax(), induction.shape)
print(f"induction: block {block}, head {head}, {induction.max():.2f}")
first_block, first_head = np.unravel_index(previous.argmax(), previous.shape)
print(f"previous token: block {first_block}, head {first_head}, {previous.max():.2f}")

# %% [markdown]
# It takes two steps: a head must have written into each position which token came before it, in an
# earlier block than the head that compares with that. So the induction head is never in the first
# block, and the head that attends to the previous token comes before it.

# %% [markdown]
# ## A capture
#
# `run(..., capture=...)` returns the logits and the named values. The picture shows the attention
# of that head: in the second round it is one position right of the earlier copy.

# %%
text = twice[0]
labels = [tokenizer.decode([token]) for token in np.asarray(text)]
name = f"blocks.{block}.attention.weights"
logits, captured = run(model, text, capture=name)
weights = np.asarray(captured[name])[head]
plot_attention(weights[None], labels, title=f"block {block}, head {head}")
plt.show()
print(f"largest difference {jnp.abs(logits - model(text)).max():.0e}")  # a capture changes nothing

# %% [markdown]
# In most of the second round the largest weight is that of a token that came after the same one.

# %%
attended = weights[HALF:].argmax(-1)
followed = np.asarray(text)[np.maximum(attended - 1, 0)] == np.asarray(text)[HALF:]
print(f"after the same token: {followed.mean():.0%} of the second round")

# %% [markdown]
# ## The loss without these heads
#
# The loss of each token, over both rounds. The first round can't be known, so the loss is about
# what guessing costs or more; in the second it falls.

# %%
loss = jax.jit(lambda logits: F.token_cross_entropy(logits[:, :-1], twice[:, 1:]))
losses = np.asarray(loss(model(twice))).mean(0)

# %% [markdown]
# Now the same with every head silenced whose induction score is above 0.3. An edit is a function of
# the value, by name.


# %%
def silence(block):
    heads = jnp.asarray(induction[block] > 0.3)
    return lambda outputs: jnp.where(heads[:, None, None], 0, outputs)  # (..., H, T, K)


copying = np.flatnonzero((induction > 0.3).any(1))
edit = {f"blocks.{index}.attention.heads": silence(index) for index in copying}
losses_without = np.asarray(loss(run(model, twice, edit=edit)[0])).mean(0)

_, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.plot(np.arange(1, 2 * HALF), losses, label="as it is")
axes.plot(np.arange(1, 2 * HALF), losses_without, label=f"without {(induction > 0.3).sum()} heads")
axes.set(xlabel="tokens seen", ylabel="loss (nats per token)")
axes.axvline(HALF, color="0.7")
axes.legend()
axes.grid(alpha=0.3)
plt.show()

rounds = [(values[: HALF - 1].mean(), values[HALF:].mean()) for values in (losses, losses_without)]
for name, (first_round, second_round) in zip(("as it is", "without"), rounds, strict=True):
    print(f"{name}: first round {first_round:.2f}, second {second_round:.2f}")

# %% [markdown]
# ## Logit lens
#
# The output layer, applied after each block. `logit_lens` gives all probabilities, (L + 1, T, V);
# of a large vocabulary `logit_lens_top_k` keeps only the largest.

# %%
best, tokens = jax.device_get(jax.jit(logit_lens_top_k)(model, text))
texts = [[tokenizer.decode([token]) for token in row] for row in tokens[..., 0]]
plot_top_of_lens(best[..., 0], texts, labels)
plt.show()
right = (tokens[:, HALF:-1, 0] == np.asarray(text)[HALF + 1 :]).mean(-1)
print("share of the second round that is right, by depth:", right.round(2))
difference = jnp.abs(logit_lens(model, text).max(-1) - best[..., 0]).max()
print(f"largest difference {difference:.0e}")

# %% [markdown]
# At the embedding next to nothing of a copy is right, after the last block most of the second
# round. `tlite inspect openai-community/gpt2` draws these pictures and more, for a text of yours,
# on one page.

# %% [markdown]
# ## Exercise
#
# Silence the head with the highest previous-token score, in place of those that copy. The model
# still has its copying heads: does the second round suffer as much?
#
# ## Solution
#
# Not as much. The copying heads compare with what the earlier head has written, so without it they
# find the token after the copy less often: the loss of the second round rises in this case, too,
# but less. How far depends on how many heads share the work.

# %%
chosen = jnp.arange(config.num_heads) == first_head
name = f"blocks.{first_block}.attention.heads"
edit = {name: lambda outputs: jnp.where(chosen[:, None, None], 0, outputs)}
without_previous = np.asarray(loss(run(model, twice, edit=edit)[0])).mean(0)
print(
    f"second round: as it is {rounds[0][1]:.2f}, without copying heads {rounds[1][1]:.2f}", end=""
)
print(f", without the previous-token head {without_previous[HALF:].mean():.2f}")

# %% [markdown]
# How to evaluate, fine-tune and export such models is in the guide
# [From Hugging Face](guides/from_hugging_face.md).
