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
# # The backward pass by hand
#
# **Teaches** the gradient of every layer of a transformer, by derivation; at the end a model is
# trained with gradients written by hand. **Needs** notebooks [1](01_attention.ipynb) and
# [3](03_encoder_block.ipynb), and partial derivatives; no data.
#
# `jax.grad` computes every gradient in this library. Here they are derived once: for each layer of
# a transformer an equation, a function, and a comparison with `jax.vjp` of the library's forward
# function. At the end these functions compute the gradient of a complete model.

# %%
import math
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite import functional as F
from tlite.baselines import gradient_descent
from tlite.models import BlockInputs, BlockParameters, TransformerConfig, block

# %% [markdown]
# ## The rule
#
# A layer computes $Y = f(X)$ in the computation of a number $L$. Write $dY$ for the array of the
# $\partial L / \partial Y_j$, of the shape of $Y$. From $dY$ the chain rule gives
#
# $$dX_i = \sum_j dY_j \, \frac{\partial Y_j}{\partial X_i}.$$
#
# That is all: each layer turns $dY$ into $dX$ and does not depend on $L$. The Jacobian
# $J_{ji} = \partial Y_j / \partial X_i$ is never written out, only its product $dX = J^\top dY$. If
# $X$ is used twice, its $dX$ is the sum of both.
#
# Every function below takes `(saved, gradient)`: values of the forward pass, and $dY$. A gradient
# with respect to parameters is returned in a tuple like that of the parameters. `agree` compares
# two trees of gradients, number by number. `jax.jit` changes no equation: it compiles a function
# once.

# %%
generator = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(generator.standard_normal(shape), jnp.float32)


def agree(by_hand, by_jax):
    """Every number is the same up to 1e-5, of itself or absolute; prints the largest difference."""
    near = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(near, by_hand, by_jax)
    apart = jax.tree.map(lambda x, y: np.abs(np.subtract(x, y)).max(), by_hand, by_jax)
    arrays = jax.tree.leaves(apart)
    print(f"arrays of gradients: {len(arrays)}, largest difference {max(arrays):.1e}")


# %% [markdown]
# ## A product of matrices
#
# $Y = A B$, so $Y_{ij} = \sum_k A_{ik} B_{kj}$. $A_{ik}$ occurs in row $i$ of $Y$ only, each time
# beside a $B_{kj}$; $B_{kj}$ in column $j$ only, beside an $A_{ik}$:
#
# $$dA_{ik} = \sum_j dY_{ij} B_{kj}, \qquad dB_{kj} = \sum_i A_{ik} \, dY_{ij},$$
#
# that is $dA = dY B^\top$ and $dB = A^\top dY$. In a batch each product stands alone.


# %%
def matmul_backward(saved, gradient):
    a, b = saved
    return gradient @ jnp.swapaxes(b, -1, -2), jnp.swapaxes(a, -1, -2) @ gradient


a, b = normal(2, 3, 4, 5), normal(2, 3, 5, 6)
y, pull = jax.vjp(jnp.matmul, a, b)
gradient = normal(*y.shape)
agree(matmul_backward((a, b), gradient), pull(gradient))

# %% [markdown]
# ## The linear layer
#
# $Y = X W + b$. $X$ may have any number of leading axes, but there is one $W$, used by each row
# $n$ of all of them: so the rows are laid below each other, and their contributions add up.
#
# $$dX = dY\, W^\top, \qquad dW_{ij} = \sum_n X_{ni} \, dY_{nj}, \qquad db_j = \sum_n dY_{nj}.$$


# %%
@jax.jit
def linear_backward(saved, gradient):
    params, x = saved
    rows, by_row = (z.reshape(-1, z.shape[-1]) for z in (x, gradient))
    return F.LinearParameters(rows.T @ by_row, by_row.sum(0)), gradient @ params.kernel.T


def linear_parameters(inputs, outputs):
    return F.LinearParameters(normal(inputs, outputs) / math.sqrt(inputs), normal(outputs))


params, x = linear_parameters(5, 6), normal(2, 3, 4, 5)
y, pull = jax.vjp(jax.jit(F.linear), params, x)
gradient = normal(*y.shape)
agree(linear_backward((params, x), gradient), pull(gradient))

# %% [markdown]
# ## ReLU and the feed-forward layer
#
# $y_i = \max(x_i, 0)$ has slope 1 above 0 and 0 below: $dx_i = dy_i\,[y_i > 0]$. At 0 there is no
# slope; like JAX we take 0. We store the output, which the next layer needs as its input.
#
# $\mathrm{relu}(X W_1 + b_1) W_2 + b_2$ is three functions one after the other; the backward
# pass calls theirs in the opposite order.


# %%
def relu_backward(y, gradient):
    return jnp.where(y > 0, gradient, 0)


@jax.jit
def feed_forward_backward(saved, gradient):
    params, x, hidden = saved
    output, gradient = linear_backward((params.output, hidden), gradient)
    first, gradient = linear_backward((params.hidden, x), relu_backward(hidden, gradient))
    return F.FeedForwardParameters(first, output), gradient


x = normal(2, 3, 4).at[0, 0].set(0)
y, pull = jax.vjp(jax.nn.relu, x)
ones = jnp.ones_like(y)  # not 0 where x is
agree(relu_backward(y, ones), *pull(ones))

# %% [markdown]
# The library's functions pass their intermediate values to `tap`, so that the forward pass can
# store those that the backward pass needs.


# %%
def with_captured(forward):
    """Return `forward` with its tapped values by name as a second result."""

    def both(*inputs):
        captured = {}
        return forward(*inputs, tap=captured.setdefault), captured

    return jax.jit(both)


params = F.FeedForwardParameters(linear_parameters(5, 9), linear_parameters(9, 5))
x = normal(2, 3, 4, 5)
y, pull, captured = jax.vjp(with_captured(F.feed_forward), params, x, has_aux=True)
gradient = normal(*y.shape)
agree(feed_forward_backward((params, x, captured["hidden"]), gradient), pull(gradient))

# %% [markdown]
# ## Softmax
#
# $w_s = e^{z_s} / \sum_r e^{z_r}$. Raising $z_s$ raises $e^{z_s}$ and with it the sum, so that
# $\partial w_r / \partial z_s = w_r (\delta_{rs} - w_s)$. Put into the chain rule:
#
# $$dz_s = \sum_r dw_r \, w_r (\delta_{rs} - w_s) =
# w_s \Big( dw_s - \sum_r w_r \, dw_r \Big).$$
#
# In words: from each $dw$ subtract their average under the weights. A number added to every score
# changes nothing, so $\sum_s dz_s = 0$. Where a mask says no, $w_s = 0$, and therefore $dz_s = 0$;
# in a row that sees nothing everything is 0. No case is special.


# %%
@jax.jit
def softmax_backward(weights, gradient):
    return weights * (gradient - (weights * gradient).sum(-1, keepdims=True))


scores, mask = normal(2, 3, 4, 6), generator.random((4, 6)) < 0.6
mask[0] = False
weights, pull = jax.vjp(jax.jit(lambda z: jax.nn.softmax(z, where=mask)), scores)
gradient = normal(*weights.shape)
by_scores = softmax_backward(weights, gradient)
agree(by_scores, *pull(gradient))
print(f"sum over a row: {jnp.abs(by_scores.sum(-1)).max():.0e} at most")
print("largest gradient where the mask is False:", jnp.abs(by_scores[..., ~mask]).max())

# %% [markdown]
# ## Scaled dot-product attention
#
# $S = Q K^\top / \sqrt{d_k}$, $W = \mathrm{softmax}(S)$, $O = W V$: a product, a softmax, a
# product. From the back:
#
# $$dW = dO\, V^\top, \quad dV = W^\top dO, \qquad
# dS = W \odot \big(dW - \mathrm{rowsum}(W \odot dW)\big), \qquad
# dQ = \frac{dS\, K}{\sqrt{d_k}}, \quad dK = \frac{dS^\top Q}{\sqrt{d_k}}.$$


# %%
@jax.jit
def attention_backward(saved, gradient):
    query, key, value, weights = saved
    by_weights, by_value = matmul_backward((weights, value), gradient)
    by_scores = softmax_backward(weights, by_weights) / math.sqrt(query.shape[-1])
    by_query, by_key_transposed = matmul_backward((query, jnp.swapaxes(key, -1, -2)), by_scores)
    return by_query, jnp.swapaxes(by_key_transposed, -1, -2), by_value


query, key, value = normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 7)
attention = jax.jit(lambda *qkv: F.scaled_dot_product_attention(*qkv, mask))
output, pull, weights = jax.vjp(attention, query, key, value, has_aux=True)
gradient = normal(*output.shape)
agree(attention_backward((query, key, value, weights), gradient), pull(gradient))

# %% [markdown]
# The sum over a row of $W \odot dW$ needs no $W$. By the definitions of $dW$ and $O$
#
# $$\sum_s W_{ts}\, dW_{ts} = \sum_s W_{ts} \sum_i dO_{ti} V_{si} = \sum_i dO_{ti}\, O_{ti}.$$
#
# The library's attention in mixed precision, `tlite/functional/kernels/mixed_attention.py`, uses
# that: $O$ is as wide as a head, $W$ as wide as the text is long.

# %%
by_weights = gradient @ jnp.swapaxes(value, -1, -2)
agree((gradient * output).sum(-1), (weights * by_weights).sum(-1))

# %% [markdown]
# ## Many heads
#
# Forward: three linear layers, `split_heads`, attention for each head, `merge_heads`, a linear
# layer. Splitting and merging only rename the indices, so backward each is replaced by the other.


# %%
@jax.jit
def multi_head_attention_backward(saved, gradient):
    params, inputs, captured = saved
    merged = F.merge_heads(captured["heads"])
    output, gradient = linear_backward((params.output, merged), gradient)
    by_heads = F.split_heads(gradient, num_heads=captured["heads"].shape[-3])
    projected = attention_backward(
        [captured[n] for n in ("query", "key", "value", "weights")], by_heads
    )
    layers, by_inputs = [], []
    for layer, x, by_projected in zip(params[:3], inputs, projected, strict=True):
        by_layer, by_x = linear_backward((layer, x), F.merge_heads(by_projected))
        layers.append(by_layer)
        by_inputs.append(by_x)
    return F.AttentionParameters(*layers, output), *by_inputs


def attention_parameters(width):
    return F.AttentionParameters(*(linear_parameters(width, width) for _ in range(4)))


def attend(params, *inputs, **options):
    return F.multi_head_attention(params, *inputs, mask, num_heads=2, **options)[0]


params, inputs = attention_parameters(8), [normal(2, 4, 8), *normal(2, 2, 6, 8)]
y, pull, captured = jax.vjp(with_captured(attend), params, *inputs, has_aux=True)
gradient = normal(*y.shape)
by_hand = multi_head_attention_backward((params, inputs, captured), gradient)
agree(by_hand, pull(gradient))

# %% [markdown]
# One of these gradients is always 0: a bias on the keys adds the same $q_t \cdot b$ to every score
# of a row, and softmax doesn't see that.

# %%
linears = {name: g for name, g in by_hand[0]._asdict().items() if g is not None}
sizes = {name: float(jnp.abs(g.bias).max()) for name, g in linears.items()}
print("largest gradient of the bias:", {name: f"{size:.1e}" for name, size in sizes.items()})

# %% [markdown]
# ## Layer norm
#
# For one row of $D$ numbers with the mean $\mu$ and
# $s = \sqrt{\frac1D \sum_i (x_i - \mu)^2 + \epsilon}$: $\hat x_i = (x_i - \mu) / s$ and
# $y_i = \gamma_i \hat x_i + \beta_i$. The last step is quick, with a sum over all rows $n$ as in
# the linear layer:
#
# $$d\gamma_i = \sum_n dy_{ni}\, \hat x_{ni}, \qquad d\beta_i = \sum_n dy_{ni}, \qquad
# d\hat x_i = \gamma_i \, dy_i.$$
#
# For the rest, $\partial \mu / \partial x_j = 1/D$ and
# $\partial s / \partial x_j = (x_j - \mu) / (D s) = \hat x_j / D$ (the part through $\mu$ is 0,
# since the $x_i - \mu$ sum to 0). So
#
# $$\frac{\partial \hat x_i}{\partial x_j} =
# \frac1s \Big( \delta_{ij} - \frac1D - \frac{\hat x_i \hat x_j}{D} \Big), \qquad
# dx_j = \frac1s \Big( d\hat x_j - \frac1D \sum_i d\hat x_i -
# \hat x_j \, \frac1D \sum_i d\hat x_i \, \hat x_i \Big).$$
#
# What would only shift the row is taken out of $dx$, and so is, but for $\epsilon$, what would only
# stretch it.


# %%
@jax.jit
def layer_norm_backward(saved, gradient, eps=1e-5):
    params, x = saved
    deviation = jnp.sqrt(x.var(-1, keepdims=True) + eps)
    normalised = (x - x.mean(-1, keepdims=True)) / deviation
    leading = tuple(range(x.ndim - 1))
    by_scale, by_bias = (normalised * gradient).sum(leading), gradient.sum(leading)

    gradient = params.scale * gradient
    stretch = (gradient * normalised).mean(-1, keepdims=True)
    by_x = (gradient - gradient.mean(-1, keepdims=True) - normalised * stretch) / deviation
    return F.NormParameters(by_scale, by_bias), by_x


params, x = F.NormParameters(normal(8), normal(8)), 3 * normal(2, 3, 8) + 1
y, pull = jax.vjp(jax.jit(F.layer_norm), params, x)
gradient = normal(*y.shape)
by_params, by_x = layer_norm_backward((params, x), gradient)
agree((by_params, by_x), pull(gradient))
stretching = (by_x * (x - x.mean(-1, keepdims=True))).sum(-1)
print(f"shift {jnp.abs(by_x.sum(-1)).max():.0e}, stretch {jnp.abs(stretching).max():.0e}")

# %% [markdown]
# ## Embedding
#
# Forward, each place $n$ gathers the row of its token, $Y_{ni} = E_{c_n i}$. Row $v$ is used
# wherever $c_n = v$; backward, each $dY_n$ is added to the row it came from, a scatter-add:
#
# $$dE_{vi} = \sum_n [c_n = v] \, dY_{ni}.$$


# %%
def embed_backward(saved, gradient):
    table, tokens = saved
    return jnp.zeros_like(table).at[tokens].add(gradient)


table, tokens = normal(7, 5), jnp.array([[3, 1, 3, 0], [3, 6, 6, 1]])
y, pull = jax.vjp(lambda table: F.embed(table, tokens), table)
gradient = normal(*y.shape)
by_table = embed_backward((table, tokens), gradient)
agree(by_table, *pull(gradient))
agree(by_table[3], gradient[0, 0] + gradient[0, 2] + gradient[1, 0])
print(
    "largest gradient of tokens that do not occur:", jnp.abs(by_table[jnp.array([2, 4, 5])]).max()
)

# %% [markdown]
# ## Cross-entropy
#
# $\ell = -\ln \mathrm{softmax}(z)_c = \ln \sum_r e^{z_r} - z_c$, with $c$ the right token. The
# derivative of the first term is the softmax itself:
#
# $$dz_v = d\ell \, (p_v - [v = c]), \qquad p = \mathrm{softmax}(z).$$
#
# What is likely goes down, what is right goes up, by as much as the probability is off. Taking
# softmax and logarithm together is what makes it so short.


# %%
@jax.jit
def cross_entropy_backward(saved, gradient):
    logits, targets = saved
    off = jax.nn.softmax(logits) - jax.nn.one_hot(targets, logits.shape[-1])
    return gradient[..., None] * off


logits, targets = normal(2, 4, 7), tokens
losses, pull = jax.vjp(jax.jit(lambda z: F.token_cross_entropy(z, targets)), logits)
gradient = normal(*losses.shape)
agree(cross_entropy_backward((logits, targets), gradient), *pull(gradient))

# %% [markdown]
# The two steps apart give the same: $-\ln p_c$ has the slope $-1/p_c$ at $c$, which goes through
# the softmax. With $p_c$ small that divides by almost nothing and multiplies by it again.

# %%
p = jax.nn.softmax(logits)
by_p = -jax.nn.one_hot(targets, 7) / p * gradient[..., None]
agree(softmax_backward(p, by_p), cross_entropy_backward((logits, targets), gradient))

# %% [markdown]
# ## A block
#
# $a = x + f_1(n_1(x))$ and $y = a + f_2(n_2(a))$, where $f_1$ is attention, $f_2$ the feed-forward
# layer, and $n_1$, $n_2$ are norms. Each residual uses its input twice, directly and through the
# layer, so two gradients are added. With $J^\top$ for what the functions above do,
#
# $$da = dy + J_{n_2}^\top J_{f_2}^\top \, dy, \qquad dx = da + J_{n_1}^\top J_{f_1}^\top \, da.$$
#
# The direct part passes through unchanged, however many blocks there are. In self-attention query,
# key and value are one array, so that three gradients are added.


# %%
@jax.jit
def block_backward(saved, gradient):
    params, x, captured = saved
    middle, hidden = captured["attention_residual"], captured["feed_forward.hidden"]
    fed = F.layer_norm(params.feed_forward_norm, middle)
    feed_forward, by_fed = feed_forward_backward((params.feed_forward, fed, hidden), gradient)
    second, by_middle = layer_norm_backward((params.feed_forward_norm, middle), by_fed)
    gradient = gradient + by_middle

    attended = [F.layer_norm(params.attention_norm, x)] * 3
    inside = {name.removeprefix("attention."): value for name, value in captured.items()}
    attention, *by_attended = multi_head_attention_backward(
        (params.attention, attended, inside), gradient
    )
    first, by_x = layer_norm_backward((params.attention_norm, x), sum(by_attended))
    return BlockParameters(attention, first, feed_forward, second), gradient + by_x


width = 8
config = TransformerConfig(width=width, num_heads=2, block="pre_norm")


def causal_block(params, x, **options):
    inputs = BlockInputs(F.causal_mask(x.shape[-2]))
    return block(params, x, inputs, config=config, **options)[0]


params = BlockParameters(
    attention_parameters(width),
    F.NormParameters(normal(width), normal(width)),
    F.FeedForwardParameters(linear_parameters(width, 16), linear_parameters(16, width)),
    F.NormParameters(normal(width), normal(width)),
)
x = normal(2, 4, width)
y, pull, captured = jax.vjp(with_captured(causal_block), params, x, has_aux=True)
gradient = normal(*y.shape)
agree(block_backward((params, x, captured), gradient), pull(gradient))

# %% [markdown]
# ## A whole model
#
# A generator with one block: embedding, learned positions, block, linear layer, mean cross-entropy
# over the $N$ tokens. The first gradient is $dL/d\ell_n = 1/N$. The table of positions is added to
# every text of the batch, so its gradient is the sum over the texts.

# %%
model = {
    "embedding": normal(7, width),
    "positions": normal(4, width),
    "block": params,
    "output": linear_parameters(width, 7),
}
tokens = jnp.array([[3, 1, 4, 1], [5, 2, 6, 5]])
targets = jnp.array([[1, 4, 1, 5], [2, 6, 5, 3]])


def loss_forward(model):
    embedded = F.add_positions(model["positions"], F.embed(model["embedding"], tokens))
    out, captured = with_captured(causal_block)(model["block"], embedded)
    logits = F.linear(model["output"], out)
    total, count = F.cross_entropy(logits, targets)
    return total / count, (model, embedded, captured, out, logits)


def loss_backward(saved, gradient):
    model, embedded, captured, out, logits = saved
    gradient = jnp.full(targets.shape, gradient / targets.size)
    gradient = cross_entropy_backward((logits, targets), gradient)
    output, gradient = linear_backward((model["output"], out), gradient)
    inner, gradient = block_backward((model["block"], embedded, captured), gradient)
    embedding = embed_backward((model["embedding"], tokens), gradient)
    positions = gradient.sum(0)
    return {"embedding": embedding, "positions": positions, "block": inner, "output": output}


def loss(model):
    return loss_forward(model)[0]


value, saved = jax.jit(loss_forward)(model)
agree(jax.jit(loss_backward)(saved, 1.0), jax.jit(jax.grad(loss))(model))

# %% [markdown]
# And it trains. `jax.custom_vjp` gives a function a backward pass of your own, which `jax.grad`
# uses (as in the library's fast attention, `tlite/functional/kernels/mixed_attention.py`). Gradient
# descent takes the same course with either.

# %%
loss_by_hand = jax.custom_vjp(loss)
loss_by_hand.defvjp(loss_forward, lambda saved, gradient: (loss_backward(saved, gradient),))
curves = {
    "by hand": gradient_descent(loss_by_hand, model, learning_rate=0.1, steps=200)[1],
    "by jax.grad": gradient_descent(loss, model, learning_rate=0.1, steps=200)[1],
}
axes = plt.subplots(figsize=(6, 3), layout="constrained")[1]
for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
    axes.plot(losses, style, label=name, linewidth=2)
    print(f"{name:>11}: loss {losses[0]:.3f} -> {losses[-1]:.4f}")
axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
axes.grid(alpha=0.3)
axes.legend()
plt.show()

# %% [markdown]
# ## The table
#
# | forward, in `tlite.functional` | equation | here |
# | --- | --- | --- |
# | the two products of attention | $dA = dY B^\top$, $dB = A^\top dY$ | `matmul_backward` |
# | `linear` | $dX = dY W^\top$, $dW = X^\top dY$, $db = \sum_n dY_n$ | `linear_backward` |
# | `feed_forward`: its ReLU | $dx = dy\,[y > 0]$ | `relu_backward` |
# | `feed_forward` | linear, ReLU, linear; the last one first | `feed_forward_backward` |
# | the softmax of attention | $dz = w \odot (dw - \sum_r w_r dw_r)$ | `softmax_backward` |
# | `scaled_dot_product_attention` | $dV$, $dQ$, $dK$ | `attention_backward` |
# | `multi_head_attention` | split and merge change places | `multi_head_attention_backward` |
# | `layer_norm` | $dx$, $d\gamma$, $d\beta$ | `layer_norm_backward` |
# | `embed` | $dE_v = \sum_n [c_n = v]\, dY_n$ | `embed_backward` |
# | `token_cross_entropy` | $dz_v = d\ell\,(p_v - [v = c])$ | `cross_entropy_backward` |
# | `block`, in `tlite.models` | $da$, then $dx$ | `block_backward` |

# %% [markdown]
# ## Exercise
#
# RMS norm is $y_i = \gamma_i x_i / s$ with $s = \sqrt{\frac1D \sum_i x_i^2 + \epsilon}$. Change
# `layer_norm_backward` into its backward pass. Which term of $dx_j$ falls away? `agree`
# with `jax.vjp(F.rms_norm, params, x)` shows whether you are right.
#
# ## Solution
#
# There is no mean, so the term $-\frac1D \sum_i d\hat x_i$ falls away, and with it $d\beta$. With
# $\hat x = x / s$ and $\partial s / \partial x_j = x_j / (D s) = \hat x_j / D$,
#
# $$dx_j = \frac1s \Big( d\hat x_j - \hat x_j \, \frac1D \sum_i d\hat x_i \, \hat x_i \Big).$$


# %%
@jax.jit
def rms_norm_backward(saved, gradient, eps=1e-5):
    params, x = saved
    size = jnp.sqrt((x * x).mean(-1, keepdims=True) + eps)
    normalised = x / size
    by_scale = (normalised * gradient).sum(tuple(range(x.ndim - 1)))
    gradient = params.scale * gradient
    stretch = (gradient * normalised).mean(-1, keepdims=True)
    return F.NormParameters(by_scale, None), (gradient - normalised * stretch) / size


params, x = F.NormParameters(normal(8), None), 3 * normal(2, 3, 8) + 1
y, pull = jax.vjp(jax.jit(F.rms_norm), params, x)
gradient = normal(*y.shape)
agree(rms_norm_backward((params, x), gradient), pull(gradient))

# %% [markdown]
# Next: [a generator](05_generator.ipynb), trained and writing.
