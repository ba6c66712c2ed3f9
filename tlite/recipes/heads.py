"""Pictures of what the heads of a model do: scores, ablation, patching."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from tlite import functional as F
from tlite import inspection as I
from tlite.recipes.gallery import Gallery

REPEATED = 64  # random tokens that are written twice, at most


def look_at_scores(
    gallery: Gallery, model, by_step: Iterable[tuple[int, Any]] = (), sequences: int = 16
) -> None:
    """Where the heads look in random tokens written twice; with models by step, over the steps."""
    config = model.config
    half = min(config.context // 2, REPEATED)
    twice = I.repeated_tokens(jax.random.key(0), half, config.vocabulary_size, sequences)
    scores = jax.jit(I.score_heads)
    of_model = jax.device_get(scores(model, twice))
    for name, table in of_model.items():
        gallery.draw(
            "Heads",
            f"head-{name}",
            f"{name}-token score on random tokens written twice",
            lambda table=table, name=name: I.plot_heads(table, f"{name} score"),
        )
    found = {step: jax.device_get(scores(earlier, twice)) for step, earlier in by_step}
    for name in of_model if len(found) > 1 else ():
        table = np.stack([at_step[name] for at_step in found.values()])
        gallery.draw(
            "Heads",
            f"{name}-by-step",
            f"{name} score at the checkpoints of the run",
            lambda t=table, n=name: I.plot_scores_by_step([*found], t, f"{n} score"),
        )


def next_token_loss(tokens: jax.Array) -> Callable:
    """The mean loss of logits (T, V) on a text."""
    return lambda logits: F.token_cross_entropy(logits[:-1], tokens[1:]).mean()


def look_at_ablation(
    gallery: Gallery,
    model,
    inputs: tuple,
    loss: Callable,
    of: str = "the text",
    *,
    stack: str = "",
    layer: str = "attention",
) -> None:
    """By how much the loss rises without each head; of an encoder-decoder those of one `stack`."""
    whole = loss(model(*inputs))
    pattern = f"{stack}.blocks.*" if stack else "blocks.*"
    without = I.ablate_heads(model, *inputs, metric=loss, pattern=pattern, layer=layer)
    change = np.asarray(without - whole)
    heads = f"{layer.replace('_', '-')} head of the {stack}" if stack else "head"
    gallery.draw(
        "Heads",
        f"ablation-{stack}-{layer}" if stack else "ablation",
        f"by how much the loss on {of} ({float(whole):.2f} nats) rises without each {heads}",
        lambda: I.plot_heads(change, "loss added (nats)", low=None, high=None),
    )


def look_at_patching(
    gallery: Gallery, model, tokens: jax.Array, marks: Callable[[np.ndarray], list[str]]
) -> None:
    """Where a clean text's value restores the prediction that a changed token has spoilt."""
    if len(tokens) < 6:
        return
    middle = len(tokens) // 2
    corrupted = tokens.at[middle].set((tokens[middle] + 1) % model.config.vocabulary_size)

    def truth(logits):  # two tokens after the changed one
        return jax.nn.log_softmax(logits[middle + 1])[tokens[middle + 2]]

    before, after = (float(truth(model(text))) for text in (tokens, corrupted))
    table = np.asarray(I.patch_residual(model, tokens, corrupted, truth))
    shown = marks(np.asarray(corrupted))
    gallery.draw(
        "Heads",
        "patching",
        f"activation patching: token {middle} was changed, and the log-probability of the next "
        f"but one went from {before:.2f} to {after:.2f}; where the clean text's value restores it",
        lambda: I.plot_patches(table, shown, "log-probability (nats)"),
    )
