"""Pictures that runs of every kind have, and the folder they are drawn into."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np

from tlite import functional as F
from tlite import inspection as I
from tlite.models import BlocksConfig


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
    length, section = min(config.context, 128), "Positions"
    sinusoidal = np.asarray(F.sinusoidal_positions(length, config.width))
    tables = {"sinusoidal": sinusoidal}
    if config.positions == "learned":
        tables["learned"] = np.asarray(model.positions.table[...])[:length]
    for name, table in tables.items():
        gallery.draw(
            section, f"positions-{name}", f"{name} positions", lambda t=table: I.plot_positions(t)
        )
        gallery.draw(
            section,
            f"position-curves-{name}",
            f"columns of the {name} table",
            lambda t=table: I.plot_position_curves(t),
        )
    angles = np.asarray(F.rotary_angles(length, 2 * (config.width // config.num_heads // 2)))
    similar = {name: I.cosine_similarity(table) for name, table in tables.items()}
    for name, table in (similar | {"rotary": I.rotary_similarity(angles)}).items():
        used = " (this run's)" if name == config.positions else ""
        gallery.draw(
            section,
            f"similarity-{name}",
            f"cosine similarity of positions, {name}{used}",
            lambda t=table, n=name: I.plot_similarity(t, n),
        )


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
