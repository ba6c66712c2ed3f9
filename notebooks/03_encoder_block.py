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
# # The encoder block
#
# **Teaches** how to write a transformer block in plain expressions, and why it matters whether the
# norm comes before or after the layer. **Needs** [notebook 1](01_attention.ipynb); no data.
#
# Besides attention a block has three simple parts: norms, a feed-forward layer and residual
# connections. Here each is written as an expression, then all of them together.

# %%
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.models import BlockInputs, ClassifierConfig, block, count_parameters, init_block

random = np.random.default_rng(0)


def compare(by_hand, by_library):
    """Print the largest difference of two arrays."""
    difference = np.abs(np.subtract(by_hand, by_library)).max()
    print(f"largest difference {difference:.0e}")


# %% [markdown]
# ## Layer norm
#
# $y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot g + b$ (Ba et al. 2016) with the mean $\mu$
# and variance $\sigma^2$ over the numbers of one vector, not over the batch. Before the learned
# scale $g$ and bias $b$ each vector has mean 0 and variance 1, however large $x$ is.

# %%
width = 64
x = jnp.asarray(random.normal(size=(5, width)) * 3 + 2)
plain = F.NormParameters(jnp.ones(width), jnp.zeros(width))
standard = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
print("means", np.asarray(x.mean(-1)).round(1), "->", np.abs(standard.mean(-1)).round(4))
print("variances", np.asarray(x.var(-1)).round(1), "->", np.asarray(standard.var(-1)).round(4))
compare(standard, F.layer_norm(plain, x))
compare(standard, F.layer_norm(plain, 10 * x + 7))
learned = F.NormParameters(*jnp.asarray(random.normal(size=(2, width))))
expected = standard * learned.scale + learned.bias
compare(expected, F.layer_norm(learned, x))

# %% [markdown]
# RMS norm does not subtract the mean: $y = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \odot g$ (Zhang
# and Sennrich 2019, eq. 4). On a vector of mean 0 it is layer norm.

# %%
centred = x - x.mean(-1, keepdims=True)
compare(F.rms_norm(plain, centred), F.layer_norm(plain, x))
print("means after RMS norm", np.asarray(F.rms_norm(plain, x).mean(-1)).round(2))

# %% [markdown]
# ## Feed-forward
#
# $\mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2$ (Vaswani et al. 2017, eq. 2), for each position
# separately: attention moves information between positions, this layer transforms it.
#
# `init_block` draws the parameters of a block as a model does. They are a tree of arrays, so `vmap`
# draws 24 blocks at once, each array with one more leading axis. The next cells use the first one.

# %%
num_blocks = 24
config = ClassifierConfig(width=width, num_heads=4)


@partial(jax.jit, static_argnums=0)
def init_blocks(number):
    keys = jax.random.split(jax.random.key(0), number)
    return jax.vmap(lambda rng: init_block(rng, config))(keys)


blocks = init_blocks(num_blocks)
params = jax.tree.map(lambda array: array[0], blocks)
first, second = params.feed_forward.hidden, params.feed_forward.output
by_hand = jnp.maximum(x @ first.kernel + first.bias, 0) @ second.kernel + second.bias
output = F.feed_forward(params.feed_forward, x)
compare(by_hand, output)
compare(F.feed_forward(params.feed_forward, x[3]), output[3])

# %% [markdown]
# ## Dropout
#
# In training each number is 0 with probability $r$, and the others are divided by $1 - r$. So the
# mean stays $x$, and with rate 0 (after training) nothing is scaled.

# %%
ones = jnp.ones((1000, width))
dropped = np.asarray(F.dropout(jax.random.key(1), ones, 0.25))
print(f"zeros {(dropped == 0).mean():.3f}, others {dropped.max():.3f}, mean {dropped.mean():.3f}")

# %% [markdown]
# ## The block, step by step
#
# A residual connection adds a layer's input to its output, so that the layer has to learn only a
# change. Vaswani et al. 2017 (section 3.1) put the norm after the sum: $\mathrm{norm}(x + f(x))$.
# The library's `block` reads its components from a config, and masks and positions from
# `BlockInputs`. It returns $x$, the keys and values for a cache, and scalars for the loss.

# %%
attended, _ = F.multi_head_attention(params.attention, x, x, x, num_heads=4)
middle = F.layer_norm(params.attention_norm, x + attended)
fed = F.feed_forward(params.feed_forward, middle)
post_norm = F.layer_norm(params.feed_forward_norm, middle + fed)
by_library, _, _ = block(params, x, BlockInputs(), config=config)
compare(post_norm, by_library)

# %% [markdown]
# Pre-norm (Xiong et al. 2020, figure 1b) has it before the layer: $x + f(\mathrm{norm}(x))$.
# The residual stream itself is then never normalized.

# %%
y = F.layer_norm(params.attention_norm, x)
middle = x + F.multi_head_attention(params.attention, y, y, y, num_heads=4)[0]
y = F.layer_norm(params.feed_forward_norm, middle)
pre_norm = middle + F.feed_forward(params.feed_forward, y)
with_pre_norm = dataclasses.replace(config, block="pre_norm")
by_library, _, _ = block(params, x, BlockInputs(), config=with_pre_norm)
compare(pre_norm, by_library)

# %% [markdown]
# ## The difference at depth
#
# The figure shows, before any training, the size of the residual stream after each block and the
# gradient with respect to the block's last matrix, $W_2$. Post-norm returns the stream to size 1
# in each block. With pre-norm it grows, so that later blocks change it less. Xiong et al. 2020
# (theorem 1) bound the last block's gradient by a number that does not depend on the number of
# blocks $L$ for post-norm, and falls like $1 / \sqrt{L}$ for pre-norm. They conclude that
# post-norm needs a warm-up because of the large gradients near the output.

# %%
texts = jnp.asarray(random.normal(size=(16, 10, width)))
direction = jnp.asarray(random.normal(size=texts.shape))  # the loss: the output along it


def loss(blocks, config):
    def step(x, params):
        x, _, _ = block(params, x, BlockInputs(), config=config)
        return x, jnp.sqrt(jnp.square(x).mean())

    x, stream = jax.lax.scan(step, texts, blocks)
    return (F.layer_norm(plain, x) * direction).mean(), stream  # pre-norm needs a norm at the end


@partial(jax.jit, static_argnums=1)
def gradient_norms(blocks, config):
    """For each block the norm of the gradient of W_2, and the size of the residual stream."""
    gradient, stream = jax.grad(loss, has_aux=True)(blocks, config)
    return jnp.linalg.norm(gradient.feed_forward.output.kernel, axis=(1, 2)), stream


# %%
last = {}
_, panels = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for name, each in {"post-norm": config, "pre-norm": with_pre_norm}.items():
    norms, stream = gradient_norms(blocks, each)
    panels[0].plot(np.arange(1, num_blocks + 1), stream, label=name, marker=".")
    panels[1].plot(np.arange(1, num_blocks + 1), norms, label=name, marker=".")
    last[name] = norms[-1]
    print(f"{name}: residual stream {stream[0]:.2f} after block 1, {stream[-1]:.2f} at the end")
for axes in panels:
    axes.set(xlabel="block", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
panels[0].set_ylabel("residual stream (RMS)")
panels[1].set_ylabel("norm of the gradient of $W_2$")
plt.show()
ratio = last["post-norm"] / last["pre-norm"]
root = num_blocks**0.5
print(f"last block, post-norm / pre-norm: {ratio:.1f}; square root of {num_blocks}: {root:.1f}")

# %% [markdown]
# ## Counting parameters
#
# Attention has four matrices of $D^2$ numbers and, here, a bias at the output only ($D$). The
# feed-forward layer has two of $D F$ with biases of $F$ and $D$, each norm $2 D$.

# %%
for path, array in jax.tree.leaves_with_path(params):
    print(f"{jax.tree_util.keystr(path, simple=True, separator='.'):28} {array.shape}")
hidden = 4 * width
by_hand = (4 * width**2 + width) + (2 * width * hidden + hidden + width) + 2 * 2 * width
print(f"by the formula {by_hand:,}, counted {count_parameters(params):,}")

# %% [markdown]
# ## Exercise
#
# Set `num_blocks` to 96. By which factor should the ratio of the two last gradients grow, if the
# gradients grow as the bounds of the theorem do? Run, and compare with the printed ratio.
#
# ## Solution
#
# The bound for pre-norm falls like $1 / \sqrt L$ and the other is constant, so the ratio should
# double when $L$ is four times as large. The measured ratio grows somewhat less: the theorem bounds
# gradients, it does not say how large they are.

# %%
for number in (24, 96):
    deep = init_blocks(number)
    post, pre = (gradient_norms(deep, each)[0][-1] for each in (config, with_pre_norm))
    print(f"{number} blocks: ratio {post / pre:.1f}")

# %% [markdown]
# Next: [the backward pass](04_backward.ipynb), every gradient of such a block by hand.
