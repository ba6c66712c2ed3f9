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
# # The encoder-decoder
#
# **Teaches** how a decoder reads the output of an encoder, how a translator is trained, how it
# searches, and what its attention shows. **Needs** [notebook 3](03_encoder_block.ipynb), and the
# extra `text` for the tokenizer; the sequences are drawn, nothing is downloaded.
#
# A translator reads a complete sentence before it writes. The encoder turns the source into one
# vector per token. The decoder writes the target token by token; each of its blocks attends to the
# target so far (causal self-attention) and to the encoder's vectors (cross-attention) ("Attention
# is all you need", figure 1). Here it learns to write letters backwards.

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from tlite import functional as F
from tlite.data import CopyTask
from tlite.decoding.search import length_normaliser
from tlite.decoding.translate import translate
from tlite.inspection import run
from tlite.models import BlockInputs, FeedForward, Seq2Seq, Seq2SeqConfig, block
from tlite.pictures import plot_attention
from tlite.text import PairTokenizer
from tlite.text.subwords import PAD_ID, SPECIALS, START_ID, pad_tokens

# %% [markdown]
# ## Pairs and tokens
#
# A source ends with the token [END]. A target begins with [START] and ends with [END]: from [START]
# the decoder predicts the first token, and [END] says that the target is complete.

# %%
data = CopyTask(reverse=True, letters=12, longest=7, sequences=4000)
pairs, held_out = data.pairs("training"), data.pairs("test")
sources, targets = [p.source for p in pairs], [p.target for p in pairs]
tokenizer = PairTokenizer.train(sources, targets, num_subwords=60)
print(f"{sources[0]!r} -> {targets[0]!r}")
encoded = tokenizer.encode_sources(sources), tokenizer.encode_targets(targets)
print("source", encoded[0][0], "target", encoded[1][0])
print("special tokens", dict(enumerate(SPECIALS)))

# %% [markdown]
# Sequences of a batch are padded with [PAD] to one length. Nothing attends to padding, and it is no
# target.

# %%
source_ids, target_ids = (jnp.asarray(pad_tokens(rows)) for rows in encoded)
print("sources", source_ids.shape, "targets", target_ids.shape)
print(f"{(source_ids == PAD_ID).mean():.0%} of the sources' tokens are padding")

# %% [markdown]
# ## One decoder block by hand
#
# A decoder's `block` has three residual layers. The mask of the first is causal, that of the second
# excludes the source's padding.

# %%
config = Seq2SeqConfig(
    vocabulary_size=len(tokenizer),
    source_vocabulary_size=len(tokenizer),
    context=10,
    width=64,
    num_heads=4,
    num_blocks=1,
    dropout=0.0,
    feed_forward=FeedForward(dropout=0.0),
)
model = jax.jit(partial(Seq2Seq, config))(rng=jax.random.key(0))
source, target = (jnp.asarray(side[0]) for side in encoded)
memory, memory_mask = model.encode(source)
x, params, causal = model.embed_target(target), model.decoder.blocks[0], F.causal_mask(len(target))

attended, _ = F.multi_head_attention(params.attention, x, x, x, causal, num_heads=4)
y = F.layer_norm(params.attention_norm, x + attended)
attended, _ = F.multi_head_attention(
    params.cross_attention, y, memory, memory, memory_mask, num_heads=4
)
y = F.layer_norm(params.cross_attention_norm, y + attended)
y = F.layer_norm(params.feed_forward_norm, y + F.feed_forward(params.feed_forward, y))

inputs = BlockInputs(mask=causal, memory=memory, memory_mask=memory_mask)
by_library, _, _ = block(params, x, inputs, config=config)
print(f"largest difference {jnp.abs(by_library - y).max():.0e}")

# %% [markdown]
# ## Training
#
# The decoder reads the target up to each token and predicts the next one, at all positions at once.
# The learning rate rises for 60 steps, then falls with the inverse square root of the step (eq. 3).
# A share $\epsilon = 0.1$ of each target's probability is spread evenly over all $V$ tokens; the
# right one keeps $1 - \epsilon + \epsilon / V$ (section 5.4).


# %%
def loss(model, source, target):
    read, next_token = target[:, :-1], target[:, 1:]
    is_token = (next_token != PAD_ID).astype(float)
    total, count = F.cross_entropy(model(source, read), next_token, is_token, smoothing=0.1)
    return total / count


def learning_rate(step):
    return 4e-3 * jnp.minimum((step + 1) / 60, jnp.sqrt(60 / (step + 1)))


STEPS, BATCH = 400, 64
optimizer = optax.adam(learning_rate, b2=0.98)


@jax.jit
def train(model, target_ids):
    def step(carry, number):
        model, state = carry
        rows = jax.random.choice(F.fold_in(jax.random.key(1), number), len(sources), (BATCH,))
        value, gradient = jax.value_and_grad(loss)(model, source_ids[rows], target_ids[rows])
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(model, updates), state), value

    (model, _), losses = jax.lax.scan(step, (model, optimizer.init(model)), jnp.arange(STEPS))
    return model, losses


model, losses = train(model, target_ids)
axes = plt.subplots(figsize=(6, 3), layout="constrained")[1]
axes.plot(losses)
axes.set(xlabel="step", ylabel="smoothed loss (nats per token)")
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## Search
#
# Greedy search takes the most probable token at each step. Beam search keeps several targets and
# ranks those that have ended by $\log p \,/\, ((5 + n) / 6)^\alpha$ (Wu et al. 2016, eq. 14), for
# $\log p$ alone favours short ones.

# %%
tests = tokenizer.encode_sources(p.source for p in held_out)
right = {}
for beam in (1, 5):
    results = translate(model, tests, beam=beam)
    written = [tokenizer.decode(hypotheses[0][0]) for hypotheses in results]
    right[beam] = np.mean([w == p.target for w, p in zip(written, held_out, strict=True)])
    print(f"beam {beam}: {right[beam]:.1%} of {len(held_out)} held-out sequences are right")

print("\nthe best five of", held_out[0].source)
for tokens, score in results[0]:
    print(f"{score:8.3f}  {tokenizer.decode(tokens)}")
by_length = [-2 / length_normaliser(length, 0.6) for length in (5, 20)]
print("\na log-probability of -2 scores {:.2f} with 5 tokens, {:.2f} with 20".format(*by_length))

# %% [markdown]
# ## Alignment
#
# Nothing in the model says that the target is the source backwards. The weights of its
# cross-attention show that it has learned it.

# %%
source = tests[0]
target = results[0][0][0]
target = np.r_[START_ID, target[target != PAD_ID]]
name = "decoder.blocks.0.cross_attention.weights"
_, captured = run(model, jnp.asarray(source), jnp.asarray(target), capture=name)
weights = np.asarray(captured[name]).mean(0)[None, :-1]
letters = weights[0, :-1, :-1]  # without [END], which is last on both sides
attended = letters @ np.arange(letters.shape[1]) / letters.sum(1)
correlation = np.corrcoef(np.arange(len(letters)), attended)[0, 1]
print(f"correlation of the position written and the mean position attended to: {correlation:.2f}")
source_tokens = [tokenizer.source.id_to_token(t) for t in source]
target_tokens = [tokenizer.target.id_to_token(t) for t in target[1:]]
axes = plot_attention(weights, target_tokens, source_tokens, each="decoder block")
plt.show()

# %% [markdown]
# ## Exercise
#
# Train a model that copies: its target is the source. Which sign has the correlation then, and
# which way does the diagonal of the picture run?
#
# ## Solution
#
# Position by position the decoder attends to the letter that it writes, so the correlation is
# positive, and the diagonal runs from the upper left to the lower right.

# %%
copies = jnp.asarray(pad_tokens(tokenizer.encode_targets(sources)))
copying, _ = train(jax.jit(partial(Seq2Seq, config))(rng=jax.random.key(0)), copies)
target = np.r_[START_ID, source[:-1]]
_, captured = run(copying, jnp.asarray(source), jnp.asarray(target), capture=name)
letters = np.asarray(captured[name]).mean(0)[:-1, :-1]
attended = letters @ np.arange(letters.shape[1]) / letters.sum(1)
correlation_of_copies = np.corrcoef(np.arange(len(letters)), attended)[0, 1]
print(f"correlation {correlation_of_copies:.2f}")

# %% [markdown]
# Next: [inside](08_inside.ipynb), where two heads of a generator learn to copy.
