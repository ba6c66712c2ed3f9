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
# # From logistic regression to the classifier
#
# At the end you know what a transformer adds to a bag of words, and have seen both learn from the
# same reviews.
#
# Logistic regression is one layer and a sigmoid; everything that a transformer's training needs is
# there already: parameters in a tree, a loss, its gradient, a step against it.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tlite.baselines import binary_cross_entropy, gradient_descent, logistic_regression

# %% [markdown]
# ## Four random numbers: is their sum below 1?
#
# $p(x) = \sigma(x w + b)$. The parameters are a dictionary; there is no hidden state.

# %%
x = jax.random.normal(jax.random.key(0), (1000, 4))
y = (x.sum(-1) < 1).astype(int)
params = {"weights": jnp.zeros(4), "bias": jnp.zeros(())}


def loss(params):
    return binary_cross_entropy(logistic_regression(params, x), y)


# %% [markdown]
# `jax.grad` returns a tree of the same shape as the parameters. By hand it is
# $\partial L / \partial w = \frac1N \sum_n (p_n - y_n) x_n$:

# %%
gradient = jax.grad(loss)(params)
by_hand = (logistic_regression(params, x) - y) @ x / len(x)
print("by autodiff", gradient["weights"], "by hand", by_hand)

# %%
params, losses = gradient_descent(loss, params, learning_rate=1.0, steps=1000)
right = (logistic_regression(params, x) > 0.5) == y
print(f"{y.mean():.2f} of the vectors are of class 1")
print(f"loss {losses[0]:.3f} -> {loss(params):.3f}, accuracy {right.mean():.3f}")
print(f"weights {params['weights']}, bias {params['bias']:.2f}: the plane sum(x) = 1, found")

# %%
axes = plt.subplots(figsize=(6, 3), layout="constrained")[1]
axes.plot(np.arange(1, len(losses) + 1), losses)
axes.set(xlabel="step", ylabel="loss (nats)", xscale="log")
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## A bag of words
#
# The same with a vector that has a 1 for every word that occurs in a text, scaled to length 1.
# `bag_of_words` never writes that vector out: it adds up the rows of the words. The reviews are
# SYNTHETIC: a grammar of this project decides their stars ("not very good" is worse than "good").

# %%
from tlite.data import SyntheticReviews  # noqa: E402
from tlite.models import ClassifierConfig, LogisticConfig, Pool  # noqa: E402
from tlite.text import IndexTokenizer, select_vocabulary  # noqa: E402
from tlite.training import Trainer, TrainingConfig, classifier_task  # noqa: E402

reviews = SyntheticReviews(reviews=3000)
training, held_out = reviews.examples("training"), reviews.examples("validation")
tokenizer = IndexTokenizer(select_vocabulary(e.text for e in training))
tokens = {"training": tokenizer.encode_texts((e.text for e in training), 40)}
tokens["validation"] = tokenizer.encode_texts((e.text for e in held_out), 40)
labels = {"training": np.array([e.label for e in training])}
labels["validation"] = np.array([e.label for e in held_out])
print(training[0])


def train(config, steps, learning_rate):
    """The trained model, and its accuracy on reviews it has not seen."""
    settings = TrainingConfig(steps=steps, learning_rate=learning_rate, schedule="cosine")
    data = jnp.asarray(tokens["training"]), jnp.asarray(labels["training"])
    trainer = Trainer(classifier_task(config), settings, data)
    state, _ = trainer.train(trainer.init(), 0, steps)
    model = trainer.models(state.parameters)[0]
    predicted = jax.jit(model)(jnp.asarray(tokens["validation"])).argmax(-1)
    return model, float((predicted == labels["validation"]).mean())


sizes = {"vocabulary_size": len(tokenizer), "num_classes": 5, "context": 40}
logistic, without_order = train(LogisticConfig(**sizes), 800, 1e-2)
print(f"bag of words: {without_order:.3f} of the reviews right")

# %% [markdown]
# What it has learned can be read off: the weight of each word for 5 stars. But "not" has one
# weight, whatever it negates.

# %%
weights = logistic.weights[...][:, 4]
order = np.argsort(-weights)
for index in [*order[:5], *order[-5:], *tokenizer.encode("not")]:
    print(f"{tokenizer.decode(index):>12} {weights[index]:+.2f}")

# %% [markdown]
# ## The classifier
#
# Attention lets a word change what its neighbour means.

# %%
config = ClassifierConfig(
    **sizes, num_blocks=2, positions="learned", pool=Pool("mean"), block="pre_norm"
)
classifier, accuracy = train(config, 800, 3e-3)
print(f"transformer:  {accuracy:.3f} of the reviews right")
assert accuracy > without_order + 0.1

# %%
for text in ("The sound is very good.", "The sound is not very good."):
    probabilities = jax.nn.softmax(classifier(jnp.asarray(tokenizer.encode_texts([text], 40))[0]))
    print(f"{text:30}", np.round(np.asarray(probabilities), 2))

# %% [markdown]
# ## Exercise
#
# Give the classifier no positions: `positions="none"` in its config. Before you run it: will it
# read "not very good" and "very not good" alike? Will it fall back to the bag of words, or can
# attention without an order still tell that "not" and "good" are both there? The accuracy answers.
#
# Next: [the translator](07_translator.ipynb), which reads one text and writes another.
