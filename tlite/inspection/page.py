"""One HTML page for a run: its pictures and a view of its heads, with nothing from a network."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
       color: #222; }
h1, h2 { font-weight: 600; } img { max-width: 100%; } figure { margin: 1.5em 0; }
figcaption { color: #555; } .text { font: 14px/1.7 monospace; white-space: pre-wrap; }
.heads .row { font: 14px/1.9 monospace; white-space: nowrap; overflow-x: auto; }
.heads .name { display: inline-block; width: 9.5em; color: #555; }
.heads .token { padding: 2px 1px; margin: 0 1px; border-radius: 3px; }
.heads .queries .token { cursor: pointer; border: 1px solid #ccc; }
.heads .chosen { outline: 2px solid #d62728; }
"""

SCRIPT = """
for (const view of document.querySelectorAll(".heads")) {
  const data = JSON.parse(view.querySelector("script").textContent);
  const mark = text => text.replaceAll(" ", "\\u2423").replaceAll("\\n", "\\u21b5");
  const row = (name, tokens, kind) => {
    const line = document.createElement("div");
    line.className = "row " + kind;
    const title = document.createElement("span");
    title.className = "name";
    title.textContent = name;
    line.append(title);
    for (const text of tokens) {
      const token = document.createElement("span");
      token.className = "token";
      token.textContent = mark(text);
      line.append(token);
    }
    view.append(line);
    return [...line.querySelectorAll(".token")];
  };
  const queries = row("hover here", data.queries, "queries");
  const heads = [];
  data.weights.forEach((layer, l) => layer.forEach((table, h) => {
    heads.push([row(`block ${l} head ${h}`, data.keys, "keys"), table]);
  }));
  const show = query => {
    queries.forEach((token, index) => token.classList.toggle("chosen", index === query));
    for (const [tokens, table] of heads) tokens.forEach((token, key) => {
      const weight = table[query][key];
      token.style.background = `rgba(31, 119, 180, ${weight})`;
      token.style.color = weight > 0.6 ? "white" : "";
      token.title = weight.toFixed(3);
    });
  };
  queries.forEach((token, index) => token.addEventListener("mouseover", () => show(index)));
  show(queries.length - 1);
}
"""


def picture(path: Path, caption: str) -> str:
    """An image file, put into the page itself."""
    content = base64.b64encode(path.read_bytes()).decode()
    words = html.escape(caption)
    return (
        f'<figure><img alt="{words}" src="data:image/png;base64,{content}">'
        f"<figcaption>{words}</figcaption></figure>"
    )


def heads_view(weights: Sequence[np.ndarray], queries: Sequence[str], keys: Sequence[str]) -> str:
    """Hover over a token to see where each head of each block (H, T, S) looks from it."""
    data = {
        "queries": list(queries),
        "keys": list(keys),
        "weights": [np.round(np.asarray(layer, float), 3).tolist() for layer in weights],
    }
    content = json.dumps(data).replace("<", "\\u003c")  # no token can end the script
    return f'<div class="heads"><script type="application/json">{content}</script></div>'


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """The page: each section is a heading and its HTML."""
    body = "".join(f"<h2>{html.escape(name)}</h2>{content}" for name, content in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        f"</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>{body}"
        f"<script>{SCRIPT}</script></body></html>"
    )
