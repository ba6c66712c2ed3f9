"""One HTML page for a model: facts, its heads, and pictures by topic, with no network."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from tlite.inspection import head_view
from tlite.inspection.plots import readable

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --line: #d1d9e0;
  --page: #fff; --card: #f6f8fa; --accent: #1f77b4; --chosen: #cf222e; --hatch: #b6bec7;
  --hover: #eaeef2; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --dim: #9198a1; --line: #3d444d; --page: #0d1117; --card: #151b23;
    --accent: #58a6ff; --chosen: #ff7b72; --hatch: #4d5661; --hover: #21262d; }
  /* White ground to the page's own, dark ink to light, and every hue as it was. */
  img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1240px; margin: 1.5em auto; padding: 0 1em;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }
h1, h2 { font-weight: 600; line-height: 1.25; margin: 1.2em 0 .5em; }
h1 { font-size: 1.6em; margin-top: 0; } h2 { font-size: 1.2em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35em 1.2em; margin: 0; }
dt { color: var(--dim); } dd { margin: 0; }
@media (max-width: 600px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4em; } }
pre, .text { font: 14px/1.6 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  margin: 0; }
pre, .text { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .5em .8em; max-height: 22em; overflow: auto; }
.bars { display: grid; grid-template-columns: max-content max-content minmax(4em, 16em);
  gap: .1em .8em; align-items: center; margin-top: .5em; }
.bars i { display: block; height: .8em; background: var(--accent); border-radius: 2px; }
details { border-top: 1px solid var(--line); padding: .2em 0; } .heads { margin-bottom: 1.5em; }
summary { cursor: pointer; padding: .4em 0; } summary h2 { display: inline; }
summary span { color: var(--dim); margin-left: .6em; }
.figures { display: flex; flex-wrap: wrap; gap: 1.5em 2em; align-items: flex-start; }
figure { margin: .5em 0; max-width: min(100%, 62em); min-width: min(100%, 26em); }
figure div { overflow-x: auto; } figure img { max-width: 100%; height: auto; display: block; }
@media (max-width: 600px) { figure img { max-width: 40em; } }
figcaption { color: var(--dim); margin-top: .3em; width: 0; min-width: min(100%, 44em); }
"""


def picture(path: Path, caption: str) -> str:
    """An image file, put into the page itself, with a sentence on what is seen."""
    content = base64.b64encode(path.read_bytes()).decode()
    return figure(f'<div><img alt="" src="data:image/png;base64,{content}"></div>', caption)


def figure(content: str, caption: str) -> str:
    """HTML with a sentence on what is seen."""
    return f"<figure>{content}<figcaption>{html.escape(readable(caption))}</figcaption></figure>"


def sample(text: str) -> str:
    """A text as it was written, lines and all."""
    return f"<pre>{html.escape(readable(text))}</pre>"


def bars(shares: Mapping[str, float]) -> str:
    """Probabilities by name, each with a bar."""
    rows = (
        f"<span>{html.escape(readable(name))}</span><span>{share:.3f}</span>"
        f'<i style="width:{100 * share:.1f}%"></i>'
        for name, share in shares.items()
    )
    return f'<div class="bars">{"".join(rows)}</div>'


def page(
    title: str,
    facts: Sequence[tuple[str, str]],
    heads: str,
    topics: Sequence[tuple[str, str, str]],
) -> str:
    """The page: what the model is, then its heads, then the rest, folded.

    Args:
        facts: names, and their HTML.
        heads: the HTML of the `head_view`; empty: there is none.
        topics: a title, a sentence on what it holds, and the HTML.
    """
    name = html.escape(readable(title))
    told = "".join(f"<dt>{html.escape(fact)}</dt><dd>{content}</dd>" for fact, content in facts)
    folds = "".join(
        f"<details><summary><h2>{html.escape(topic)}</h2><span>{html.escape(sentence)}</span>"
        f'</summary><div class="figures">{content}</div></details>'
        for topic, sentence, content in topics
    )
    view = f"<h2>What each head looks at</h2>{heads}<script>{head_view.SCRIPT}</script>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{STYLE}{head_view.STYLE}</style></head>"
        f"<body><h1>{name}</h1><dl>{told}</dl>{view if heads else ''}{folds}</body></html>\n"
    )
