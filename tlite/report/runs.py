"""What is inspected: a run with its data, or a Hugging Face folder, which has a text alone."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import numpy as np

import tlite.functional as F
from tlite import pictures
from tlite.baselines.tfidf import tfidf_logistic_regression
from tlite.data import every_window
from tlite.decoding.search import start_and_end
from tlite.decoding.translate import translate
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.pretrained import Pretrained
from tlite.report import models
from tlite.report.page import PAGE, Page, new_page, sample, unused
from tlite.runs.classifier import ClassifierRun, encode_texts
from tlite.runs.generator import GeneratorRun, prompt_tokens
from tlite.runs.models import open_model
from tlite.runs.run import Run
from tlite.runs.translator import TranslatorRun, encode_sources
from tlite.text import NgramTokenizer
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import iterate_metrics, read_metrics, select_replica
from tlite.training.step import learning_rates

EXAMPLES = 50_000  # texts that the baseline is fitted to
WINDOWS = 1000  # of the validation part, for one with many letters
LONGEST = 320  # tokens of a window whose losses are shown
SCORES = {  # what a validation finds, and how it is told
    "loss": "loss {:.4f} nats",
    "accuracy": "accuracy {:.1%}",
    "bleu": "BLEU {:.1f}",
    "exact_match": "exact matches {:.1%}",
    "bits_per_byte": "{:.4f} bits per byte",
}
KINDS = {"masked": "masked model", "seq2seq": "encoder-decoder"}
SAMPLED = 40  # tokens that a pretrained generator goes on with
# Names come again, so that heads that copy have something to do.
TEXT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a ball to Mary."
)


def inspect_run(
    run: Run,
    checkpoint: str = "best",
    replica: int = 0,
    text: str | None = None,
    to: Path | None = None,
) -> Path:
    """Draw all pictures of a run into its folder `inspection`, in place of what was there.

    They go into the folder `to` where it is given. Returns the page's path.

    Raises:
        UserError: the run, or the text, is none that can be looked at, or other files are in `to`.
    """
    parameters, step = run.parameters(checkpoint)
    model = run.trainer.models(parameters)[replica]
    check_text(text)
    functions = {
        GeneratorRun: partial(draw_generator_run, parameters=parameters, replica=replica),
        ClassifierRun: draw_classifier_run,
        TranslatorRun: draw_translator_run,
    }
    folder = unused(to) if to else run.dir.path / "inspection"
    with new_page(folder, f"{run.experiment.name}: a {run.kind}") as page:
        tell_run(page, run, model, checkpoint, step, replica)
        for kind, draw in functions.items():  # none for another model of a user's kind of run
            if isinstance(run, kind) and isinstance(model, kind.model_type):
                draw(run, model, page, text)
        axes = pictures.plot_schedule(learning_rates(run.experiment.training))
        page.draw("schedule", axes)
        curves = read_metrics(run.dir.metrics, max_training_lines=1000)
        for name in run.metrics:
            if any(line.get(name) is not None for line in curves):
                axes, measure = pictures.plot_curves(curves, name), name.replace("_", " ")
                page.draw("curve-{name}", axes, name=name, measure=measure)
    return folder / PAGE


def check_text(text: str | None) -> None:
    """Raises a `UserError` for a text with nothing in it."""
    if text is not None and not text.strip():
        raise UserError("the text to look at is empty")


def tell_run(page: Page, run: Run, model, checkpoint: str, step: int, replica: int) -> None:
    """What a run is: its name and kind, which checkpoint, how large, how trained, its score."""
    name, kind, training = run.experiment.name, run.kind, run.experiment.training
    which = f"step {step:,}" if checkpoint == str(step) else f"{checkpoint} step {step:,}"
    one = f"replica {replica}" if training.seeds > 1 else ""
    page.tell("Experiment", f"{name}, a {kind}", which, one, str(run.dir.path))
    models.tell_size(page, model)
    page.tell(
        "Training",
        f"{training.steps:,} steps",
        f"batches of {training.batch_size:,} {'tokens' if kind == 'translator' else 'examples'}",
        f"{training.seeds} models side by side" if one else f"seed {training.seed}",
        f"{training.precision} precision",
    )
    page.tell("Score", score(run, checkpoint, step, replica))


def score(run: Run, checkpoint: str, step: int, replica: int) -> str:
    """What the validation of a checkpoint has found."""
    if checkpoint == "average":
        return "none is known of averaged parameters: tlite evaluate RUN --checkpoint average"
    lines = [*iterate_metrics(run.dir.metrics, "validation")]
    found = next((select_replica(line, replica) for line in lines if line["step"] == step), {})
    told = [form.format(found[n]) for n, form in SCORES.items() if found.get(n) is not None]
    with Checkpoints(run.dir.checkpoints, run.experiment.training) as checkpoints:
        best = checkpoints.best_step() == step
    by = run.experiment.training.best_metric.replace("_", " ")
    least = f", the best of {len(lines)} validations by {by}" if best else ""
    return f"validation {', '.join(told)}{least}" if told else ""


# Generators


def draw_generator_run(
    run: GeneratorRun, model, page: Page, text: str | None, *, parameters, replica: int
) -> None:
    tokenizer, length = run.tokenizer, min(models.SHOWN, model.config.context)
    if text and (strange := tokenizer.unknown_in(text[:length])):
        raise UserError(f"the model does not know {', '.join(map(repr, strange))} in the text")
    tokens = tokenizer.encode_long(text or lively_text(run, length))
    if len(tokens) > length:
        print(f"looking at the first {length} of {len(tokens)} tokens")
        tokens = tokens[:length]
    prompt = prompt_tokens(tokenizer, run.experiment.prompt)
    models.tell_continued(page, model, tokenizer, prompt, **run.sampling())
    with Checkpoints(run.dir.checkpoints, run.experiment.training) as checkpoints:
        steps = checkpoints.steps()
    by_step = ((s, run.trainer.models(run.parameters(str(s))[0])[replica]) for s in steps)
    models.draw_generator(page, model, tokenizer, tokens, by_step if len(steps) > 1 else ())
    draw_validation(run, model, page, parameters)

    lines = [line for line in run.text.split("\n") if line]
    passages = [passage for passage in re.split(r"\n\s*\n", run.text) if passage.strip()]
    lengths = {"line": map(len, lines), "passage": map(len, passages)}
    models.draw_data(page, run.text, lengths)


def lively_text(run: GeneratorRun, length: int) -> str:
    """Of the first windows of the validation part the one with the most letters."""
    windows = every_window(run.validation_tokens, length)[0][:WINDOWS]
    texts = (run.tokenizer.decode(window).strip("\N{REPLACEMENT CHARACTER}") for window in windows)
    return max(texts, key=lambda text: sum(map(str.isalpha, text)))


def draw_validation(run: GeneratorRun, model, page: Page, parameters) -> None:
    """The losses on validation data, by position and of single tokens."""
    sums = run.trainer.evaluate(parameters, run.validation())
    axes = pictures.plot_loss_by_position(sums["loss"] / sums["count"])
    page.draw("loss-by-position", axes)
    windows = every_window(run.validation_tokens, min(model.config.context, LONGEST))
    inputs, targets, weights = (a[:6] for a in windows)
    of_windows = jax.jit(lambda model, x, y: F.token_cross_entropy(model(x), y))
    losses = np.asarray(of_windows(model, inputs, targets))[weights > 0]
    marks = models.marks_of(run.tokenizer, targets[weights > 0])
    models.draw_losses(page, marks, losses, "The beginning of the validation part")


# Classifiers


def draw_classifier_run(run: ClassifierRun, model, page: Page, text: str | None) -> None:
    if not hasattr(model, "blocks"):
        raise UserError("a logistic regression has no attention to look at: inspect a classifier")
    if run.experiment.sentences:
        raise UserError("inspect looks at whole texts: this run reads sentence by sentence")
    examples = islice(run.data.train, EXAMPLES)  # streamed data may be without end
    texts, labels = zip(*((e.text, e.label) for e in examples if e.label is not None), strict=True)
    chosen, classes = text or next(iter(run.data.validation)).text, run.experiment.data.classes
    tokens, pieces = tokens_and_pieces(run, chosen)

    def baseline(predicted: int) -> Mapping[str, np.ndarray]:
        try:
            fitted = tfidf_logistic_regression(texts, labels)
        except ValueError:  # no word is in two texts, say
            return {}
        words = [piece.strip("\u2581# ") for piece in pieces]
        title = f"TF-IDF + logistic regression,\nweight for {classes[predicted]!r}"
        return {title: word_weights(fitted, words, predicted)}

    read = run.tokenizer, tokens, pieces, chosen
    models.draw_classifier(page, model, *read, classes, baseline)
    lengths = {"text": (len(t.split()) for t in texts)}
    models.draw_data(page, "\n".join(texts), lengths, "word")


def tokens_and_pieces(run: ClassifierRun, text: str) -> tuple[np.ndarray, list[str]]:
    """A text as the classifier reads it, and what its tokens stand for.

    Of a classifier with n-grams their features, and the padding before them, are among the tokens.

    Raises:
        UserError: there are none.
    """
    tokenizer, context = run.tokenizer, run.experiment.model.context
    (tokens,) = encode_texts(run.experiment, tokenizer, [text])
    length = int((tokens[:context] >= 0).sum())
    if not (pieces := tokenizer.pieces(text, context)[:length]):
        raise UserError("the text to look at has no word in it")
    return tokens if isinstance(tokenizer, NgramTokenizer) else tokens[:length], pieces


def word_weights(pipeline, words: Sequence[str], label: int) -> np.ndarray:
    """The weights of single words in a fitted TF-IDF and logistic regression; 0 for others."""
    vectorizer, regression = (step for _, step in pipeline.steps)
    rows = regression.coef_
    row = rows[label] if len(rows) > 1 else rows[0] * (1 if label else -1)
    known = vectorizer.vocabulary_
    return np.array([row[known[word]] if word in known else 0.0 for word in words])


# Translators


def draw_translator_run(run: TranslatorRun, model, page: Page, text: str | None) -> None:
    first, tokenizer = run.data.validation[0], run.tokenizer
    chosen = text or first.source
    (source,) = encode_sources(run.experiment, tokenizer, [chosen])
    target = run.best_target(model, source)
    right = "" if text else f"\nreference: {run.references([first])[0]}"
    sides = tokenizer.source, tokenizer.target
    models.draw_seq2seq(page, model, sides, source, target, chosen, right)
    lengths = {
        f"{side} sentence": [len(getattr(pair, side).split()) for pair in run.data.train]
        for side in ("source", "target")
    }
    sources = "\n".join(pair.source for pair in run.data.train)
    models.draw_data(page, sources, lengths, "word")


# Folders of Hugging Face


def inspect_pretrained(
    folder: str | Path,
    checkpoint: str = "best",
    replica: int = 0,
    text: str | None = None,
    to: Path | None = None,
) -> Path:
    """Draw what a model of transformers shows on a text, and one page with all pictures.

    They go into the folder `to`, or into one of the model's name in ./inspection: the model's own
    folder stays as it is. Returns the page's path.

    Raises:
        UserError: it can't be opened, has no tokenizer, the text is empty, or other files are where
            the pictures are to be.
    """
    check_text(text)
    name = Path(folder).resolve().name if Path(folder).is_dir() else str(folder)
    place = unused(to or Path("inspection", name.replace("/", "--")))
    model, tokenizer, told = open_model(folder, Experiment, checkpoint, replica)
    tokens = tokenizer.encode(text or TEXT)
    if not len(tokens):
        raise UserError("the text to look at is empty")
    if len(tokens) > (length := min(models.SHOWN, model.config.context)):
        print(f"looking at {length} of {len(tokens)} tokens")
        tokens = tokenizer.encode_texts([text or TEXT], length)[0]  # with the marks at its end
    kind = f"{told.family} {KINDS.get(told.kind, told.kind)}"
    with new_page(place, f"{name}: {kind}") as page:
        page.tell("Model", kind, str(folder))
        models.tell_size(page, model)
        draw_pretrained(page, model, tokenizer, tokens, told)
    return place / PAGE


def draw_pretrained(page: Page, model, tokenizer, tokens: np.ndarray, told: Pretrained) -> None:
    """What a model of its kind shows on a text alone."""
    given, marks = (page, model, tokenizer, tokens), models.marks_of(tokenizer, tokens)
    text = tokenizer.decode(tokens)
    if told.kind == "generator":
        losses = models.draw_generator(*given)
        if len(losses):
            page.tell("Score", f"loss {losses.mean():.4f} nats per token on the text below")
        models.tell_continued(*given, num_tokens=SAMPLED, rng=jax.random.key(0))
        models.draw_losses(page, marks[1:], losses, "The text without its first token")
    elif told.kind == "classifier":
        models.draw_classifier(*given, marks, text, told.labels)
    elif told.kind == "seq2seq":
        limit, config = max(min(models.SHOWN, model.config.context) - 1, 1), model.config
        ((written, _), *_), *_ = translate(model, [tokens], beam=1, max_length=limit)
        written = written[written != config.special_tokens.pad_id]
        target = np.r_[start_and_end(config)[0], written][: limit + 1].astype(np.int32)
        models.draw_seq2seq(page, model, (tokenizer, tokenizer), tokens, target, text, "")
    else:
        page.tell_html("Sample", sample(text))
        models.draw_stack(*given, marks)
        if told.kind == "masked":
            models.draw_masked(*given)
