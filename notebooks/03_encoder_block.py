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
# Around attention stand three simple things: a norm, a feed-forward layer and a residual
# connection. Here each is built out of expressions, then all of them together.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.models import ClassifierConfig
from tlite.modules import EncoderBlock, count_parameters, summary

random = np.random.default_rng(0)

# %% [markdown]
# ## Layer norm
#
# $y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot g + b$ (Ba et al. 2016) with the mean $\mu$
# and variance $\sigma^2$ over the numbers of one vector, not over the batch. Before the learned
# scale $g$ and bias $b$ each vector has mean 0 and variance 1, however large it came.

# %%
width = 16
x = jnp.asarray(random.normal(size=(5, width)) * 3 + 2)
norm = F.NormParameters(
    jnp.asarray(random.normal(size=width)), jnp.asarray(random.normal(size=width))
)
plain = F.NormParameters(jnp.ones(width), jnp.zeros(width))
standard = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
np.testing.assert_allclose(F.layer_norm(plain, x), standard, atol=1e-5)
np.testing.assert_allclose(F.layer_norm(norm, x), standard * norm.scale + norm.bias, atol=1e-5)
np.testing.assert_allclose(F.layer_norm(plain, 10 * x + 7), standard, atol=1e-5)
print("means", np.asarray(x.mean(-1)).round(2), "->", np.asarray(standard.mean(-1)).round(2) + 0.0)
print("variances", np.asarray(x.var(-1)).round(1), "->", np.asarray(standard.var(-1)).round(2))

# %% [markdown]
# RMS norm leaves the mean alone: $y = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \odot g$ (Zhang and
# Sennrich 2019, eq. 4). On a vector of mean 0 it is layer norm.

# %%
centred = x - x.mean(-1, keepdims=True)
np.testing.assert_allclose(F.rms_norm(plain, centred), F.layer_norm(plain, x), atol=1e-5)
print("means after RMS norm", np.asarray(F.rms_norm(plain, x).mean(-1)).round(2))

# %% [markdown]
# ## Feed-forward
#
# $\mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2$ (Vaswani et al. 2017, eq. 2), for each position
# on its own: attention moves information between positions, this layer works on it in place. The
# parameters below are those of a whole block, as the library's module draws them.

# %%
config = ClassifierConfig(width=width, num_heads=4, hidden_width=64)
block = EncoderBlock(config, key=jax.random.key(0))
first, second = block.feed_forward.hidden, block.feed_forward.output
by_hand = jnp.maximum(x @ first.kernel + first.bias, 0) @ second.kernel + second.bias
output = F.feed_forward(block.feed_forward, x)
np.testing.assert_allclose(by_hand, output, atol=1e-5)
np.testing.assert_allclose(F.feed_forward(block.feed_forward, x[3]), output[3], atol=1e-5)

# %% [markdown]
# ## Dropout
#
# In training each number is 0 with probability $r$, and the others are divided by $1 - r$. So the
# mean stays $x$, and without a key (after training) nothing has to be scaled.

# %%
ones = jnp.ones((1000, width))
dropped = np.asarray(F.dropout(jax.random.key(1), ones, 0.25))
print(f"zeros {(dropped == 0).mean():.3f}, others {dropped.max():.3f}, mean {dropped.mean():.3f}")
assert abs(dropped.mean() - 1) < 0.02
assert F.dropout(None, ones, 0.25) is ones

# %% [markdown]
# ## The block, step by step
#
# A residual connection adds a layer's input to its output, so that the layer only has to learn a
# change. Vaswani et al. 2017 (section 3.1) put the norm after the sum: $\mathrm{norm}(x + f(x))$.

# %%
attended, _ = F.multi_head_attention(block.attention, x, x, x, num_heads=4)
middle = F.layer_norm(block.attention_norm, x + attended)
fed = F.feed_forward(block.feed_forward, middle)
post_norm = F.layer_norm(block.feed_forward_norm, middle + fed)
np.testing.assert_allclose(F.encoder_block(block, x, num_heads=4), post_norm, atol=1e-5)

# %% [markdown]
# Pre-norm (Xiong et al. 2020, figure 1b) has it before the layer: $x + f(\mathrm{norm}(x))$.
# Nothing then stands in the way of $x$ itself.

# %%
y = F.layer_norm(block.attention_norm, x)
middle = x + F.multi_head_attention(block.attention, y, y, y, num_heads=4)[0]
pre_norm = middle + F.feed_forward(
    block.feed_forward, F.layer_norm(block.feed_forward_norm, middle)
)
by_library = F.encoder_block(block, x, num_heads=4, pre_norm=True)
np.testing.assert_allclose(by_library, pre_norm, atol=1e-5)

# %% [markdown]
# ## Which is easier to train?
#
# That shows in 32 blocks before any training: the derivative of a loss by what goes into each
# block. A module is a pytree, so `vmap` makes 32 blocks at once, each array with one axis more,
# and `scan` runs through them. Adding zeros to what goes into each block gives them a gradient.

# %%
depth = 32
keys = jax.random.split(jax.random.key(2), depth)
blocks = jax.vmap(lambda key: EncoderBlock(config, key=key))(keys)
texts = jnp.asarray(random.normal(size=(16, 10, width)))
direction = jnp.asarray(random.normal(size=texts.shape))


def loss(zeros, pre_norm):
    def step(x, layer):
        block, zero = layer
        return F.encoder_block(block, x + zero, num_heads=4, pre_norm=pre_norm), None

    x, _ = jax.lax.scan(step, texts, (blocks, zeros))
    return (F.layer_norm(plain, x) * direction).sum()


axes = plt.subplots(figsize=(6, 3.5), layout="constrained")[1]
for pre_norm, name in ((False, "post-norm"), (True, "pre-norm")):
    gradients = jax.grad(loss)(jnp.zeros((depth, *texts.shape)), pre_norm)
    sizes = np.linalg.norm(gradients.reshape(depth, -1), axis=1)
    axes.plot(np.arange(depth), sizes / sizes[-1], label=name, marker=".")
    print(f"{name}: first block / last block {sizes[0] / sizes[-1]:.2g}")
axes.set(xlabel="block", ylabel="norm of the gradient (last block = 1)", yscale="log")
axes.grid(alpha=0.3)
axes.legend()

# %% [markdown]
# ## Counting parameters
#
# Attention has four matrices of $D^2$ numbers and here a bias only at the output, the feed-forward
# layer two of $D F$ with biases $F$ and $D$, each norm $2 D$.

# %%
print(summary(block))
hidden = 64
by_hand = (4 * width**2 + width) + (2 * width * hidden + hidden + width) + 2 * 2 * width
assert count_parameters(block) == by_hand
