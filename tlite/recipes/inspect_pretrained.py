"""`tlite inspect` of a Hugging Face folder or hub name: what needs a text and no data."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite import inspection as I
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
from tlite.recipes.gallery import PAGE, new_gallery
from tlite.recipes.inspect_model import (
    SHOWN,
    look_at_encoder,
    look_at_positions,
    look_at_vocabulary,
    look_inside_classifier,
    look_inside_generator,
    look_inside_masked,
    look_inside_seq2seq,
)
from tlite.recipes.inspect_run import check_text
from tlite.recipes.loading import open_model
from tlite.recipes.pieces import mark_of
from tlite.text.pairs import START_ID

# Names come again, so that heads that copy have something to do.
TEXT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a ball to Mary."
)
SEQUENCES = 4  # of random tokens that heads are scored on: a large model takes seconds for each


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
    number = sum(leaf.size for leaf in jax.tree.leaves(model))
    title = f"{folder}: {told.family} {told.kind}, {number:,} parameters"
    place = Path(folder) / "inspection"
    if not Path(folder).is_dir():
        place = Path("runs", "inspection", str(folder).replace("/", "--"))
    look = {
        TransformerGenerator: look_at_reading,
        TransformerMasked: look_inside_masked,
        Encoder: look_at_encoder,
        TransformerClassifier: partial(look_at_classes, classes=told.labels),
        TransformerSeq2Seq: look_at_writing,
    }
    with new_gallery(place, title) as gallery:
        look[type(model)](gallery, model, tokenizer, tokens)
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


def look_at_reading(gallery, model, tokenizer, tokens: np.ndarray) -> None:
    """A generator: how surprising each token of the text is, and what is inside."""
    look_inside_generator(gallery, model, tokenizer, tokens, sequences=SEQUENCES)
    losses = F.token_cross_entropy(model(jnp.asarray(tokens))[:-1], jnp.asarray(tokens[1:]))
    marks = [mark_of(tokenizer, token) for token in tokens[1:]]
    gallery.add("Predictions", I.coloured_by_loss(marks, np.asarray(losses)))


def look_at_classes(gallery, model, tokenizer, tokens: np.ndarray, classes: list[str]) -> None:
    """A classifier: what of the text speaks for its class."""
    look_at_positions(gallery, model)
    pieces, text = [mark_of(tokenizer, token) for token in tokens], tokenizer.decode(tokens)
    look_inside_classifier(gallery, model, tokens, pieces, classes, text)
    look_at_vocabulary(gallery, model.embedding.table, tokenizer, tokens)


def look_at_writing(gallery, model, tokenizer, source: np.ndarray) -> None:
    """An encoder-decoder: what it writes for the text, greedily, and where it looks for that."""
    config = model.config
    limit = min(SHOWN, config.context) - 1
    ((written, _), *_), *_ = translate(model, [source], beam=1, max_length=max(limit, 1))
    start = START_ID if config.start_id is None else config.start_id
    target = np.r_[start, written[written != config.pad_id]][: limit + 1].astype(np.int32)
    marks = (partial(mark_of, tokenizer),) * 2
    look_inside_seq2seq(gallery, model, source, target, marks, tokenizer.decode(source))
    table = model.encoder.embedding.table
    look_at_vocabulary(gallery, table, tokenizer, [*source, *target])
