"""`tlite inspect`: every picture of a run, and one HTML page with all of them."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite import inspection as I
from tlite.baseline import tfidf_logistic_regression
from tlite.data import every_window
from tlite.errors import UserError, disk_errors
from tlite.inspection.translation import plot_alignment
from tlite.runs.classifier import ClassifierRun, encode_texts
from tlite.runs.generator import GeneratorRun
from tlite.runs.opened import OpenedRun
from tlite.runs.pictures import (
    Gallery,
    look_at_attention,
    look_at_corpus,
    look_at_embedding,
    look_at_positions,
)
from tlite.runs.translator import TranslatorRun, encode_sources
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import read_metrics

SHOWN = 40  # tokens of a text whose attention is drawn
MARKS = 120  # tokens in a picture of an embedding
EXAMPLES = 50_000  # texts that the baseline is fitted to
WINDOWS = 1000  # of the validation part, for one with many letters


def inspect_run(
    run: OpenedRun, checkpoint: str = "best", member: int = 0, text: str | None = None
) -> Path:
    """Draw all pictures of a run into its folder `inspection`, in place of what was there.

    Returns the page's path.
    """
    members, step = run.restore(checkpoint)
    model = run.trainer.models(members.parameters)[member]
    if text is not None and not text.strip():
        raise UserError("the text to look at is empty")
    folder = run.run.folder / "inspection"
    with disk_errors(folder), _made_beside(folder) as temporary:
        gallery = Gallery(temporary)
        draw = {
            GeneratorRun: partial(look_at_generator, parameters=members.parameters, member=member),
            ClassifierRun: look_at_classifier,
            TranslatorRun: look_at_translator,
        }
        draw[type(run)](run, model, gallery, text)
        curves = read_metrics(run.run.metrics, most=1000)
        for name in run.measured:
            if any(line.get(name) is not None for line in curves):
                plot = lambda name=name: I.plot_curves(curves, name)  # noqa: E731
                gallery.draw("Training", f"curve-{name}", f"{name} by step", plot)
        page = gallery.write(f"{run.run.folder}: step {step:,}")
        if folder.is_dir():
            shutil.rmtree(folder)
        temporary.rename(folder)
    return folder / page.name


@contextlib.contextmanager
def _made_beside(folder: Path) -> Iterator[Path]:
    """A folder's place until it is whole; what a kill has left there goes."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def look_at_generator(
    run: GeneratorRun, model, gallery: Gallery, text: str | None, *, parameters, member: int
) -> None:
    tokenizer, config = run.tokenizer, model.config
    characters = list(tokenizer.characters)
    length = min(SHOWN, config.context)
    windows = every_window(run.validation_tokens, length)[0][:WINDOWS]
    with_most_letters = max(map(tokenizer.decode, windows), key=lambda w: sum(map(str.isalpha, w)))
    shown = (text or with_most_letters)[:length]
    if strange := tokenizer.unknown_in(shown):
        raise UserError(f"the model does not know {', '.join(map(repr, strange))} in the text")
    if text and len(text) > length:
        print(f"looking at the first {length} of {len(text)} characters")
    tokens = jnp.asarray(tokenizer.encode(shown))
    look_at_positions(gallery, config, model)
    marks, pattern = list(shown), "blocks.*.attention.weights"
    weights = look_at_attention(gallery, model, (tokens,), pattern, marks)
    gallery.add("Attention", I.heads_view(weights, marks, marks))
    look_at_embedding(gallery, model.embedding.table, characters)
    heads = model.blocks[0].attention.value.kernel[...].reshape(config.width, -1)
    values = np.asarray(model.embedding.table[...] @ heads)
    look_at_embedding(gallery, values, characters, "values-of-block-0")

    probabilities = jax.device_get(jax.nn.softmax(model(tokens), axis=-1))
    gallery.draw(
        "Predictions",
        "next-token",
        "the most probable next characters",
        lambda: I.plot_next_token_probabilities(probabilities[:24], marks[:24], characters),
    )
    lens = np.asarray(I.logit_lens(model, tokens))
    gallery.draw(
        "Predictions",
        "logit-lens",
        "logit lens: what would be written if the model ended here",
        lambda: I.plot_logit_lens(lens[:, :24], marks[:24], characters),
    )
    sums = run.trainer.evaluate(parameters, run.validation())
    gallery.draw(
        "Predictions",
        "loss-by-position",
        "validation loss by the number of characters seen",
        lambda: I.plot_loss_by_position(sums["loss"] / sums["count"]),
    )
    windows = every_window(run.validation_tokens, config.context)
    inputs, targets, weights = (a[:6] for a in windows)
    losses = F.token_cross_entropy(model(jnp.asarray(inputs)), jnp.asarray(targets))
    losses = np.asarray(losses)[weights > 0]
    coloured = list(tokenizer.decode(targets[weights > 0]))
    gallery.draw(
        "Predictions",
        "text-loss",
        "each character on a ground of its loss",
        lambda: I.plot_text_losses(coloured, losses),
    )
    gallery.add("Predictions", I.coloured_by_loss(coloured, losses))
    look_at_heads(run, model, gallery, tokens, member)

    lines = [line for line in run.data.split("\n") if line]
    passages = [passage for passage in re.split(r"\n\s*\n", run.data) if passage.strip()]
    look_at_corpus(gallery, run.data, {"line": map(len, lines), "passage": map(len, passages)})


def look_at_heads(run: GeneratorRun, model, gallery: Gallery, tokens, member: int) -> None:
    """Scores of the heads, now and over the run; what each is worth; where a character counts."""
    config = model.config
    half = config.context // 2
    twice = I.repeated_tokens(jax.random.key(0), half, config.vocabulary_size, 16)
    scores = jax.jit(I.score_heads)
    for name, table in scores(model, twice).items():
        gallery.draw(
            "Heads",
            f"head-{name}",
            f"{name}-token score on random characters written twice",
            lambda table=table, name=name: I.plot_heads(np.asarray(table), f"{name} score"),
        )
    steps = Checkpoints(run.run.checkpoints).steps()
    if len(steps) > 1:
        models = [run.trainer.models(run.restore(str(s))[0].parameters)[member] for s in steps]
        found = [scores(model, twice) for model in models]
        for name in found[0]:
            table = np.stack([np.asarray(at_step[name]) for at_step in found])
            gallery.draw(
                "Heads",
                f"{name}-by-step",
                f"{name} score at the checkpoints of the run",
                lambda t=table, n=name: I.plot_scores_by_step(steps, t, f"{n} score"),
            )
    if len(tokens) < 2:  # nothing to predict
        return
    expected = tokens[1:]

    def loss(logits):
        return F.token_cross_entropy(logits[:-1], expected).mean()

    whole = loss(model(tokens))
    change = np.asarray(I.ablate_heads(model, tokens, metric=loss) - whole)
    gallery.draw(
        "Heads",
        "ablation",
        f"by how much the loss on the text ({float(whole):.2f} nats) rises without a head",
        lambda: I.plot_heads(change, "loss added (nats)", low=None, high=None),
    )
    if len(tokens) < 6:
        return
    middle = len(tokens) // 2
    corrupted = tokens.at[middle].set((tokens[middle] + 1) % config.vocabulary_size)

    def truth(logits):  # two characters after the changed one
        return jax.nn.log_softmax(logits[middle + 1])[tokens[middle + 2]]

    before, after = (float(truth(model(text))) for text in (tokens, corrupted))
    table = np.asarray(I.patch_residual(model, tokens, corrupted, truth))
    shown = list(run.tokenizer.decode(np.asarray(corrupted)))
    gallery.draw(
        "Heads",
        "patching",
        f"activation patching: character {middle} was changed, and the log-probability of the next "
        f"but one went from {before:.2f} to {after:.2f}; where the clean text's value restores it",
        lambda: I.plot_patches(table, shown, "log-probability (nats)"),
    )


def look_at_classifier(run: ClassifierRun, model, gallery: Gallery, text: str | None) -> None:
    examples = islice(run.data.training, EXAMPLES)  # streamed data may be without end
    examples = [e for e in examples if e.label is not None]
    texts = [example.text for example in examples]
    if not hasattr(model, "blocks"):
        raise UserError("a logistic regression has no attention to look at: inspect a classifier")
    chosen = text or next(iter(run.data.validation)).text
    tokenizer, experiment = run.tokenizer, run.experiment
    if experiment.sentences:
        raise UserError("inspect looks at whole texts: this run reads sentence by sentence")
    tokens = encode_texts(experiment, tokenizer, [chosen])[0]
    length = int((tokens >= 0).sum())
    pieces = tokenizer.pieces(chosen)[:length]
    if not pieces:
        raise UserError("the text to look at has no word in it")
    words, tokens = pieces[:SHOWN], jnp.asarray(tokens[:length])
    look_at_positions(gallery, model.config, model)
    weights = look_at_attention(gallery, model, (tokens,), "blocks.*.attention.weights", words)
    gallery.add("Attention", I.heads_view([w[:, :SHOWN, :SHOWN] for w in weights], words, words))
    names = [tokenizer.piece_of(i) for i in range(min(MARKS, len(tokenizer)))]
    look_at_embedding(gallery, model.embedding.table[:MARKS], names)

    predicted = int(model(tokens).argmax())
    name = experiment.data.classes[predicted]
    speaks = np.asarray(I.gradient_times_input(model, tokens, predicted))
    columns = {f"gradient x input\nfor {name!r}": speaks}
    try:
        baseline = tfidf_logistic_regression(texts, [example.label for example in examples])
    except ValueError:  # no word is in two texts, say
        pass
    else:
        whole = [piece.strip("\u2581#") for piece in pieces]
        weights = word_weights(baseline, whole, predicted)
        columns[f"TF-IDF + logistic regression,\nweight for {name!r}"] = weights
    gallery.draw(
        "Saliency",
        "saliency",
        f"what speaks for {name!r} in: {chosen[:200]}",
        lambda: I.plot_saliency(pieces, columns),
    )
    look_at_corpus(gallery, "\n".join(texts), {"text": (len(t.split()) for t in texts)}, "word")


def word_weights(pipeline, words: list[str], label: int) -> np.ndarray:
    """The weights of single words in a fitted TF-IDF and logistic regression; 0 for others."""
    vectorizer, regression = (step for _, step in pipeline.steps)
    rows = regression.coef_
    row = rows[label] if len(rows) > 1 else rows[0] * (1 if label else -1)
    known = vectorizer.vocabulary_
    return np.array([row[known[word]] if word in known else 0.0 for word in words])


def look_at_translator(run: TranslatorRun, model, gallery: Gallery, text: str | None) -> None:
    tokenizer, config = run.tokenizer, model.config
    chosen = text or run.data.validation[0].source
    (source,) = encode_sources(run.experiment, tokenizer, [chosen])
    target = run.best_target(model, source)
    read = [tokenizer.source.piece_of(t) for t in source]
    fed = [tokenizer.target.piece_of(t) for t in target]
    inputs = jnp.asarray(source), jnp.asarray(target)
    gallery.draw(
        "Training",
        "schedule",
        "learning rate",
        lambda: I.plot_schedule(run.experiment.training),
    )
    look_at_positions(gallery, config, model.encoder)
    if config.positions == "learned":
        table = np.asarray(model.decoder.positions.table[...])
        plot = lambda: I.plot_positions(table)  # noqa: E731
        gallery.draw("Positions", "positions-decoder", "learned positions of the target", plot)
    for name, queries, keys in (
        ("encoder.blocks.*.attention", read, read),
        ("decoder.blocks.*.attention", fed, fed),
        ("decoder.blocks.*.cross_attention", fed, read),
    ):
        look_at_attention(gallery, model, inputs, f"{name}.weights", queries[:SHOWN], keys[:SHOWN])
    _, captured = I.run(model, *inputs, capture="decoder.blocks.*.cross_attention.weights")
    weights = [np.asarray(w)[:, :SHOWN, :SHOWN] for w in captured.values()]
    fed, read = fed[:SHOWN], read[:SHOWN]
    gallery.add("Attention", I.heads_view(weights, fed, read))
    gallery.draw(
        "Attention",
        "alignment",
        f"alignment of {chosen!r}",
        lambda: plot_alignment(np.stack([w.mean(0)[:-1] for w in weights]), read, fed[1:]),
    )
    names = [tokenizer.source.piece_of(i) for i in range(len(tokenizer.source))]
    words = [i for i, name in enumerate(names) if name[0] == "\u2581" and len(name) > 3]
    shown = np.array(words if len(words) >= MARKS else range(len(names)))[:MARKS]
    look_at_embedding(gallery, model.encoder.embedding.table[shown], [names[i] for i in shown])
    if config.embeddings == "separate":
        names = [tokenizer.target.piece_of(i) for i in range(len(tokenizer.target))][:MARKS]
        look_at_embedding(gallery, model.decoder.embedding.table, names, "target-embedding")
    sides = {
        f"{side} sentence": [len(getattr(pair, side).split()) for pair in run.data.training]
        for side in ("source", "target")
    }
    look_at_corpus(gallery, "\n".join(p.source for p in run.data.training), sides, "word")
