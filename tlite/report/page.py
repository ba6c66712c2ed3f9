"""Write the page of a model: facts, a view of the heads, and pictures, in one HTML file."""

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
from tlite.pictures import isolate_figures
from tlite.pictures.labels import escape_controls, show_whitespace

TEMPLATE, STYLE, SCRIPT = (
    Path(__file__).with_name(f"page.{suffix}").read_text(encoding="utf-8")
    for suffix in ("html", "css", "js")
)
PAGE = "index.html"
GENERATOR = '<meta name="generator" content="tlite inspect">'
HEADS = """<h2>Attention of each head</h2>
<div class="heads"><script type="application/json">$heads</script><noscript>The view of the heads
needs JavaScript.</noscript></div><script>
$script</script>"""
MASKED = -1  # replaces a weight; weights are in thousandths
TOPICS = {
    "Predictions": "the most probable tokens, their probability, and the block that predicts them",
    "Heads": "the pattern of each head, and the loss without it",
    "Attention": "the weights of every head, a picture for each block",
    "Positions": "the encoding of positions",
    "Embeddings": "the similarity of tokens",
    "Training": "the learning rate and the metrics by step",
    "Data": "the texts it was trained on",
}
PICTURES = {
    "Predictions": {
        "next-token": "The most probable next tokens below each token; stronger is more probable.",
        "logit-lens": "The logit lens: predictions of the next token from the residual stream "
        "after the embedding and after each block.",
        "masked-tokens": "The most probable tokens at each position when it alone is masked.",
        "loss-by-position": "The validation loss by the number of tokens seen.",
        "saliency": "Saliency for {name!r}, which has probability {share:.3f}: green words support "
        "it, red words oppose it.",
    },
    "Heads": {
        "head-{kind}": "The attention of each head to {keys}, on random tokens written twice: 0 is "
        "none, 1 all. The scale ends at the largest score.",
        "ablation{suffix}": "The increase of the loss on {target} ({loss:.2f} nats) when the "
        "output of one {head} is set to zero: red heads help, blue heads harm.",
        "patching": "Activation patching: changing token {middle} of the text changes the "
        "log-probability of the token two after it from {before:.2f} to {after:.2f}. Each cell is "
        "that value when the clean residual stream is restored at one block and position.",
    },
    "Attention": {
        "{layer}": "{layer}: weights from queries (rows) to keys. Hatched cells are masked.",
    },
    "Positions": {
        "positions-{name}": "The {name} positions: row t is added to the embedding of token t.",
        "angles-{name}": "Rotary positions: the cosine of the angle by which each pair of columns "
        "of queries and keys is rotated. The first pairs rotate fastest.",
        "similarity-{name}": "Cosine similarity of the vectors of two positions, or of one vector "
        "rotated to them.",
        "bias-{name}": "The bias that {name} positions add to scores, by the distance of key and "
        "query. A head whose line falls fast attends to near keys.",
    },
    "Embeddings": {
        "{prefix}embedding": "The embeddings of tokens, by their two principal components. "
        "Capitals are blue, small letters green, digits red; a line leads from a label to its "
        "point.",
    },
    "Training": {
        "schedule": "The learning rate of every update.",
        "curve-{name}": "The {name} by step on training batches (smoothed) and on the validation "
        "split; the band is one standard deviation over replicas.",
    },
    "Data": {
        "frequencies-{kind}": "The most frequent {kind}s, with their share of all {kind}s.",
        "lengths-{kind}": "The distribution of {kind} lengths without the longest 1 %.",
    },
}
"""By topic: the template of a picture's file name, and of its caption."""


class Page:
    """Facts, heads and pictures by topic; pictures are also written to a folder."""

    def __init__(self, folder: Path, title: str = ""):
        self.folder, self.title = folder, title
        self.facts: list[str] = []
        self.heads: list[dict] = []
        self.topics: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        folder.mkdir(parents=True, exist_ok=True)

    def add_fact(self, name: str, *values: str) -> None:
        """Add a fact to the beginning of the page; empty values are skipped."""
        self.add_html_fact(name, escape(", ".join(filter(None, values))))

    def add_html_fact(self, name: str, content: str) -> None:
        """Add a fact whose content is HTML."""
        self.facts.append(f"<dt>{html.escape(name)}</dt><dd>{content}</dd>")

    def draw(self, picture: str, axes: Axes, **fields: object) -> None:
        """Save one of `PICTURES` to a file and add it to the page; close its figure.

        Args:
            fields: of the templates of its file name and caption.
        """
        topic = next(topic for topic, captions in PICTURES.items() if picture in captions)
        path = self.folder / f"{picture.format(**fields).replace(' ', '-')}.png"
        axes.figure.savefig(path, dpi=110)
        plt.close(axes.figure)
        content = base64.b64encode(path.read_bytes()).decode()
        image = f'<div><img alt="" src="data:image/png;base64,{content}"></div>'
        self.add_figure(topic, image, PICTURES[topic][picture].format(**fields))

    def add_figure(self, topic: str, content: str, caption: str) -> None:
        """Add HTML with a caption."""
        figure = f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"
        self.topics[topic].append(figure)

    def add_heads(
        self,
        name: str,
        queries: Sequence[str],
        keys: Sequence[str],
        weights: Sequence[Float[np.ndarray, "H T S"]],
        masks: Sequence[Bool[np.ndarray, "T S"] | None],
        blocks: Sequence[int],
    ) -> None:
        """Add the attention weights of some layers to the view that page.js draws.

        Args:
            weights: by block.
            masks: by block: True where a query attends to a key; None: everywhere.
            blocks: numbers of the blocks.
        """
        layers = []
        for layer, mask in zip(weights, masks, strict=True):
            rounded = np.round(1000 * np.asarray(layer, float)).astype(int)
            layers.append((rounded if mask is None else np.where(mask, rounded, MASKED)).tolist())
        queries, keys = ([*map(show_whitespace, tokens)] for tokens in (queries, keys))
        group = {"name": name, "queries": queries, "keys": keys, "weights": layers}
        self.heads.append(group | {"blocks": [*blocks]})

    def content(self) -> str:
        """Return the HTML: facts, then the heads, then the topics, collapsed."""
        topics = (
            f"<details><summary><h2>{topic}</h2><span>{TOPICS[topic]}</span></summary>"
            f'<div class="figures">{"".join(figures)}</div></details>'
            for topic, figures in self.topics.items()
            if figures
        )
        # "<" is escaped, so that no token ends the script.
        heads = json.dumps(self.heads, separators=(",", ":")).replace("<", "\\u003c")
        return Template(TEMPLATE).substitute(
            title=escape(self.title),
            generator=GENERATOR,
            style=STYLE,
            facts="".join(self.facts),
            heads=Template(HEADS).substitute(heads=heads, script=SCRIPT) if self.heads else "",
            topics="".join(topics),
        )


@contextlib.contextmanager
def new_page(folder: Path, title: str) -> Iterator[Page]:
    """Yield a page in a temporary folder, which replaces `folder` when the page is complete."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)  # from an earlier process that was killed
    with disk_errors(folder), isolate_figures():
        try:
            page = Page(temporary, title)
            yield page
            (temporary / PAGE).write_text(page.content(), encoding="utf-8")
            if folder.is_dir():
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(folder: Path) -> Path:
    """Return the folder if it is missing, empty, or an earlier page.

    Raises:
        UserError: it has other files.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    is_page = PAGE in names and all(n == PAGE or n.endswith(".png") for n in names)
    is_page = is_page and is_of_inspect((folder / PAGE).read_bytes())
    if not folder.name or (names and not is_page):
        raise UserError(f"{folder} has files that are not from inspect: choose another --to")
    return folder


def is_of_inspect(content: bytes) -> bool:
    """Return True for a page of `new_page`; earlier ones have heads and no mark."""
    return GENERATOR.encode() in content or b'<div class="heads"><script' in content


def escape(text: str) -> str:
    """Return a text as HTML with symbols for control characters."""
    return html.escape(escape_controls(text))


def preformatted(text: str) -> str:
    """Return a text as HTML with its spaces and line ends."""
    return f"<pre>{escape(text)}</pre>"


def render_bars(shares: Mapping[str, float]) -> str:
    """Return probabilities by name as HTML, each with a bar."""
    rows = (
        f"<span>{escape(name)}</span><span>{share:.3f}</span>"
        f'<i style="width:{100 * share:.1f}%"></i>'
        for name, share in shares.items()
    )
    return f'<div class="bars">{"".join(rows)}</div>'


def render_losses(tokens: Sequence[str], losses: Float[np.ndarray, "N"]) -> str:
    """Return a text as HTML whose tokens are the redder, the larger their loss.

    Args:
        losses: in nats; shown in bits.
    """
    spans = []
    for token, bits in zip(tokens, np.asarray(losses, float) / np.log(2), strict=True):
        style = f"background:rgba(214,39,40,{min(bits / 8, 1):.2f})"
        text = escape(token).replace("\n", "&#8629;<br>")
        spans.append(f'<span style="{style}" title="{bits:.1f} bits">{text}</span>')
    return f'<p class="text">{"".join(spans)}</p>'
