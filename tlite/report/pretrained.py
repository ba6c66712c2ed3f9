"""The page of a Hugging Face folder or hub name: what needs a text and no data."""

from functools import partial
from pathlib import Path

import jax
import numpy as np

from tlite.decoding.search import start_and_end
from tlite.decoding.translate import translate
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.models import (
    Encoder,
    TransformerClassifier,
    TransformerGenerator,
    TransformerMasked,
    TransformerSeq2Seq,
)
from tlite.recipes.loading import open_model
from tlite.report import models, parts
from tlite.report.page import PAGE, Page, new_page, unused
from tlite.report.runs import check_text

# Names come again, so that heads that copy have something to do.
TEXT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a ball to Mary."
)
KINDS = {"masked": "masked model", "seq2seq": "encoder-decoder"}
SAMPLED = 40  # tokens that a generator goes on with


def inspect_pretrained(
    folder: str | Path,
    checkpoint: str = "best",
    member: int = 0,
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
    model, tokenizer, told = open_model(folder, Experiment, checkpoint, member)
    tokens = first_tokens(tokenizer, text or TEXT, min(parts.SHOWN, model.config.context))
    draw = {
        TransformerGenerator: draw_generator,
        TransformerMasked: models.draw_masked,
        Encoder: models.draw_encoder,
        TransformerClassifier: partial(draw_classifier, classes=told.labels),
        TransformerSeq2Seq: draw_seq2seq,
    }
    kind = f"{told.family} {KINDS.get(told.kind, told.kind)}"
    with new_page(place, f"{name}: {kind}") as page:
        page.tell("Model", kind, str(folder))
        models.tell_size(page, model)
        draw[type(model)](page, model, tokenizer, tokens)
    return place / PAGE


def first_tokens(tokenizer, text: str, length: int) -> np.ndarray:
    """The tokens of a text with their marks, as many as are looked at; it is told if some are not.

    Raises:
        UserError: there is none.
    """
    whole = tokenizer.encode(text)
    if not len(whole):
        raise UserError("the text to look at is empty")
    if len(whole) <= length:
        return whole
    print(f"looking at {length} of {len(whole)} tokens")
    return tokenizer.encode_texts([text], length)[0]


def draw_generator(page: Page, model, tokenizer, tokens: np.ndarray) -> None:
    """How surprising each token of the text is, how it goes on, and what is inside."""
    losses = models.draw_generator(page, model, tokenizer, tokens)
    if len(losses):
        page.tell("Score", f"loss {losses.mean():.4f} nats per token on the text below")
    settings = {"num_tokens": SAMPLED, "rng": jax.random.key(0), "stop": []}
    models.tell_continued(page, model, tokenizer, tokens, **settings)
    marks = parts.marks_of(tokenizer, tokens[1:])
    models.draw_losses(page, marks, losses, "The text without its first token")


def draw_classifier(page: Page, model, tokenizer, tokens: np.ndarray, classes: list[str]) -> None:
    """What of the text speaks for its class."""
    read = tokens, parts.marks_of(tokenizer, tokens), tokenizer.decode(tokens)
    models.draw_classifier(page, model, tokenizer, *read, classes)


def draw_seq2seq(page: Page, model, tokenizer, source: np.ndarray) -> None:
    """What it writes for the text, greedily, and where it looks for that."""
    config = model.config
    limit = min(parts.SHOWN, config.context) - 1
    ((written, _), *_), *_ = translate(model, [source], beam=1, max_length=max(limit, 1))
    written = written[written != config.symbols.pad]
    target = np.r_[start_and_end(config)[0], written][: limit + 1].astype(np.int32)
    models.draw_seq2seq(
        page, model, (tokenizer, tokenizer), source, target, tokenizer.decode(source)
    )
