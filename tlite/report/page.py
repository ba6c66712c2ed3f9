"""The page: facts, a view of the heads, and pictures by topic, in one HTML file with no network."""

import base64
import contextlib
import html
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes

from tlite.errors import UserError, disk_errors
from tlite.pictures import own_figures
from tlite.pictures.marks import readable, symbols

TEMPLATE, STYLE, SCRIPT = (
    Path(__file__).with_name(f"page.{kind}").read_text(encoding="utf-8")
    for kind in ("html", "css", "js")
)
PAGE = "index.html"
MASKED = -1  # in place of a weight, which are in thousandths
TOPICS = {
    "Predictions": "what it expects, how sure it is, and at which depth it knows",
    "Heads": "of what kind each head is, and what is lost without it",
    "Attention": "the weights of every head, a picture for each block",
    "Positions": "what it knows of the places of tokens",
    "Embeddings": "which tokens are alike to it",
    "Training": "how it was trained, and how that went",
    "Data": "what its texts are made of",
}
PICTURES = {
    "Predictions": {
        "next-token": "What is most probable as the next token, below each token of the text: the "
        "stronger the colour, the more probable. The first row is the model's choice.",
        "tokens": "What is most probable as this token, below each token of the text: the stronger "
        "the colour, the more probable. The first row is the model's choice.",
        "logit-lens": "The logit lens: what would be {which} token if the model ended after the "
        "embedding, after block 0, and so on. Where a row first has what the last one has, the "
        "model knew.",
        "filled-in": "What is most probable in the place of each token when that token alone is "
        "hidden: the stronger the colour, the more probable.",
        "loss-by-position": "The validation loss by how many tokens the model has seen: where the "
        "line falls, a longer past helps.",
        "saliency": "What speaks for {name!r}, which has probability {share:.3f}: words with a "
        "green bar speak for it, those with a red one against it.",
    },
    "Heads": {
        "head-{kind}": "How much of each head's attention goes to {told}, on random tokens that "
        "are written twice: 0 nothing, 1 all. The scale ends at the largest score here.",
        "{kind}-by-step": "The same {kind} score at the checkpoints that the run has kept, a panel "
        "for each block: a line that rises is a head that has learned to look there.",
        "ablation{place}": "By how much the loss on {of} ({loss:.2f} nats) rises when the output "
        "of one {head} is set to zero: red heads are needed, without blue ones it would be better.",
        "patching": "Activation patching: with token {middle} of the text changed, the "
        "log-probability of the next token but one went from {before:.2f} to {after:.2f}. Each "
        "cell is that value when the clean text's residual stream is put back at one block and "
        "place: what counts is there where it is restored.",
    },
    "Attention": {
        "{layer}": "Block {block}{what}: each row is a query, and shows how it divides its "
        "attention among the keys.{hatched}",
        "alignment": "Where each piece that is written (rows) looks in the source (columns), a "
        "mean over the heads of each decoder block: of a translator, which words belong together.",
    },
    "Positions": {
        "positions-{name}": "The {kind} positions: row t is what is added to the embedding of the "
        "token at place t.",
        "position-curves-{name}": "Some columns of that table over the positions.",
        "angles-{name}": "Rotary positions: at place t the pair of columns i of each query and key "
        "is turned by an angle, whose cosine is drawn. The first pairs turn fast, the last ones "
        "slowly.",
        "similarity-{name}": "{told}",
        "bias-{name}": "What {kind} positions add to the score of a key, by its distance from the "
        "query. A head whose line falls fast looks at what is near.",
    },
    "Embeddings": {
        "{name}-{method}": "{told} in the plane, {by}. Capitals are blue, small letters green, "
        "digits red; a line leads to a mark's place.",
    },
    "Training": {
        "schedule": "The learning rate of every update.",
        "curve-{name}": "The {measure} by step, of training batches (smoothed) and of the "
        "validation part; a band is one standard deviation over replicas.",
    },
    "Data": {
        "frequencies-{kind}": "The most frequent {kind}s of the text, and what share of all "
        "{kind}s each is.",
        "lengths-{kind}": "How long its {kind}s are; the longest hundredth of them is left out.",
    },
}
"""By topic the pictures: names of their files, and what is said of each, with what is filled in."""


class Page:
    """Draws pictures into a folder and collects what the page tells: facts, heads, topics."""

    def __init__(self, folder: Path, title: str = ""):
        self.folder, self.title = folder, title
        self.facts: list[str] = []
        self.heads: list[dict] = []
        self.topics: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        folder.mkdir(parents=True, exist_ok=True)

    def tell(self, name: str, *parts: str) -> None:
        """A fact, for the beginning of the page; of what is empty nothing is said."""
        self.tell_html(name, text_of(", ".join(part for part in parts if part)))

    def tell_html(self, name: str, content: str) -> None:
        self.facts.append(f"<dt>{html.escape(name)}</dt><dd>{content}</dd>")

    def draw(self, picture: str, axes: Axes, **words: object) -> None:
        """One of `PICTURES`: into a file, and onto the page itself; then its figure is closed.

        Args:
            words: what is filled into its name and into what is said of it.
        """
        topic = next(topic for topic, known in PICTURES.items() if picture in known)
        path = self.folder / f"{picture.format(**words).replace(' ', '-')}.png"
        axes.figure.savefig(path, dpi=110)
        plt.close(axes.figure)
        content = base64.b64encode(path.read_bytes()).decode()
        image = f'<div><img alt="" src="data:image/png;base64,{content}"></div>'
        self.add(topic, image, PICTURES[topic][picture].format(**words))

    def add(self, topic: str, content: str, caption: str) -> None:
        """HTML with a sentence on what is seen."""
        told = f"<figcaption>{text_of(caption)}</figcaption>"
        self.topics[topic].append(f"<figure>{content}{told}</figure>")

    def add_heads(
        self,
        name: str,
        queries: Sequence[str],
        keys: Sequence[str],
        weights: Sequence[Float[np.ndarray, "H T S"]],
        masks: Sequence[Bool[np.ndarray, "T S"] | None],
    ) -> None:
        """What the heads of some layers look at on one text, for the view that page.js draws.

        Args:
            weights: by block.
            masks: by block: True where a query may look; None: everywhere.
        """
        layers = []
        for of_block, mask in zip(weights, masks, strict=True):
            rounded = np.round(1000 * np.asarray(of_block, float)).astype(int)
            layers.append((rounded if mask is None else np.where(mask, rounded, MASKED)).tolist())
        sides = {"queries": [*map(symbols, queries)], "keys": [*map(symbols, keys)]}
        self.heads.append({"name": name, **sides, "weights": layers})

    def content(self) -> str:
        """The page's HTML: what the model is, then its heads, then the rest, folded."""
        folds = (
            f"<details><summary><h2>{topic}</h2><span>{TOPICS[topic]}</span></summary>"
            f'<div class="figures">{"".join(figures)}</div></details>'
            for topic, figures in self.topics.items()
            if figures
        )
        heads = json.dumps(self.heads, separators=(",", ":"))
        return Template(TEMPLATE).substitute(
            title=text_of(self.title),
            style=STYLE,
            script=SCRIPT,
            facts="".join(self.facts),
            heads=heads.replace("<", "\\u003c"),  # ends no script
            topics="".join(folds),
        )


@contextlib.contextmanager
def new_page(folder: Path, title: str) -> Iterator[Page]:
    """A page that takes the place of the folder, with its pictures, once it is whole."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)  # what a kill has left
    with disk_errors(folder), own_figures():
        try:
            page = Page(temporary, title)
            yield page
            (temporary / PAGE).write_text(page.content(), encoding="utf-8")
            if folder.is_dir():
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def unused(folder: Path) -> Path:
    """The folder, if nothing would be lost where a page takes its place.

    Raises:
        UserError: it has other files than those of a page.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    of_page = PAGE in names and all(n == PAGE or n.endswith(".png") for n in names)
    if not folder.name or (names and not of_page):
        raise UserError(f"{folder} has files that are no page's: name another folder with --to")
    return folder


def text_of(text: str) -> str:
    """HTML of a text, whose control characters are symbols."""
    return html.escape(readable(text))


def sample(text: str) -> str:
    """A text as it was written, lines and all."""
    return f"<pre>{text_of(text)}</pre>"


def bars(shares: Mapping[str, float]) -> str:
    """Probabilities by name, each with a bar."""
    rows = (
        f"<span>{text_of(name)}</span><span>{share:.3f}</span>"
        f'<i style="width:{100 * share:.1f}%"></i>'
        for name, share in shares.items()
    )
    return f'<div class="bars">{"".join(rows)}</div>'


def coloured_by_loss(tokens: Sequence[str], losses: Float[np.ndarray, "N"]) -> str:
    """A text whose tokens are the redder the less the model expected them (-log2 p)."""
    spans = []
    for token, bits in zip(tokens, np.asarray(losses, float) / np.log(2), strict=True):
        style = f"background:rgba(214,39,40,{min(bits / 8, 1):.2f})"
        text = text_of(token).replace("\n", "&#8629;<br>")
        spans.append(f'<span style="{style}" title="{bits:.1f} bits">{text}</span>')
    return f'<p class="text">{"".join(spans)}</p>'
