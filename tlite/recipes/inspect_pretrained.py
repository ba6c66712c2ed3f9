"""`tlite inspect` of a Hugging Face folder or hub name: what needs a text and no data."""

from functools import partial
from pathlib import Path

import numpy as np

from tlite import inspection as I
from tlite.decoding.translate import translate
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.inspection.draw import SHOWN, draw_vocabulary
from tlite.inspection.draw_models import (
    COLOURED,
    draw_classifier,
    draw_encoder,
    draw_generator,
    draw_masked,
    draw_seq2seq,
    tell_size,
)
from tlite.inspection.gallery import PAGE, Gallery, new_gallery
from tlite.inspection.page import bars, sample
from tlite.inspection.pieces import mark_of
from tlite.models import (
    Encoder,
    TransformerClassifier,
    TransformerGenerator,
    TransformerMasked,
    TransformerSeq2Seq,
)
from tlite.recipes.inspect_run import check_text, tell_continued
from tlite.recipes.loading import open_model
from tlite.text.pairs import START_ID

# Names come again, so that heads that copy have something to do.
TEXT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a ball to Mary."
)
KINDS = {"masked": "masked model", "seq2seq": "encoder-decoder"}
SEQUENCES = 4  # of random tokens that heads are scored on: a large model takes seconds for each
SAMPLED = 40  # tokens that a generator goes on with


def inspect_pretrained(
    folder: str | Path, checkpoint: str = "best", member: int = 0, text: str | None = None
) -> Path:
    """Draw what a model of transformers shows on a text, and one page with all pictures.

    They go into its folder `inspection`, or, of a hub name, into one below runs/inspection.
    Returns the page's path.

    Raises:
        UserError: it can't be opened, has no tokenizer, or the text is empty.
    """
    check_text(text)
    model, tokenizer, told = open_model(folder, Experiment, checkpoint, member)
    tokens = first_tokens(tokenizer, text or TEXT, min(SHOWN, model.config.context))
    place = Path(folder) / "inspection"
    if not Path(folder).is_dir():
        place = Path("runs", "inspection", str(folder).replace("/", "--"))
    draw = {
        TransformerGenerator: draw_pretrained_generator,
        TransformerMasked: draw_pretrained_masked,
        Encoder: draw_pretrained_encoder,
        TransformerClassifier: partial(draw_pretrained_classifier, classes=told.labels),
        TransformerSeq2Seq: draw_pretrained_seq2seq,
    }
    kind = f"{told.family} {KINDS.get(told.kind, told.kind)}"
    with new_gallery(place, f"{Path(folder).name}: {kind}") as gallery:
        gallery.tell("Model", kind, str(folder))
        tell_size(gallery, model)
        draw[type(model)](gallery, model, tokenizer, tokens)
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
    return tokenizer.encode_batch([text], length)[0]


def draw_pretrained_generator(gallery: Gallery, model, tokenizer, tokens: np.ndarray) -> None:
    """How surprising each token of the text is, how it goes on, and what is inside."""
    losses = draw_generator(gallery, model, tokenizer, tokens, sequences=SEQUENCES)
    if len(losses):
        gallery.tell("Score", f"loss {losses.mean():.4f} nats per token on the text below")
    tell_continued(gallery, model, tokenizer, tokens, [], SAMPLED)
    marks = [mark_of(tokenizer, token) for token in tokens[1:]]
    told = f"The text without its first token: {COLOURED}"
    gallery.add("Predictions", I.coloured_by_loss(marks, losses), told)


def draw_pretrained_masked(gallery: Gallery, model, tokenizer, tokens: np.ndarray) -> None:
    """What it fills in where a token is hidden."""
    hidden, filled = draw_masked(gallery, model, tokenizer, tokens)
    right = sum(a == b for a, b in zip(hidden, filled, strict=True))
    if hidden:
        gallery.tell("Score", f"{right} of {len(hidden)} tokens right, each hidden alone")
    text = f"text: {tokenizer.decode(tokens)}\nfilled in, one by one: {' '.join(filled)}"
    gallery.tell_html("Sample", sample(text))


def draw_pretrained_encoder(gallery: Gallery, model, tokenizer, tokens: np.ndarray) -> None:
    """The text that its vectors are of; it predicts nothing."""
    gallery.tell_html("Sample", sample(tokenizer.decode(tokens)))
    draw_encoder(gallery, model, tokenizer, tokens)


def draw_pretrained_classifier(
    gallery: Gallery, model, tokenizer, tokens: np.ndarray, classes: list[str]
) -> None:
    """What of the text speaks for its class."""
    pieces = [mark_of(tokenizer, token) for token in tokens]
    found = draw_classifier(gallery, model, tokens, pieces, classes)
    gallery.tell_html("Sample", sample(tokenizer.decode(tokens)) + bars(found))
    draw_vocabulary(gallery, model.embedding.table, tokenizer, tokens)


def draw_pretrained_seq2seq(gallery: Gallery, model, tokenizer, source: np.ndarray) -> None:
    """What it writes for the text, greedily, and where it looks for that."""
    config = model.config
    limit = min(SHOWN, config.context) - 1
    ((written, _), *_), *_ = translate(model, [source], beam=1, max_length=max(limit, 1))
    written = written[written != config.pad_id]
    text = f"source: {tokenizer.decode(source)}\nwritten: {tokenizer.decode(written)}"
    gallery.tell_html("Sample", sample(text))
    start = START_ID if config.start_id is None else config.start_id
    target = np.r_[start, written][: limit + 1].astype(np.int32)
    draw_seq2seq(gallery, model, source, target, (partial(mark_of, tokenizer),) * 2)
    table = model.encoder.embedding.table
    draw_vocabulary(gallery, table, tokenizer, [*source, *target])
