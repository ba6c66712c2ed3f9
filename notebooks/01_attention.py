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
# # Attention, from one dot product up
#
# **Teaches** every step from one dot product to multi-head attention under a mask, each compared
# with the library's function. **Needs** matrix products, softmax and NumPy; no data.
#
# Attention is a look-up that can be differentiated: a query is compared with keys, and what comes
# back is an average of the values, most of it from the keys that fit best.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.pictures import plot_attention

random = np.random.default_rng(0)


def compare(by_hand, by_library):
    """Print the largest difference of two arrays."""
    difference = np.abs(np.subtract(by_hand, by_library)).max()
    print(f"largest difference {difference:.0e}")


# %% [markdown]
# ## One query
#
# The dot product $q \cdot k_s$ says how well key $s$ fits, softmax makes weights of the scores
# (positive, sum 1), and the output is the sum of the values under these weights. For a matrix of
# queries, one a row, that is $\mathrm{softmax}(Q K^\top / \sqrt{d_k})\, V$ (Vaswani et al. 2017,
# eq. 1). The library returns the weights too; $d_k$ is the K in its shapes.

# %%
query = jnp.array([2.0, 1.0])
keys = jnp.array([[2.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
values = jnp.array([[10.0], [20.0], [30.0]])
scores = keys @ query / jnp.sqrt(2)
weights = jax.nn.softmax(scores)
output = weights @ values
print("scores", scores, "weights", weights, "output", output)
outputs, _ = F.scaled_dot_product_attention(query[None], keys, values)
compare(output, outputs[0])

# %% [markdown]
# ## Why divide by the square root of the width?
#
# If the components of $q$ and $k$ are independent with mean 0 and variance 1, then
# $q \cdot k = \sum_{i=1}^{d_k} q_i k_i$ has mean 0 and variance $d_k$ (section 3.2.1, footnote 4).
# Large scores saturate softmax: one weight is almost 1, and with the derivative
# $\partial w_s / \partial z_r = w_s (\delta_{sr} - w_r)$ almost 0 hardly any gradient gets through.

# %%
widths = [4, 16, 64, 256]
largest, derivative = np.zeros((2, 2, len(widths)))  # by row: plain, divided
for n, width in enumerate(widths):
    q, k = random.normal(size=(200, 1, width)), random.normal(size=(200, 32, width))
    scores = (q * k).sum(-1)  # of 200 queries with 32 keys each
    print(f"width {width:3}: SD of scores {scores.std():4.1f}, sqrt(width) {width**0.5:4.1f}")
    for row, z in enumerate((scores, scores / width**0.5)):
        jacobians = np.asarray(jax.vmap(jax.jacobian(jax.nn.softmax))(z))
        largest[row, n] = np.median(np.asarray(jax.nn.softmax(z)).max(-1))
        derivative[row, n] = np.median(np.linalg.norm(jacobians, axis=(1, 2)))

# %%
_, panels = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for axes, curves in zip(panels, (largest, derivative), strict=True):
    axes.plot(widths, curves.T, marker="o", label=["$q \\cdot k$", "$q \\cdot k / \\sqrt{d_k}$"])
    axes.set(xlabel="width $d_k$", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
panels[0].set_ylabel("largest weight (median)")
panels[1].set_ylabel("norm of the derivative (median)")
plt.show()

# %% [markdown]
# ## Batches
#
# Leading axes are free: B batch, T queries, S keys. Each query is on its own: the matrix product
# gives what one query at a time gives.

# %%
q = jnp.asarray(random.normal(size=(2, 3, 8)))  # (B, T, K)
k, v = jnp.asarray(random.normal(size=(2, 2, 5, 8)))  # (B, S, K) each
output, weights = F.scaled_dot_product_attention(q, k, v)
print("output", output.shape, "weights", weights.shape)
alone, _ = F.scaled_dot_product_attention(q[1, 2:], k[1], v[1])
compare(alone[0], output[1, 2])

# %% [markdown]
# ## Masks
#
# A mask is boolean, and True means "may attend". It is the same as a score of $-\infty$ where it
# is False (section 3.2.3). A text that is written from left to right has a causal mask:

# %%
x = jnp.asarray(random.normal(size=(4, 8)))
causal = F.causal_mask(4)
_, weights = F.scaled_dot_product_attention(x, x, x, causal)
scores = jnp.where(causal, x @ x.T / jnp.sqrt(8), -jnp.inf)
compare(jax.nn.softmax(scores), weights)
print(np.asarray(weights).round(2))

# %% [markdown]
# Texts of a batch are filled up to one length, here with the id -1, and nothing attends to that.
# The second text begins with padding. Under both masks its first query sees nothing and gets
# zeros; with scores of $-\infty$ softmax would be 0 / 0.

# %%
tokens = jnp.array([[5, 3, 7, -1], [-1, 4, 2, 9]])
both = F.combine_masks(causal, F.padding_mask(tokens, pad_id=-1))  # (B, 1, T, S)
texts = jnp.broadcast_to(x, (2, 1, 4, 8))  # (B, H, T, K) with one head
output, weights = F.scaled_dot_product_attention(texts, texts, texts, both)
print(np.asarray(weights[1, 0]).round(2))
unseen = output[1, 0, 0]
print("output of the query that sees nothing", unseen)
print("softmax of scores that are all minus infinity", jax.nn.softmax(jnp.full(4, -jnp.inf)))

# %% [markdown]
# ## Many heads
#
# $\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_H) W^O$ with
# $\mathrm{head}_h = \mathrm{Attention}(Q W^Q_h, K W^K_h, V W^V_h)$ (section 3.2.2): each head has
# projections of its own and so can compare something of its own. The $W^Q_h$ of all heads lie side
# by side in one matrix; `split_heads` takes its result apart, `merge_heads` is the Concat.

# %%
width, num_heads = 8, 2
kernels = jnp.asarray(random.normal(size=(4, width, width)) / width**0.5)
params = F.AttentionParameters(*map(F.LinearParameters, kernels))  # query, key, value, output

projected = [F.linear(layer, x) for layer in params[:3]]  # (T, D) each
q, k, v = (F.split_heads(y, num_heads) for y in projected)  # (H, T, D/H) each
heads, weights = F.scaled_dot_product_attention(q, k, v, causal)
by_hand = F.linear(params.output, F.merge_heads(heads))
output, _ = F.multi_head_attention(params, x, x, x, causal, num_heads=num_heads)
compare(by_hand, output)
alone, _ = F.scaled_dot_product_attention(*(x @ kernel[:, 4:] for kernel in kernels[:3]), causal)
compare(alone, heads[1])  # the last four columns are head 1

# %% [markdown]
# A head attends where its two matrices make query and key match. Here are two written by hand, over
# vectors with a 1 for the word and a 1 for the position: head 0 compares words, head 1 moves the
# query's position back by one (the first word has nothing before it and can only see itself).

# %%
words = ["to", "be", "or", "not", "to", "be"]
word = np.eye(4)[[0, 1, 2, 3, 0, 1]]  # a 1 for each of the four words
marked = jnp.concatenate([word, np.eye(6)], axis=-1)  # and one for the position: (T, D) = (6, 10)
same = jax.scipy.linalg.block_diag(np.eye(4, 6), np.eye(6))  # (D, H*K) = (10, 12)
back = jax.scipy.linalg.block_diag(np.eye(4, 6), np.eye(6, k=-1))
kernels = 10 * back, same, same, same.T
by_design = F.AttentionParameters(*map(F.LinearParameters, kernels))
inputs = marked, marked, marked, F.causal_mask(6)
_, weights = F.multi_head_attention(by_design, *inputs, num_heads=2)
plot_attention(np.asarray(weights), words)
plt.show()
print(f'head 0: the second "be" attends to the first with {weights[0, 5, 1]:.2f}', end=", ")
print(f"to itself with {weights[0, 5, 5]:.2f}")
print("head 1: each word attends to the one before with", np.diagonal(weights[1], -1).round(2))

# %% [markdown]
# ## Causality, seen by a gradient
#
# That no output depends on a later input can be checked: the Jacobian
# $\partial y_t / \partial x_s$ is exactly 0 for $s > t$, and only there.


# %%
def attend(x):
    return F.multi_head_attention(params, x, x, x, causal, num_heads=num_heads)[0]


jacobian = np.asarray(jax.jacobian(attend)(x))  # (T, D, T, D)
depends = np.abs(jacobian).sum((1, 3))
print(depends.round(1))
print("largest derivative with respect to a later input:", depends[~np.asarray(causal)].max())

# %% [markdown]
# ## Exercise
#
# The heads written by hand have `10 * back` as their query kernel, so a match has the score
# $10 / \sqrt 6$ and all else 0. Replace 10 by 1. How much of its attention does the last word then
# pay to the word before it in head 1? Work it out on paper before you print `weights[1, 5, 4]`.
# Which is the smallest factor for which that is at least 0.9?
#
# ## Solution
#
# The last word sees six keys: one with the score $s = c / \sqrt 6$, five with 0. So the weight is
# $e^s / (e^s + 5)$. It is 0.9 where $e^s = 45$, that is for $c = \sqrt 6 \ln 45$.

# %%
for factor in (1, 6**0.5 * np.log(45), 10):
    kernels = factor * back, same, same, same.T
    by_factor = F.AttentionParameters(*map(F.LinearParameters, kernels))
    _, weights = F.multi_head_attention(by_factor, *inputs, num_heads=2)
    matching = np.exp(factor / 6**0.5)
    on_paper = matching / (matching + 5)
    print(f"factor {factor:5.2f}: on paper {on_paper:.3f}, computed {weights[1, 5, 4]:.3f}")

# %% [markdown]
# Next: [positions](02_positions.ipynb), without which attention does not know what stands where.
