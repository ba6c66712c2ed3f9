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
# # Inside GPT-2: a model that others have trained
#
# At the end you can open a model that others have trained, find the heads in it that copy, and show
# by silencing them what they are good for.
#
# `tlite.load` opens a folder or a hub name of Hugging Face's transformers, and what is opened is a
# model like those trained here: every value inside has a name, and every tool works on it. We look
# for the heads that copy. Notebook 8 watched such a pair of heads appear in training. Does GPT-2
# have them too?
#
# Where the hub can be reached, or has been before, this is OpenAI's GPT-2 with 124 million numbers.
# Otherwise a model of GPT-2's shape is trained here in half a minute, written as a folder of
# transformers, and opened like the other. All that is claimed below is checked for the one that is
# there; a line that begins with "this is" says which.

# %%
import os
import string
import tempfile
import urllib.request

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tlite
from tlite import functional as F
from tlite.errors import UserError
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

HUB_NAME = "openai-community/gpt2"


# %% [markdown]
# ## The model
#
# The hub is asked once, for five seconds. If it does not answer, its client looks only at what it
# has kept on this machine.


# %%
def from_the_hub():
    """GPT-2 and its tokenizer; None where there is no way to it."""
    if "HF_HUB_OFFLINE" not in os.environ:
        try:
            urllib.request.urlopen("https://huggingface.co", timeout=5).close()
        except OSError:
            os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        return tlite.load(HUB_NAME)
    except UserError as error:
        print(error)
        return None


# %% [markdown]
# The other model reads sequences of random letters, each written again and again, with a period
# that differs. It has GPT-2's parts (learned positions, norms before the layers, GELU, biases
# everywhere) in two blocks of two heads. Only its output layer is its own: with the embedding in
# its place it learned slower.

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


def trained_here():
    """A small GPT-2 that has learned to copy, and its tokenizer."""
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
# What was trained here is written as others would write it (safetensors, config.json,
# tokenizer.json), opened again, and must say the same. (That transformers' own GPT-2 says the same
# of such a folder is checked in tests/system.)

# %%
if opened := from_the_hub():
    model, tokenizer = opened
    which = f"{HUB_NAME}, with its trained numbers"
else:
    original, characters = trained_here()
    with tempfile.TemporaryDirectory() as folder:
        family = save_pretrained(folder, original, characters, family="gpt2")
        print(sorted(os.listdir(folder)))
        model, tokenizer = tlite.load(folder)
        letters = jnp.asarray(tokenizer.encode("copy me; copy me; copy"))
        np.testing.assert_array_equal(letters, characters.encode("copy me; copy me; copy"))
        np.testing.assert_array_equal(model(letters), original(letters))
    which = "a small model of GPT-2's shape, trained here"
config = model.config
number = sum(leaf.size for leaf in jax.tree.leaves(model))
print(f"this is {which}: {number:,} numbers, {config.num_blocks} blocks, {config.num_heads} heads")

# %% [markdown]
# ## What can be seen
#
# Each value has a name, the same in a model of ours and in one of theirs:

# %%
print(*tap_names(model)[:12], "...", tap_names(model)[-1], sep="\n")
assert f"blocks.{config.num_blocks - 1}.attention.weights" in tap_names(model)

# %% [markdown]
# ## Which heads copy
#
# Random tokens, written twice. An *induction head* looks from a token of the second round at the
# one that came after it in the first (Olsson et al. 2022). The score is how much of its attention
# goes there.

# %%
HALF, BATCH = 16, 8
twice = repeated_tokens(jax.random.key(1), HALF, min(config.vocabulary_size, len(tokenizer)), BATCH)
scores = jax.device_get(jax.jit(score_attention_patterns)(model, twice))
for name in ("previous", "induction"):
    plot_heads(scores[name], f"{name} score")
plt.show()
induction, previous = scores["induction"], scores["previous"]
block, head = np.unravel_index(induction.argmax(), induction.shape)
print(f"induction: block {block}, head {head}, {induction.max():.2f}")
first, of_first = np.unravel_index(previous.argmax(), previous.shape)
print(f"previous token: block {first}, head {of_first}, {previous.max():.2f}")
assert induction.max() > 0.5

# %% [markdown]
# It takes two steps: a head must have written into each position which token came before it, ahead
# of the head that looks for that. So the induction head is never in the first block, and the head
# that looks back by one comes before it.

# %%
assert block > 0
assert first < block

# %% [markdown]
# ## A capture
#
# `run(..., capture=...)` gives the logits and the values that are named. Below is where that head
# looks: in the second round it is one place right of the earlier copy.

# %%
text = twice[0]
marks = [tokenizer.decode([token]) for token in np.asarray(text)]
place = f"blocks.{block}.attention.weights"
logits, captured = run(model, text, capture=place)
weights = np.asarray(captured[place])[head]
plot_attention(weights[None], marks, title=f"block {block}, head {head}")
plt.show()
np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
np.testing.assert_allclose(logits, model(text), atol=1e-3)

# %% [markdown]
# What is looked at most there is, for most of the second round, a token that came after the same.

# %%
looked_at = weights[HALF:].argmax(-1)
followed = np.asarray(text)[np.maximum(looked_at - 1, 0)] == np.asarray(text)[HALF:]
print(f"after the same token: {followed.mean():.0%} of the second round")
assert followed.mean() > 0.5

# %% [markdown]
# ## What it is good for
#
# The loss of each token, over both rounds. The first round can't be known, so the loss is about
# what guessing costs or more; in the second it falls.

# %%
loss = jax.jit(lambda logits: F.token_cross_entropy(logits[:, :-1], twice[:, 1:]))
whole = np.asarray(loss(model(twice))).mean(0)

# %% [markdown]
# Now the same with every head silenced whose induction score is above 0.3. An edit is a function of
# the value, by name.


# %%
def silence(block):
    heads = jnp.asarray(induction[block] > 0.3)
    return lambda outputs: jnp.where(heads[:, None, None], 0, outputs)  # (..., H, T, K)


copying = np.flatnonzero((induction > 0.3).any(1))
edit = {f"blocks.{index}.attention.heads": silence(index) for index in copying}
without = np.asarray(loss(run(model, twice, edit=edit)[0])).mean(0)

_, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.plot(np.arange(1, 2 * HALF), whole, label="as it is")
axes.plot(np.arange(1, 2 * HALF), without, label=f"without {(induction > 0.3).sum()} heads")
axes.set(xlabel="tokens seen", ylabel="loss (nats per token)")
axes.axvline(HALF, color="0.7")
axes.legend()
axes.grid(alpha=0.3)
plt.show()

rounds = [(values[: HALF - 1].mean(), values[HALF:].mean()) for values in (whole, without)]
for name, (first_round, second_round) in zip(("as it is", "without"), rounds, strict=True):
    print(f"{name}: first round {first_round:.2f}, second {second_round:.2f}")
assert rounds[0][1] < rounds[0][0] - 0.5
assert rounds[1][1] > rounds[0][1] + 0.2

# %% [markdown]
# ## Logit lens
#
# What the model would say if it ended after each block. `logit_lens` gives all probabilities, (L +
# 1, T, V); of a vocabulary of 50,257 tokens `logit_lens_top_k` keeps only the largest.

# %%
best, tokens = jax.device_get(jax.jit(logit_lens_top_k)(model, text))
pieces = [[tokenizer.decode([token]) for token in row] for row in tokens[..., 0]]
plot_top_of_lens(best[..., 0], pieces, marks)
plt.show()
right = (tokens[:, HALF:-1, 0] == np.asarray(text)[HALF + 1 :]).mean(-1)
print("share of the second round that is right, by depth:", right.round(2))
assert right[-1] > 0.5
assert right[0] < 0.2
np.testing.assert_array_equal(tokens[-1, :, 0], np.asarray(model(text)).argmax(-1))
np.testing.assert_allclose(logit_lens(model, text).max(-1), best[..., 0], atol=1e-5)

# %% [markdown]
# At the embedding, a copy is as good as unknown; after the last block most of the second round is
# right. `tlite inspect openai-community/gpt2` draws these pictures and more, of a text of yours,
# on one page.

# %% [markdown]
# ## Exercise
#
# Silence the two heads that look back by one most, in place of those that copy. The model still has
# its copying heads: does the second round suffer as much? Say first what the two steps above let
# you expect.
#
# Next: [a scaling law](11_scaling_law.ipynb), or how large your own model should be.
