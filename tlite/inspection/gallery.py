"""The folder of pictures that `tlite inspect` draws, and its page."""

import contextlib
import html
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib

from tlite.errors import disk_errors
from tlite.inspection.head_view import Heads, head_view
from tlite.inspection.page import figure, page, picture
from tlite.inspection.plots import readable

PAGE = "index.html"
TOPICS = {
    "Predictions": "what it expects, how sure it is, and at which depth it knows",
    "Heads": "of what kind each head is, and what is lost without it",
    "Attention": "the weights of every head, a picture for each block",
    "Positions": "what it knows of the places of tokens",
    "Embeddings": "which tokens are alike to it",
    "Training": "how it was trained, and how that went",
    "Data": "what its texts are made of",
}


class Gallery:
    """Draws pictures into a folder and collects what the page tells: facts, heads, topics."""

    def __init__(self, folder: Path, title: str = ""):
        self.folder, self.title = folder, title
        self.facts: list[tuple[str, str]] = []
        self.heads: list[Heads] = []
        self.topics: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        folder.mkdir(parents=True, exist_ok=True)
        matplotlib.use("Agg")

    def tell(self, name: str, *parts: str) -> None:
        """A fact, for the beginning of the page; of what is empty nothing is said."""
        self.tell_html(name, html.escape(readable(", ".join(part for part in parts if part))))

    def tell_html(self, name: str, content: str) -> None:
        self.facts.append((name, content))

    def draw(self, topic: str, name: str, caption: str, plot: Callable) -> None:
        """Into a file, and onto the page: what `plot` returns the Axes of."""
        path = self.folder / f"{name}.png"
        with warnings.catch_warnings():
            # Of scripts that the font has no letters for, boxes are drawn.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            plot().figure.savefig(path, dpi=110)
        matplotlib.pyplot.close("all")
        self.topics[topic].append(picture(path, caption))

    def add(self, topic: str, content: str, caption: str) -> None:
        """HTML with its caption."""
        self.topics[topic].append(figure(content, caption))

    def write(self) -> Path:
        topics = [(t, TOPICS[t], "".join(parts)) for t, parts in self.topics.items() if parts]
        path = self.folder / PAGE
        content = page(self.title, self.facts, head_view(self.heads) if self.heads else "", topics)
        path.write_text(content, encoding="utf-8")
        return path


@contextlib.contextmanager
def new_gallery(folder: Path, title: str) -> Iterator[Gallery]:
    """A gallery, with its page at the end, that takes the place of the folder once it is whole."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)  # what a kill has left
    with disk_errors(folder):
        try:
            gallery = Gallery(temporary, title)
            yield gallery
            gallery.write()
            if folder.is_dir():
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
