"""`tlite inspect` of a run: what it is, what its heads look at, and every picture, on one page."""

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
from tlite.decoding import generate
from tlite.errors import UserError
from tlite.inspection.draw import MARKS, SHOWN, draw_data, draw_embedding, draw_vocabulary
from tlite.inspection.draw_models import (
    COLOURED,
    draw_classifier,
    draw_generator,
    draw_seq2seq,
    tell_size,
)
from tlite.inspection.gallery import PAGE, Gallery, new_gallery
from tlite.inspection.page import bars, sample
from tlite.inspection.pieces import mark_of
from tlite.models import TransformerClassifier
from tlite.pretrained import PretrainedTokenizer
from tlite.recipes.classifier import ClassifierRecipe, encode_texts
from tlite.recipes.generator import GeneratorRecipe
from tlite.recipes.pairs import encode_sources
from tlite.recipes.recipe import Recipe
from tlite.recipes.tokens import encode, end_ids, prompt_tokens
from tlite.recipes.translator import TranslatorRecipe
from tlite.text import CharTokenizer, NgramTokenizer
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import iterate_metrics, read_metrics, split_member
from tlite.training.named import by_name, model_maker

EXAMPLES = 50_000  # texts that the baseline is fitted to
WINDOWS = 1000  # of the validation part, for one with many letters
LONGEST = 320  # tokens of a window whose losses are shown
SAMPLED = 300  # tokens of a sample
SCORES = {  # what a validation finds, and how it is told
    "loss": "loss {:.4f} nats",
    "accuracy": "accuracy {:.1%}",
    "bleu": "BLEU {:.1f}",
    "exact_match": "exact matches {:.1%}",
    "bits_per_byte": "{:.4f} bits per byte",
}


def inspect_run(
    run: Recipe, checkpoint: str = "best", member: int = 0, text: str | None = None
) -> Path:
    """Draw all pictures of a run into its folder `inspection`, in place of what was there.

    Returns the page's path.
    """
    members, step = run.restore(checkpoint)
    model = run.trainer.models(members.parameters)[member]
    check_text(text)
    kind, draw = {
        GeneratorRecipe: (
            "generator",
            partial(draw_generator_run, parameters=members.parameters, member=member),
        ),
        ClassifierRecipe: ("classifier", draw_classifier_run),
        TranslatorRecipe: ("translator", draw_translator_run),
    }[type(run)]
    folder, training = run.run.folder / "inspection", run.experiment.training
    several = f"{training.num_members} models side by side"
    unit = "tokens" if kind == "translator" else "examples"
    with new_gallery(folder, f"{run.experiment.name}: a {kind}") as gallery:
        which = f"step {step:,}" if checkpoint == str(step) else f"{checkpoint} step {step:,}"
        one = f"member {member}" if training.num_members > 1 else ""
        gallery.tell(
            "Experiment", f"{run.experiment.name}, a {kind}", which, one, str(run.run.folder)
        )
        tell_size(gallery, model)
        gallery.tell(
            "Training",
            f"{training.steps:,} steps",
            f"batches of {training.batch_size:,} {unit}",
            several if one else f"seed {training.seed}",
            f"{training.precision} precision",
        )
        gallery.tell("Score", score(run, checkpoint, step, member))
        draw(run, model, gallery, text)
        draw_training(run, gallery)
    return folder / PAGE


def score(run: Recipe, checkpoint: str, step: int, member: int) -> str:
    """What the validation of a checkpoint has found."""
    if checkpoint == "average":
        return "none is known of averaged parameters: tlite evaluate RUN --checkpoint average"
    lines = [*iterate_metrics(run.run.metrics, "validation")]
    found = next((split_member(line, member) for line in lines if line["step"] == step), {})
    told = [form.format(found[n]) for n, form in SCORES.items() if found.get(n) is not None]
    with Checkpoints(run.run.checkpoints) as checkpoints:
        best = checkpoints.best_step() == step
    by = run.experiment.training.select.replace("_", " ")
    least = f", the best of {len(lines)} validations by {by}" if best else ""
    return f"validation {', '.join(told)}{least}" if told else ""


def check_text(text: str | None) -> None:
    """Raises a `UserError` for a text with nothing in it."""
    if text is not None and not text.strip():
        raise UserError("the text to look at is empty")


def draw_training(run: Recipe, gallery: Gallery) -> None:
    """The learning rate, and what training and validations have found, by step."""
    gallery.draw(
        "Training",
        "schedule",
        "The learning rate of every update.",
        lambda: I.plot_schedule(run.experiment.training),
    )
    curves = read_metrics(run.run.metrics, most=1000)
    for name in run.measured:
        if any(line.get(name) is not None for line in curves):
            gallery.draw(
                "Training",
                f"curve-{name}",
                f"The {name.replace('_', ' ')} by step, of training batches (smoothed) and of "
                "the validation part; a band is one standard deviation over members.",
                lambda name=name: I.plot_curves(curves, name),
            )


def draw_generator_run(
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
    prompt = prompt_tokens(tokenizer, run.experiment.prompt)
    tell_continued(gallery, model, tokenizer, prompt, end_ids(tokenizer))
    with Checkpoints(run.run.checkpoints) as checkpoints:
        steps = checkpoints.steps()
    restored = ((s, run.restore(str(s))[0].parameters) for s in steps)
    by_step = ((s, run.trainer.models(found)[member]) for s, found in restored)
    draw_generator(gallery, model, tokenizer, tokens, by_step if len(steps) > 1 else ())
    draw_validation(run, model, gallery, parameters)

    lines = [line for line in run.text.split("\n") if line]
    passages = [passage for passage in re.split(r"\n\s*\n", run.text) if passage.strip()]
    draw_data(gallery, run.text, {"line": map(len, lines), "passage": map(len, passages)})


def tell_continued(
    gallery: Gallery, model, tokenizer, prompt: np.ndarray, ends: list[int], number: int = SAMPLED
) -> None:
    """A sample of what a generator writes after a prompt, up to an end."""
    settings = {"num_tokens": number, "key": jax.random.key(0)}
    slide = max(model.config.context // 2, 1)
    written = np.asarray(generate(model, jnp.asarray(prompt), slide=slide, **settings))
    stop = np.flatnonzero(np.isin(written, ends))
    written = written[: stop[0]] if len(stop) else written
    gallery.tell_html("Sample", sample(tokenizer.decode(np.r_[prompt, written])))


def draw_validation(run: GeneratorRecipe, model, gallery: Gallery, parameters) -> None:
    """The losses on validation data, by position and of single tokens."""
    sums = run.trainer.evaluate(parameters, run.validation())
    gallery.draw(
        "Predictions",
        "loss-by-position",
        "The validation loss by how many tokens the model has seen: where the line falls, a "
        "longer past helps.",
        lambda: I.plot_loss_by_position(sums["loss"] / sums["count"]),
    )
    windows = every_window(run.validation_tokens, min(model.config.context, LONGEST))
    inputs, targets, weights = (a[:6] for a in windows)
    of_windows = jax.jit(lambda model, x, y: F.token_cross_entropy(model(x), y))
    losses = np.asarray(of_windows(model, inputs, targets))[weights > 0]
    marks = [mark_of(run.tokenizer, token) for token in targets[weights > 0]]
    told = f"The beginning of the validation part: {COLOURED}"
    gallery.add("Predictions", I.coloured_by_loss(marks, losses), told)


def draw_classifier_run(run: ClassifierRecipe, model, gallery: Gallery, text: str | None) -> None:
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

    def baseline(predicted: int) -> dict[str, np.ndarray]:
        try:
            fitted = tfidf_logistic_regression(texts, [example.label for example in examples])
        except ValueError:  # no word is in two texts, say
            return {}
        whole = [piece.strip("\u2581# ") for piece in pieces]
        name = experiment.data.classes[predicted]
        weights = word_weights(fitted, whole, predicted)
        return {f"TF-IDF + logistic regression,\nweight for {name!r}": weights}

    given = tokens[:length], pieces, experiment.data.classes
    found = draw_classifier(gallery, model, *given, baseline)
    gallery.tell_html("Sample", sample(chosen) + bars(found))
    draw_vocabulary(gallery, model.embedding.table, tokenizer)
    draw_data(gallery, "\n".join(texts), {"text": (len(t.split()) for t in texts)}, "word")


def word_weights(pipeline, words: list[str], label: int) -> np.ndarray:
    """The weights of single words in a fitted TF-IDF and logistic regression; 0 for others."""
    vectorizer, regression = (step for _, step in pipeline.steps)
    rows = regression.coef_
    row = rows[label] if len(rows) > 1 else rows[0] * (1 if label else -1)
    known = vectorizer.vocabulary_
    return np.array([row[known[word]] if word in known else 0.0 for word in words])


def draw_translator_run(run: TranslatorRecipe, model, gallery: Gallery, text: str | None) -> None:
    tokenizer, first = run.tokenizer, run.data.validation[0]
    chosen = text or first.source
    (source,) = encode_sources(run.experiment, tokenizer, [chosen])
    target = run.best_target(model, source)
    right = "" if text else f"\nreference: {run.references([first])[0]}"
    written = f"source: {chosen}\nwritten: {tokenizer.decode(target[1:])}{right}"
    gallery.tell_html("Sample", sample(written))
    marks = tokenizer.source.piece_of, tokenizer.target.piece_of
    draw_seq2seq(gallery, model, source, target, marks)
    names = [tokenizer.source.piece_of(i) for i in range(len(tokenizer.source))]
    words = [i for i, name in enumerate(names) if name[0] == "\u2581" and len(name) > 3]
    shown = np.array(words if len(words) >= MARKS else range(len(names)))[:MARKS]
    draw_embedding(gallery, model.encoder.embedding.table[shown], [names[i] for i in shown])
    if model.config.embeddings == "separate":
        names = [tokenizer.target.piece_of(i) for i in range(len(tokenizer.target))][:MARKS]
        table, told = model.decoder.embedding.table, "The embeddings of the target's pieces"
        draw_embedding(gallery, table, names, "target-embedding", told)
    sides = {
        f"{side} sentence": [len(getattr(pair, side).split()) for pair in run.data.training]
        for side in ("source", "target")
    }
    draw_data(gallery, "\n".join(p.source for p in run.data.training), sides, "word")


def transformer_alone(model: TransformerClassifier) -> TransformerClassifier:
    """The same model without a linear model of n-grams beside it."""
    config = dataclasses.replace(model.config, word_ngram_rows=0, character_ngram_rows=0)
    shapes = jax.eval_shape(lambda: TransformerClassifier(config, key=jax.random.key(0)))
    arrays = by_name(model)
    return model_maker(shapes)({name: arrays[name] for name in by_name(shapes)})
