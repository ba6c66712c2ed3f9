"""Pictures of what the heads of a model do: scores, ablation, patching."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from tlite import functional as F
from tlite.inspection.gallery import Gallery
from tlite.inspection.heads import plot_heads, plot_patches, plot_scores_by_step
from tlite.inspection.tools import ablate_heads, patch_residual, repeated_tokens, score_heads

REPEATED = 64  # random tokens that are written twice, at most
KINDS = {
    "previous": "the token before the query",
    "duplicate": "earlier tokens that are the same as the query",
    "induction": "what came after those: what a model that copies needs",
}


def draw_scores(
    gallery: Gallery, model, by_step: Iterable[tuple[int, Any]] = (), sequences: int = 16
) -> None:
    """Where the heads look in random tokens written twice; with models by step, over the steps."""
    config = model.config
    half = min(config.context // 2, REPEATED)
    twice = repeated_tokens(jax.random.key(0), half, config.vocabulary_size, sequences)
    scores = jax.jit(score_heads)
    of_model = jax.device_get(scores(model, twice))
    for name, table in ((name, of_model[name]) for name in KINDS):
        gallery.draw(
            "Heads",
            f"head-{name}",
            f"How much of each head's attention goes to {KINDS[name]}, on random tokens that are "
            "written twice: 0 nothing, 1 all. The scale ends at the largest score here.",
            lambda table=table, name=name: plot_heads(table, f"{name} score", high=None),
        )
    found = {step: jax.device_get(scores(earlier, twice)) for step, earlier in by_step}
    for name in KINDS if len(found) > 1 else ():
        table = np.stack([at_step[name] for at_step in found.values()])
        gallery.draw(
            "Heads",
            f"{name}-by-step",
            f"The same {name} score at the checkpoints that the run has kept, a panel for each "
            "block: a line that rises is a head that has learned to look there.",
            lambda t=table, n=name: plot_scores_by_step([*found], t, f"{n} score"),
        )


def next_token_loss(tokens: jax.Array) -> Callable:
    """The mean loss of logits (T, V) on a text."""
    return lambda logits: F.token_cross_entropy(logits[:-1], tokens[1:]).mean()


def draw_ablation(
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
    pattern = f"{stack}.blocks.*" if stack else "blocks.*"

    @jax.jit
    def ablated(model, *inputs):
        without = ablate_heads(model, *inputs, metric=loss, pattern=pattern, layer=layer)
        whole = loss(model(*inputs))
        return whole, without - whole

    whole, change = jax.device_get(ablated(model, *inputs))
    heads = f"{layer.replace('_', '-')} head of the {stack}" if stack else "head"
    gallery.draw(
        "Heads",
        f"ablation-{stack}-{layer}" if stack else "ablation",
        f"By how much the loss on {of} ({float(whole):.2f} nats) rises when the output of one "
        f"{heads} is set to zero: red heads are needed, without blue ones it would be better.",
        lambda: plot_heads(change, "loss added (nats)", low=None, high=None),
    )


def draw_patching(
    gallery: Gallery, model, tokens: jax.Array, marks: Callable[[np.ndarray], list[str]]
) -> None:
    """Where a clean text's value restores the prediction that a changed token has spoilt."""
    if len(tokens) < 6:
        return
    middle = len(tokens) // 2
    corrupted = tokens.at[middle].set((tokens[middle] + 1) % model.config.vocabulary_size)

    @jax.jit
    def patched(model, clean, corrupted):
        def truth(logits):  # two tokens after the changed one
            return jax.nn.log_softmax(logits[middle + 1])[clean[middle + 2]]

        ends = truth(model(clean)), truth(model(corrupted))
        return *ends, patch_residual(model, clean, corrupted, truth)

    before, after, table = jax.device_get(patched(model, tokens, corrupted))
    shown = marks(np.asarray(corrupted))
    gallery.draw(
        "Heads",
        "patching",
        f"Activation patching: token {middle} of the text was changed, and the log-probability of "
        f"the next token but one went from {before:.2f} to {after:.2f}. Each cell is that value "
        "when the clean text's residual stream is put back at one block and place: where it is "
        "restored, what counts was there.",
        lambda: plot_patches(table, shown, "log-probability (nats)"),
    )
