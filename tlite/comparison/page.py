"""One HTML page for a comparison: sentences, tables and pictures, with nothing from a network."""

import base64
import html
from collections.abc import Mapping, Sequence

from tlite.comparison.results import Results
from tlite.comparison.tables import Table, field_table, result_table

LONGEST = 60  # letters of a title
STYLE = """
:root { color-scheme: light dark; --text: #222; --dim: #555; --line: #d0d0d0; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --dim: #aaa; --line: #444; --page: #16181c; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
       color: var(--text); background: var(--page); overflow-wrap: anywhere; }
h1, h2 { font-weight: 600; line-height: 1.2; } h1 { font-size: 1.5em; } h2 { font-size: 1.2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; vertical-align: bottom; } td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
       min-width: 7em; max-width: 22em; }
figure { margin: 1.5em 0; } figcaption, .notes { color: var(--dim); }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
"""


def page(results: Results, pictures: Mapping[str, tuple[str, bytes]]) -> str:
    """The page; pictures by file name, a caption and a PNG each."""
    labels = [row.label for row in results.rows]
    title = f"Compared: {', '.join(labels)}"
    if len(title) > LONGEST:
        title = f"Compared: {len(labels)} runs"
    parts = [f"<h1>{html.escape(title)}</h1>", _list(results.verdicts, "verdicts")]
    parts += ["<h2>Results</h2>", _table(result_table(results))]
    if fields := field_table(results):
        parts += ["<h2>What differs between the configs</h2>", _table(fields)]
    if results.notes:
        parts += ["<h2>Notes</h2>", _list(results.notes, "notes")]
    if pictures:
        parts += ["<h2>Pictures</h2>", *(_figure(*picture) for picture in pictures.values())]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _list(sentences: Sequence[str], kind: str) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _table(table: Table) -> str:
    header, *rows = table
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _figure(caption: str, content: bytes) -> str:
    words, data = html.escape(caption), base64.b64encode(content).decode()
    return (
        f'<figure><img alt="{words}" src="data:image/png;base64,{data}">'
        f"<figcaption>{words}</figcaption></figure>"
    )
