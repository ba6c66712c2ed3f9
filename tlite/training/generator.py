"""The task of a language model: predict each next token of a long text."""

import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite.data import draw_windows, every_window
from tlite.models import GeneratorConfig, TransformerGenerator
from tlite.training.step import Task, in_batches, scores


def generator_task(
    config: GeneratorConfig, label_smoothing: float = 0.0, *, end_id: int | None = None
) -> Task:
    """Train a `TransformerGenerator` on windows of a text (N,), or on a stream of windows.

    With `end_id` the token ends a document, and what is in one window of several documents does not
    see the others.
    """

    def run(model, tokens, **settings):
        if end_id is not None:
            settings["documents"] = F.documents(tokens, end_id)
        return model(tokens, **settings)

    def draw(tokens, rng, step, size):
        return draw_windows(F.fold_in(rng, step), tokens, config.context, size)

    def loss(model, batch, keys):
        inputs, targets = batch
        logits = run(model, inputs, rng=keys if config.dropout else None)
        return {
            "loss": F.cross_entropy(logits, targets, smoothing=label_smoothing),
            "accuracy": F.accuracy(logits, targets),
        }

    def evaluate(model, batch):
        """By window and position in the context, (B, T) each."""
        inputs, targets, weights = batch
        return scores(run(model, inputs), targets, weights)

    return Task(
        init=lambda rng: TransformerGenerator(config, rng=rng),
        draw=draw,
        loss=loss,
        evaluate=evaluate,
        perplexity=True,
        of_stream=lambda windows: (
            windows[:, :-1].astype(jnp.int32),
            windows[:, 1:].astype(jnp.int32),
        ),
    )


def validation_batches(tokens: np.ndarray, context: int, batch_size: int, num_shards: int):
    """Every token of the validation part once: (inputs, targets, weights), each (N, B, T)."""
    return in_batches(every_window(tokens, context), batch_size, num_shards)
