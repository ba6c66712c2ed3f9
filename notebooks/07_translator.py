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
# At the end you know how a decoder reads the output of an encoder, and have a picture of its
# attention that shows the order of the words.
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

from tlite import functional as F
from tlite.data import CopyTask
from tlite.decoding.search import length_normaliser
from tlite.decoding.translate import translate
from tlite.inspection import run
from tlite.models import BlockInputs, FeedForward, Seq2Seq, Seq2SeqConfig, block
from tlite.pictures import plot_attention
from tlite.text import PairTokenizer
from tlite.text.subwords import START_ID
from tlite.training import AdamW, CrossEntropy, Trainer, TrainingConfig
from tlite.training.tasks import make_buckets, padding_share, translator_task

# %% [markdown]
# ## Pairs, tokens, buckets

# %%
data = CopyTask(reverse=True, letters=12, longest=7, sequences=4000)
pairs, held_out = data.pairs("training"), data.pairs("test")
sources, targets = [p.source for p in pairs], [p.target for p in pairs]
tokenizer = PairTokenizer.train(sources, targets, pieces=60)
print(f"{sources[0]!r} -> {targets[0]!r}")
print(tokenizer.encode_sources(sources[:1])[0], "ends with [END], and the target begins with")
print(tokenizer.encode_targets(targets[:1])[0], "[START]")

# %% [markdown]
# Sentences of similar length go into one bucket, so that little of a batch is padding and each
# bucket's program is compiled once.

# %%
encoded = tokenizer.encode_sources(sources), tokenizer.encode_targets(targets)
for number in (1, 2, 4):
    buckets = make_buckets(*encoded, number)
    lengths = [bucket.source.shape[1] for bucket in buckets]
    print(f"{number} bucket(s) of up to {lengths} tokens: {padding_share(buckets, 0):.0%} padding")

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
print("largest difference", jnp.abs(by_library - y).max())
assert jnp.allclose(by_library, y, atol=1e-5)

# %% [markdown]
# ## Training
#
# The learning rate rises, then falls with the inverse square root of the step (eq. 3); each target
# is worth $1 - \epsilon$, and $\epsilon = 0.1$ is spread over all tokens (section 5.4).

# %%
training = TrainingConfig(
    steps=400,
    batch_size=512,
    learning_rate=4e-3,
    schedule="inverse_sqrt",
    warmup_steps=60,
    optimizer=AdamW(b2=0.98),
    loss=CrossEntropy(label_smoothing=0.1),
)
buckets = make_buckets(*encoded, 2)
devices = jax.local_devices()[:1]
task = translator_task(config, [b.source.shape for b in buckets], training.batch_size)
trainer = Trainer(task, training, jax.tree.map(jnp.asarray, buckets), devices)
state, history = trainer.train(trainer.init(), 0, training.steps)
(model,) = trainer.models(state.parameters)

axes = plt.subplots(figsize=(6, 3), layout="constrained")[1]
axes.plot(history["loss"][:, 0])
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
    found = translate(model, tests, beam=beam)
    written = [tokenizer.decode(hypotheses[0][0]) for hypotheses in found]
    right[beam] = np.mean([w == p.target for w, p in zip(written, held_out, strict=True)])
    print(f"beam {beam}: {right[beam]:.1%} of {len(held_out)} held-out sequences are right")
assert min(right.values()) > 0.9

print("\nthe best five of", held_out[0].source)
for tokens, score in found[0]:
    print(f"{score:8.3f}  {tokenizer.decode(tokens)}")
by_length = [-2 / length_normaliser(length, 0.6) for length in (5, 20)]
print("\na log-probability of -2 scores {:.2f} with 5 tokens, {:.2f} with 20".format(*by_length))

# %% [markdown]
# ## Alignment
#
# Nobody told the decoder that the target is the source backwards. Its cross-attention says so.

# %%
source = tests[0]
target = found[0][0][0]
target = np.r_[START_ID, target[target != config.special_tokens.pad_id]]
name = "decoder.blocks.0.cross_attention.weights"
_, captured = run(model, jnp.asarray(source), jnp.asarray(target), capture=name)
weights = np.asarray(captured[name]).mean(0)[None, :-1]
letters = weights[0, :-1, :-1]  # without [END], which is last on both sides
looked_at = letters @ np.arange(letters.shape[1]) / letters.sum(1)
correlation = np.corrcoef(np.arange(len(letters)), looked_at)[0, 1]
print(f"correlation of the place written and the place looked at: {correlation:.2f}")
assert correlation < -0.8
pieces = [tokenizer.source.id_to_token(t) for t in source]
written = [tokenizer.target.id_to_token(t) for t in target[1:]]
axes = plot_attention(weights, written, pieces, each="decoder block")
plt.show()

# %% [markdown]
# ## Exercise
#
# Set `reverse=False` in `CopyTask`, so that the target is the source. Which sign has the
# correlation then, and which way does the diagonal of the picture run? (One assertion has to change
# with it.)
#
# Next: [inside](08_inside.ipynb), where two heads of a generator learn to copy.
