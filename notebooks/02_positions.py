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
# # Positions
#
# **Teaches** three ways to give attention the positions of tokens (sines and cosines, a learned
# table, rotations), and what each of them does beyond the longest text of the training. **Needs**
# [notebook 1](01_attention.ipynb), sine and cosine of a sum, rotation matrices; no data.
#
# Attention compares every token with every other and does not know where they stand. Positions
# have to be put in: added to the vectors, or as a rotation of queries and keys.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite import pictures

random = np.random.default_rng(0)


def compare(values, expected):
    """Print the largest difference of two arrays."""
    difference = np.abs(np.subtract(values, expected)).max()
    print(f"largest difference {difference:.0e}")


# %% [markdown]
# ## Without positions there is no order
#
# If the tokens are shuffled, the outputs are the same, shuffled: attention is equivariant to
# permutations. With positions added it is not.

# %%
length, dim = 6, 8
kernels = jnp.asarray(random.normal(size=(4, dim, dim)) / dim**0.5)
params = F.AttentionParameters(*map(F.LinearParameters, kernels))
x = jnp.asarray(random.normal(size=(length, dim)))
order = random.permutation(length)


def attend(x, angles=None):
    return F.multi_head_attention(params, x, x, x, num_heads=2, angles=angles)[0]


compare(attend(x[order]), attend(x)[order])

table = F.sinusoidal_positions(length, dim)
placed = attend(F.add_positions(table, x[order])) - attend(F.add_positions(table, x))[order]
print(f"with positions the outputs differ by up to {jnp.abs(placed).max():.2f}")

# %% [markdown]
# ## Sines and cosines
#
# Vaswani et al. 2017, section 3.5: $\mathrm{PE}(p, 2i) = \sin(p\,\omega_i)$ and
# $\mathrm{PE}(p, 2i + 1) = \cos(p\,\omega_i)$ with $\omega_i = 10000^{-2i/d}$. A pair of columns is
# the hand of a clock; the first turns once in $2\pi$ positions, each later one more slowly.

# %%
length, dim = 64, 32
table = F.sinusoidal_positions(length, dim)
frequencies = 10_000.0 ** (-np.arange(0, dim, 2) / dim)
compare(table[7, 0::2], np.sin(7 * frequencies))
compare(table[7, 1::2], np.cos(7 * frequencies))

_, panels = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
labels = {"label": "value", "xlabel": "column of the encoding", "ylabel": "position"}
pictures.heat_map(np.asarray(table), panels[0], signed=True, **labels)
columns = {f"column {column}": np.asarray(table[:, column]) for column in (0, 4, 8, 12)}
pictures.plot_lines(columns, "position", "value", axes=panels[1])
plt.show()
print("positions a turn takes:", (2 * np.pi / frequencies)[:8].round(), "...")

# %% [markdown]
# ## Near positions are alike
#
# $\sin a \sin b + \cos a \cos b = \cos(a - b)$, so the dot product of the rows $p$ and $p'$ is
# $\sum_i \cos((p - p')\,\omega_i)$. It depends on the distance alone, and is large for small ones.

# %%
similarity = pictures.cosine_similarity(np.asarray(table))
distance = np.arange(length)[:, None] - np.arange(length)
expected = np.cos(distance[..., None] * frequencies).mean(-1)
compare(similarity, expected)
pictures.heat_map(
    similarity, signed=True, aspect="equal", label="cosine similarity",
    title="rows of the sinusoidal table", xlabel="position", ylabel="position",
)  # fmt: skip
plt.show()
near, far = similarity[0, :4].min(), similarity[0, 10:].max()
print(f"up to 3 positions apart at least {near:.2f}, from 10 positions on at most {far:.2f}")

# %% [markdown]
# ## A shift is a rotation
#
# The same section says that $\mathrm{PE}(p + s)$ is a linear function of $\mathrm{PE}(p)$. It is
# one that does not depend on $p$: each hand turns by $s\,\omega_i$.
#
# $$\begin{pmatrix} \sin((p+s)\,\omega) \\ \cos((p+s)\,\omega) \end{pmatrix} =
# \begin{pmatrix} \cos s\omega & \sin s\omega \\ -\sin s\omega & \cos s\omega \end{pmatrix}
# \begin{pmatrix} \sin p\,\omega \\ \cos p\,\omega \end{pmatrix}$$

# %%
shift = 5
turns = [np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]) for a in shift * frequencies]
matrix = np.asarray(jax.scipy.linalg.block_diag(*turns))
compare(table[:-shift] @ matrix.T, table[shift:])
compare(matrix @ matrix.T, np.eye(dim))  # a rotation

# %% [markdown]
# ## Learned positions
#
# The table may as well be a parameter, `positions="learned"` in a model's config; it is added by
# the same function. But only the rows that are used get a gradient: a position that no training
# text reaches stays as it was drawn.

# %%
learned = jnp.asarray(random.normal(size=(10, 8)) * 0.02)
gradient = jax.grad(lambda table: (attend(F.add_positions(table, x)) ** 2).sum())(learned)
print("norm of each row's gradient:", np.linalg.norm(gradient, axis=1).round(1))

# %% [markdown]
# ## Rotary positions
#
# If a shift is a rotation anyway, rotate the queries and keys themselves: pair $i$ at position $p$
# by the angle $p\,\theta_i$ with $\theta_i = 10000^{-2i/d}$ (Su et al. 2021, eq. 15 and 34). In the
# score $R_m q \cdot R_n k = q \cdot R_{n-m}\, k$ only the distance is left. Here are the scores of
# one query at all positions and one key at all positions:

# %%
angles = F.rotary_angles(length, dim)  # (L, dim / 2)
q, k = jnp.asarray(random.normal(size=(2, dim)))
at_all = jnp.broadcast_to(q, (length, dim)), jnp.broadcast_to(k, (length, dim))
queries, keys = (F.rotate(rows, angles) for rows in at_all)
scores = np.asarray(queries @ keys.T)
compare(scores[1:, 1:], scores[:-1, :-1])  # the same along each diagonal
compare(scores[0, 0], q @ k)

# %% [markdown]
# So nothing changes if a whole text moves by 20 positions, while a shuffled one is another text.
# The sinusoidal table holds the same rotations: a vector of ones, rotated to two positions, has the
# similarity of two rows of the table.

# %%
by_head = F.rotary_angles(40, 4)  # 4 is the width of a head
compare(attend(x, by_head[20:]), attend(x, by_head))
shuffled = attend(x[order], by_head) - attend(x, by_head)[order]
print(f"a shuffled text changes the outputs by up to {jnp.abs(shuffled).max():.2f}")
rotated = np.asarray(F.rotate(jnp.ones((length, dim)), angles))
compare(pictures.cosine_similarity(rotated), similarity)

axes = plt.subplots(figsize=(6, 3), layout="constrained")[1]
axes.plot(dim * similarity[0], label="ones and ones")
axes.plot(scores[0], label="a random query and key")
axes.set(xlabel="distance (positions)", ylabel="dot product")
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## Longer texts
#
# In $L$ positions a slow pair does not finish a turn, so that a model has never met its angles
# beyond. Linear interpolation (Chen et al. 2023, eq. 3) squeezes $L' > L$ positions into the known
# range: position $p$ becomes $p L / L'$. For rotary angles that is a scale; between the rows of a
# table it draws straight lines, which cut the corners of the fastest sines.

# %%
angles = np.asarray(F.rotary_angles(length, dim))
longer = np.asarray(F.rotary_angles(2 * length, dim, scale=0.5))
compare(longer[::2], angles)
stretched = F.interpolate_positions(table, 2 * length)
compare(stretched[::2], table)
halfway = np.stack([np.sin(longer), np.cos(longer)], -1).reshape(2 * length, dim)
error = np.abs(stretched - halfway)[:-1].max(0)  # past the last row there is only the last row
print("largest error by column: first", error[0].round(3), "last", error[-1].round(6))

axes = plt.subplots(figsize=(6, 3), layout="constrained")[1]
axes.plot(F.rotary_angles(2 * length, dim)[:, 8], label="as trained, going on")
axes.plot(longer[:, 8], label="scale 1/2")
axes.axhspan(0, angles[-1, 8], alpha=0.15, label="angles met in training")
axes.set(xlabel="position", ylabel="angle of pair 8 (radians)")
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## Exercise
#
# `rotary_angles` takes the 10,000 of $\theta_i$ as its argument `base`. Change it to 500,000 (Llama
# 3 has that) in the three calls of the last figure's cell. How many of the `dim // 2` pairs finish
# a turn within `length` positions, before and after? Compute it from $2\pi / \theta_i < L$, then
# count.
#
# ## Solution
#
# $2\pi\, b^{2i/d} < L$ holds for $i < \frac{d}{2} \log_b \frac{L}{2\pi}$. A larger base $b$ makes
# all pairs but the first slower: fewer of them come round, and more of them see new angles in a
# longer text.

# %%
for base in (10_000, 500_000):
    bound = dim / 2 * np.log(length / (2 * np.pi)) / np.log(base)
    counted = (np.asarray(F.rotary_angles(length + 1, dim, base=base))[-1] > 2 * np.pi).sum()
    print(f"base {base:7,}: i < {bound:.2f}, so {np.ceil(bound):.0f} pairs; counted {counted}")

# %% [markdown]
# Next: [the block](03_encoder_block.ipynb), which puts a norm and a layer around attention.
