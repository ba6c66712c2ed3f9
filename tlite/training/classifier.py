"""The task of a classifier: predict the class of each text."""

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite.models import (
    ClassifierConfig,
    Ensemble,
    LogisticConfig,
    TransformerClassifier,
    make_model,
)
from tlite.training.step import Task, in_batches, scores


def classifier_task(
    config: ClassifierConfig | LogisticConfig, label_smoothing: float = 0.0, init=None
) -> Task:
    """Train a classifier on texts and labels: (tokens (N, T), labels (N,)).

    Tokens may be (N, S, T): then each of a text's S sentences is scored alone, all are trained to
    give the text's label, and `join_sentences` makes the text's score.
    """

    def draw(data, rng, step, size):
        """The next `size` texts; every text comes once an epoch, in an order of that epoch's."""
        num_texts = data[1].shape[0]
        number = step * size + jnp.arange(size)
        place = jax.vmap(
            lambda n: F.shuffled(F.fold_in(rng, n // num_texts), n % num_texts, num_texts)
        )
        chosen = place(number)
        return jax.tree.map(lambda a: a[chosen], data)

    def loss(model, batch, keys):
        tokens, labels = batch
        logits = score(model, tokens, keys)
        if tokens.ndim == 2:
            return {
                "loss": F.cross_entropy(logits, labels, smoothing=label_smoothing),
                "accuracy": F.accuracy(logits, labels),
            }
        # Each text counts as one, however many sentences it has.
        written = (tokens >= 0).any(-1)
        weights = written / jnp.maximum(written.sum(-1, keepdims=True), 1)
        of_sentences = jnp.broadcast_to(labels[:, None], weights.shape)
        total, _ = F.cross_entropy(logits, of_sentences, weights, label_smoothing)
        count = jnp.array(labels.size, total.dtype)
        joined = join_sentences(logits, written)
        return {"loss": (total, count), "accuracy": F.accuracy(joined, labels)}

    def evaluate(model, batch):
        tokens, labels, weights = batch
        return scores(class_logits(model, tokens), labels, weights)

    return Task(init or (lambda rng: make_model(config, rng=rng)), draw, loss, evaluate)


def score(model, tokens, keys):
    """Logits in training, where the transformer stands without its linear model of n-grams."""
    if not isinstance(model, TransformerClassifier):
        return model(tokens, rng=keys)
    return model.read(tokens[..., : model.config.context], rng=keys)


def class_logits(model, tokens):
    """Logits of texts: of the text (N, T), or joined from its sentences' (N, S, T)."""
    if isinstance(model, Ensemble):  # the mean over members is taken of texts, not of sentences
        return model.mean(lambda member: class_logits(member, tokens))
    logits = model(tokens)
    return logits if tokens.ndim == 2 else join_sentences(logits, (tokens >= 0).any(-1))


def join_sentences(logits, written):
    """Two classes: log of the parabolic average of the sentences' probabilities (..., S, 2)."""
    positive = F.parabolic_average(jax.nn.softmax(logits)[..., 1], written)
    positive = jnp.clip(positive, 1e-6, 1 - 1e-6)
    return jnp.log(jnp.stack([1 - positive, positive], axis=-1))


def labelled_batches(tokens: np.ndarray, labels: np.ndarray, batch_size: int, num_shards: int):
    """Every text once: (tokens, labels, weights), each (N, B, ...); the last batch is filled up."""
    weights = np.ones(len(tokens), np.float32)
    return in_batches((tokens, labels, weights), batch_size, num_shards)
