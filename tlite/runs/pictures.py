"""Pictures that runs of every kind have, and the folder they are drawn into."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np

from tlite import functional as F
from tlite import inspection as I
from tlite.models import BlocksConfig
from tlite.models.encoder import TABLES, Stack

POSITIONS = 128  # whose encodings are drawn
PREDICTED = 24  # tokens of a text after which the next ones are shown


class Gallery:
    """Draws pictures into a folder and collects them, by section, for the page."""

    def __init__(self, folder: Path):
        self.folder, self.sections = folder, {"Training": []}  # first on the page
        folder.mkdir(exist_ok=True)
        matplotlib.use("Agg")

    def draw(self, section: str, name: str, caption: str, plot: Callable) -> None:
        figure = plot().figure
        path = self.folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        matplotlib.pyplot.close("all")
        self.add(section, I.picture(path, caption))

    def add(self, section: str, content: str) -> None:
        self.sections.setdefault(section, []).append(content)

    def write(self, title: str) -> Path:
        path = self.folder / "index.html"
        path.write_text(
            I.page(title, [(name, "".join(parts)) for name, parts in self.sections.items()]),
            encoding="utf-8",
        )
        return path


def look_at_positions(gallery: Gallery, config: BlocksConfig, model) -> None:
    """The encodings, and how alike those of two positions are, by the three schemes."""
    length = min(config.context, POSITIONS)
    tables = {"sinusoidal": np.asarray(F.sinusoidal_positions(length, config.width))}
    if config.positions == "learned":
        tables["learned"] = np.asarray(model.position_table())[:length]
    for name, table in tables.items():
        look_at_table(gallery, name, table)
    angles = np.asarray(F.rotary_angles(length, 2 * (config.width // config.num_heads // 2)))
    similar = {name: I.cosine_similarity(table) for name, table in tables.items()}
    for name, table in (similar | {"rotary": I.rotary_similarity(angles)}).items():
        look_at_similarity(gallery, name, table, " (this run's)" if name == config.positions else "")


def look_at_own_positions(gallery: Gallery, stack: Stack, place: str = "") -> None:
    """The positions that a stack of blocks has: its table, angles or bias; none of other schemes.

    Windows that see differently have angles of their own. `place` tells two stacks apart.
    """
    config = stack.config
    length = min(config.context, POSITIONS)
    if config.positions in TABLES:
        name, table = f"{config.positions}{place}", np.asarray(stack.position_table()[:length])
        look_at_table(gallery, name, table)
        look_at_similarity(gallery, name, I.cosine_similarity(table))
    at = jnp.arange(length)
    angles, biases = {}, {}
    for window in sorted({config.window(index) for index in range(config.num_blocks)}):
        settings = stack.position_settings(at, at, None, window)
        name = f"-window-{window}" if window and config.local_rotary_base else ""
        angles[name], biases[""] = settings["angles"], settings["bias"]
    for name, table in angles.items():
        if table is not None:
            of = f"rotary{place}{name}"
            look_at_similarity(gallery, of, I.rotary_similarity(np.asarray(table)))
            cosines = np.cos(np.asarray(table))
            plot = lambda t=cosines: I.plot_positions(t)  # noqa: E731
            caption = f"{of}: the cosine of each pair's angle"
            gallery.draw("Positions", f"angles-{of}", caption, plot)
    for table in biases.values():
        if table is not None:
            name = f"bias-{config.positions}{place}"
            caption = f"{config.positions} positions{place}: what is added to scores, by distance"
            gallery.draw("Positions", name, caption, lambda t=table: I.plot_bias(np.asarray(t)))


def look_at_table(gallery: Gallery, name: str, table: np.ndarray) -> None:
    draw = partial(gallery.draw, "Positions")
    draw(f"positions-{name}", f"{name} positions", lambda: I.plot_positions(table))
    curves = f"columns of the {name} table"
    draw(f"position-curves-{name}", curves, lambda: I.plot_position_curves(table))


def look_at_similarity(gallery: Gallery, name: str, table: np.ndarray, used: str = "") -> None:
    caption = f"cosine similarity of positions, {name}{used}"
    plot = lambda: I.plot_similarity(table, name)  # noqa: E731
    gallery.draw("Positions", f"similarity-{name}", caption, plot)


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
    gallery: Gallery, model, inputs: tuple, marks: list[str], mark: Callable[[int], str]
) -> None:
    """The most probable next tokens, and the logit lens, for the first tokens of a text.

    Args:
        inputs: of an encoder-decoder source and target; the last is what is written.
        marks: of its tokens.
        mark: what stands for a token.
    """
    marks = marks[:PREDICTED]
    most = min(8, model.config.vocabulary_size)
    best, tokens = map(np.asarray, I.top_of_lens(model, *inputs, most=most))
    pieces = [[mark(token) for token in row] for row in tokens[-1, : len(marks)]]
    gallery.draw(
        "Predictions",
        "next-token",
        "the most probable next tokens",
        lambda: I.plot_top_tokens(best[-1, : len(marks)], pieces, marks),
    )
    first = [[mark(token) for token in row] for row in tokens[:, : len(marks), 0]]
    gallery.draw(
        "Predictions",
        "logit-lens",
        "logit lens: what would be written if the model ended here",
        lambda: I.plot_top_of_lens(best[:, : len(marks), 0], first, marks),
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
