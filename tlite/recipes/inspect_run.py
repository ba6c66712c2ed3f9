"""`tlite inspect`: every picture of a run, and one HTML page with all of them."""

import dataclasses
import re
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
from tlite.errors import UserError
from tlite.models import TransformerClassifier
from tlite.pretrained import PretrainedTokenizer
from tlite.recipes.classifier import ClassifierRecipe, encode_texts
from tlite.recipes.gallery import (
    PAGE,
    Gallery,
    look_at_corpus,
    look_at_embedding,
    look_at_other_positions,
    look_at_positions,
    new_gallery,
)
from tlite.recipes.generator import GeneratorRecipe
from tlite.recipes.inspect_model import (
    MARKS,
    SHOWN,
    look_at_vocabulary,
    look_inside_classifier,
    look_inside_generator,
    look_inside_seq2seq,
)
from tlite.recipes.pieces import mark_of
from tlite.recipes.recipe import Recipe
from tlite.recipes.tokens import encode
from tlite.recipes.translator import TranslatorRecipe, encode_sources
from tlite.text import CharTokenizer, NgramTokenizer
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import read_metrics
from tlite.training.named import by_name, model_maker

EXAMPLES = 50_000  # texts that the baseline is fitted to
WINDOWS = 1000  # of the validation part, for one with many letters
LONGEST = 320  # tokens of a window whose losses are shown


def inspect_run(
    run: Recipe, checkpoint: str = "best", member: int = 0, text: str | None = None
) -> Path:
    """Draw all pictures of a run into its folder `inspection`, in place of what was there.

    Returns the page's path.
    """
    members, step = run.restore(checkpoint)
    model = run.trainer.models(members.parameters)[member]
    check_text(text)
    folder = run.run.folder / "inspection"
    with new_gallery(folder, f"{run.run.folder}: step {step:,}") as gallery:
        draw = {
            GeneratorRecipe: partial(
                look_at_generator, parameters=members.parameters, member=member
            ),
            ClassifierRecipe: look_at_classifier,
            TranslatorRecipe: look_at_translator,
        }
        draw[type(run)](run, model, gallery, text)
        curves = read_metrics(run.run.metrics, most=1000)
        for name in run.measured:
            if any(line.get(name) is not None for line in curves):
                plot = lambda name=name: I.plot_curves(curves, name)  # noqa: E731
                gallery.draw("Training", f"curve-{name}", f"{name} by step", plot)
    return folder / PAGE


def check_text(text: str | None) -> None:
    """Raises a `UserError` for a text with nothing in it."""
    if text is not None and not text.strip():
        raise UserError("the text to look at is empty")


def look_at_generator(
    run: GeneratorRecipe, model, gallery: Gallery, text: str | None, *, parameters, member: int
) -> None:
    tokenizer, config = run.tokenizer, model.config
    length = min(SHOWN, config.context)
    if text is None:
        windows = every_window(run.validation_tokens, length)[0][:WINDOWS]
        texts = (tokenizer.decode(window).strip("\N{REPLACEMENT CHARACTER}") for window in windows)
        text = max(texts, key=lambda text: sum(map(str.isalpha, text)))
    tokens = encode(tokenizer, text)
    if len(tokens) > length:
        print(f"looking at the first {length} of {len(tokens)} tokens")
        tokens = tokens[:length]
    if isinstance(tokenizer, CharTokenizer) and (strange := tokenizer.unknown_in(text[:length])):
        raise UserError(f"the model does not know {', '.join(map(repr, strange))} in the text")
    look_at_other_positions(gallery, config)
    with Checkpoints(run.run.checkpoints) as checkpoints:
        steps = checkpoints.steps()
    restored = ((s, run.restore(str(s))[0].parameters) for s in steps)
    by_step = ((s, run.trainer.models(found)[member]) for s, found in restored)
    look_inside_generator(gallery, model, tokenizer, tokens, by_step if len(steps) > 1 else ())
    look_at_validation(run, model, gallery, parameters)

    lines = [line for line in run.text.split("\n") if line]
    passages = [passage for passage in re.split(r"\n\s*\n", run.text) if passage.strip()]
    look_at_corpus(gallery, run.text, {"line": map(len, lines), "passage": map(len, passages)})


def look_at_validation(run: GeneratorRecipe, model, gallery: Gallery, parameters) -> None:
    """The losses on validation data, by position and of single tokens."""
    sums = run.trainer.evaluate(parameters, run.validation())
    gallery.draw(
        "Predictions",
        "loss-by-position",
        "validation loss by the number of tokens seen",
        lambda: I.plot_loss_by_position(sums["loss"] / sums["count"]),
    )
    windows = every_window(run.validation_tokens, min(model.config.context, LONGEST))
    inputs, targets, weights = (a[:6] for a in windows)
    losses = F.token_cross_entropy(model(jnp.asarray(inputs)), jnp.asarray(targets))
    losses = np.asarray(losses)[weights > 0]
    coloured = [mark_of(run.tokenizer, token) for token in targets[weights > 0]]
    if isinstance(run.tokenizer, CharTokenizer):
        gallery.draw(
            "Predictions",
            "text-loss",
            "each character on a ground of its loss",
            lambda: I.plot_text_losses(coloured, losses),
        )
    gallery.add("Predictions", I.coloured_by_loss(coloured, losses))


def look_at_classifier(run: ClassifierRecipe, model, gallery: Gallery, text: str | None) -> None:
    examples = islice(run.data.training, EXAMPLES)  # streamed data may be without end
    examples = [e for e in examples if e.label is not None]
    texts = [example.text for example in examples]
    if not hasattr(model, "blocks"):
        raise UserError("a logistic regression has no attention to look at: inspect a classifier")
    chosen = text or next(iter(run.data.validation)).text
    tokenizer, experiment = run.tokenizer, run.experiment
    if experiment.sentences:
        raise UserError("inspect looks at whole texts: this run reads sentence by sentence")
    if isinstance(tokenizer, NgramTokenizer):
        print("inspect looks at the transformer alone, without the linear model of n-grams")
        model = transformer_alone(model)
    tokens = encode_texts(experiment, tokenizer, [chosen])[0, : experiment.model.context]
    length = int((tokens >= 0).sum())
    if isinstance(tokenizer, PretrainedTokenizer):
        pieces = [mark_of(tokenizer, token) for token in tokens[:length]]
    else:
        pieces = tokenizer.pieces(chosen)[:length]
    if not pieces:
        raise UserError("the text to look at has no word in it")
    look_at_positions(gallery, model)
    look_at_other_positions(gallery, model.config)
    look_at_vocabulary(gallery, model.embedding.table, tokenizer)

    def baseline(predicted: int) -> dict[str, np.ndarray]:
        try:
            fitted = tfidf_logistic_regression(texts, [example.label for example in examples])
        except ValueError:  # no word is in two texts, say
            return {}
        whole = [piece.strip("\u2581# ") for piece in pieces]
        name = experiment.data.classes[predicted]
        weights = word_weights(fitted, whole, predicted)
        return {f"TF-IDF + logistic regression,\nweight for {name!r}": weights}

    given = tokens[:length], pieces, experiment.data.classes, chosen
    look_inside_classifier(gallery, model, *given, baseline)
    look_at_corpus(gallery, "\n".join(texts), {"text": (len(t.split()) for t in texts)}, "word")


def word_weights(pipeline, words: list[str], label: int) -> np.ndarray:
    """The weights of single words in a fitted TF-IDF and logistic regression; 0 for others."""
    vectorizer, regression = (step for _, step in pipeline.steps)
    rows = regression.coef_
    row = rows[label] if len(rows) > 1 else rows[0] * (1 if label else -1)
    known = vectorizer.vocabulary_
    return np.array([row[known[word]] if word in known else 0.0 for word in words])


def look_at_translator(run: TranslatorRecipe, model, gallery: Gallery, text: str | None) -> None:
    tokenizer, config = run.tokenizer, model.config
    chosen = text or run.data.validation[0].source
    (source,) = encode_sources(run.experiment, tokenizer, [chosen])
    target = run.best_target(model, source)
    gallery.draw(
        "Training",
        "schedule",
        "learning rate",
        lambda: I.plot_schedule(run.experiment.training),
    )
    look_at_other_positions(gallery, config)
    marks = tokenizer.source.piece_of, tokenizer.target.piece_of
    look_inside_seq2seq(gallery, model, source, target, marks, chosen)
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


def transformer_alone(model: TransformerClassifier) -> TransformerClassifier:
    """The same model without a linear model of n-grams beside it."""
    config = dataclasses.replace(model.config, word_ngram_rows=0, character_ngram_rows=0)
    shapes = jax.eval_shape(lambda: TransformerClassifier(config, key=jax.random.key(0)))
    arrays = by_name(model)
    return model_maker(shapes)({name: arrays[name] for name in by_name(shapes)})
