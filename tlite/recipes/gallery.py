"""Pictures that runs of every kind have, and the folder they are drawn into."""

import contextlib
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np

from tlite import functional as F
from tlite import inspection as I
from tlite.errors import disk_errors
from tlite.models import BlocksConfig
from tlite.models.encoder import TABLES, Stack

PAGE = "index.html"
POSITIONS = 128  # whose encodings are drawn
OWN = " (this model's)"
PREDICTED = 24  # tokens of a text after which the next ones are shown


class Gallery:
    """Draws pictures into a folder and collects them, by section, for the page."""

    def __init__(self, folder: Path):
        self.folder, self.sections = folder, {"Training": []}  # first on the page
        folder.mkdir(parents=True, exist_ok=True)
        matplotlib.use("Agg")

    def draw(self, section: str, name: str, caption: str, plot: Callable) -> None:
        path = self.folder / f"{name}.png"
        with warnings.catch_warnings():
            # Of scripts that the font has no letters for, boxes are drawn.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            plot().figure.savefig(path, dpi=110)
        matplotlib.pyplot.close("all")
        self.add(section, I.picture(path, caption))

    def add(self, section: str, content: str) -> None:
        self.sections.setdefault(section, []).append(content)

    def write(self, title: str) -> Path:
        path = self.folder / PAGE
        path.write_text(
            I.page(title, [(name, "".join(parts)) for name, parts in self.sections.items()]),
            encoding="utf-8",
        )
        return path


@contextlib.contextmanager
def new_gallery(folder: Path, title: str) -> Iterator[Gallery]:
    """A gallery, with its page at the end, that takes the place of the folder once it is whole."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)  # what a kill has left
    with disk_errors(folder):
        try:
            gallery = Gallery(temporary)
            yield gallery
            gallery.write(title)
            if folder.is_dir():
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def look_at_positions(gallery: Gallery, stack: Stack, place: str = "") -> None:
    """What a stack of blocks knows of positions: a table, angles, or what is added to scores.

    `place` tells two stacks of a model apart.
    """
    config = stack.config
    length = min(config.context, POSITIONS)
    if config.positions in TABLES:
        table = np.asarray(stack.position_table()[:length])
        look_at_table(gallery, f"{config.positions}{place}", table, OWN)
    at, seen = jnp.arange(length), {}
    for window in sorted({config.window(index) for index in range(config.num_blocks)}):
        local = f"-window-{window}" if window and config.local_rotary_base else ""
        seen[local] = stack.position_settings(at, at, None, window)
    for local, settings in seen.items():  # blocks with a window can have angles of their own
        if settings["angles"] is not None:
            look_at_angles(gallery, f"rotary{place}{local}", settings["angles"], OWN)
    if (bias := seen[local]["bias"]) is not None:
        gallery.draw(
            "Positions",
            f"bias-{config.positions}{place}",
            f"{config.positions} positions{OWN}: what is added to scores, by distance",
            lambda: I.plot_bias(np.asarray(bias)),
        )


def look_at_other_positions(gallery: Gallery, config: BlocksConfig) -> None:
    """Sinusoidal and rotary positions for a model that has others, to compare."""
    length = min(config.context, POSITIONS)
    if config.positions != "sinusoidal":
        table = np.asarray(F.sinusoidal_positions(length, config.width))
        look_at_table(gallery, "sinusoidal", table)
    if config.positions != "rotary":
        width = 2 * (config.width // config.num_heads // 2)
        look_at_angles(gallery, "rotary", F.rotary_angles(length, width))


def look_at_table(gallery: Gallery, name: str, table: np.ndarray, own: str = "") -> None:
    """A table of positions, some of its columns, and how alike its rows are."""
    draw = partial(gallery.draw, "Positions")
    draw(f"positions-{name}", f"{name} positions{own}", lambda: I.plot_positions(table))
    curves = f"columns of the {name} table"
    draw(f"position-curves-{name}", curves, lambda: I.plot_position_curves(table))
    similarity = I.cosine_similarity(table)
    caption = f"cosine similarity of positions, {name}{own}"
    draw(f"similarity-{name}", caption, lambda: I.plot_similarity(similarity, name))


def look_at_angles(gallery: Gallery, name: str, angles, own: str = "") -> None:
    """How alike a vector is to itself rotated to two positions; of a model's own the angles too."""
    angles = np.asarray(angles)
    draw = partial(gallery.draw, "Positions")
    if own:
        caption = f"{name} positions{own}: the cosine of each pair's angle"
        draw(f"angles-{name}", caption, lambda: I.plot_positions(np.cos(angles)))
    similarity = I.rotary_similarity(angles)
    caption = f"cosine similarity of positions, {name}{own}"
    draw(f"similarity-{name}", caption, lambda: I.plot_similarity(similarity, name))


def look_at_attention(
    gallery: Gallery, model, inputs: tuple, pattern: str, queries: list[str], keys=None
) -> list[np.ndarray]:
    """The weights of all heads, a picture for each block."""
    _, captured = I.run(model, *inputs, capture=pattern)
    for name, weights in captured.items():
        place = name.removesuffix(".weights")
        shown = np.asarray(weights)[:, : len(queries), : len(keys or queries)]
        gallery.draw(
            "Attention",
            place.replace(".", "-"),
            place,
            lambda w=shown: I.plot_attention(w, queries, keys),
        )
    return [np.asarray(weights) for weights in captured.values()]


def look_at_embedding(gallery: Gallery, table, names: list[str], what: str = "embedding") -> None:
    table = np.asarray(table)[: len(names)]
    if len(table) < 4:
        return
    for method, title in (("pca", "PCA"), ("tsne", "t-SNE")):
        gallery.draw(
            "Embeddings",
            f"{what}-{method}",
            f"{title} of the {what.replace('-', ' ')}",
            lambda m=method: I.plot_embedding(table, names, m),
        )


def look_at_predictions(
    gallery: Gallery,
    model,
    inputs: tuple,
    marks: list[str],
    mark: Callable[[int], str],
    which: str = "the next",
) -> None:
    """The most probable tokens, and the logit lens, for the first tokens of a text.

    Args:
        inputs: of an encoder-decoder source and target; the last is what is written.
        marks: of its tokens.
        mark: what stands for a token.
        which: token is predicted at each place: the next, or this.
    """
    marks = marks[:PREDICTED]
    most = min(8, model.config.vocabulary_size)
    best, tokens = map(np.asarray, I.top_of_lens(model, *inputs, most=most))
    pieces = [[mark(token) for token in row] for row in tokens[-1, : len(marks)]]
    read = "text so far, up to this token" if which == "the next" else "text that is read"
    labels = {"xlabel": read, "ylabel": f"rank of {which} token"}
    gallery.draw(
        "Predictions",
        "next-token" if which == "the next" else "tokens",
        f"what is most probable as {which} token",
        lambda: I.plot_top_tokens(best[-1, : len(marks)], pieces, marks, **labels),
    )
    first = [[mark(token) for token in row] for row in tokens[:, : len(marks), 0]]
    gallery.draw(
        "Predictions",
        "logit-lens",
        "logit lens: what would be written if the model ended here",
        lambda: I.plot_top_of_lens(best[:, : len(marks), 0], first, marks, read),
    )


def look_at_corpus(gallery: Gallery, text: str, lengths: dict, unit: str = "character") -> None:
    """Frequencies of characters and words, and how long lines, passages or sentences are."""
    for kind, tokens in (("character", text), ("word", re.findall(r"\w+", text))):
        counts = Counter(tokens)
        gallery.draw(
            "Corpus",
            f"frequencies-{kind}",
            f"the most frequent {kind}s",
            lambda c=counts, k=kind: I.plot_frequencies(c, k),
        )
    for kind, values in lengths.items():
        gallery.draw(
            "Corpus",
            f"lengths-{kind.replace(' ', '-')}",
            f"lengths of the {kind}s",
            lambda v=list(values), k=kind: I.plot_lengths(v, k, unit),
        )
