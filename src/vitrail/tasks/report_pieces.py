"""What the sections of a report are made of, as HTML: tables, lists of files, pictures with their answers."""

import re
from collections.abc import Collection, Sequence

from vitrail.tasks.charts import escape, number, percent
from vitrail.tasks.report import Picture

MOST_ROWS, MOST_PICTURES = 200, 60  # the page is for reading, and small enough to be mailed

WINDOW = (
    '<svg class="window" viewBox="0 0 48 66" aria-hidden="true"><clipPath id="arch"><path d="M2 64V25C2 12 12 4 24 2'
    'c12 2 22 10 22 23v39z"/></clipPath><g clip-path="url(#arch)">'
    + "".join(
        f'<polygon points="{points}" fill="{fill}"/>'
        for points, fill in (
            ("0,0 24,0 24,17 11,22 0,20", "#3f62c4"), ("24,0 48,0 48,20 37,22 24,17", "#2b4499"),
            ("0,20 11,22 14,35 0,40", "#8da8e6"), ("48,20 37,22 34,35 48,40", "#5f80d6"),
            ("11,22 24,17 37,22 34,35 24,41 14,35", "#e0ac4a"), ("0,40 14,35 24,41 24,54 8,58 0,54", "#2b4499"),
            ("48,40 34,35 24,41 24,54 40,58 48,54", "#3f62c4"), ("0,54 8,58 10,66 0,66", "#b5475a"),
            ("48,54 40,58 38,66 48,66", "#8da8e6"), ("8,58 24,54 40,58 38,66 10,66", "#5f80d6"),
        )
    )
    + '</g><path class="lead" d="M2 64V25C2 12 12 4 24 2c12 2 22 10 22 23v39z"/></svg>'
)  # fmt: skip


def tabled(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Collection[int] = ()) -> str:
    """Cells are HTML already."""
    kind = ["num" if i in numeric else "path" if head.startswith("File") else "" for i, head in enumerate(heads)]
    head = "".join(f'<th scope="col" class="{k}">{escape(name)}</th>' for k, name in zip(kind, heads, strict=True))
    body = ""
    for row in rows:
        cells = "".join(f'<td class="{k}">{cell}</td>' for k, cell in zip(kind, row, strict=True))
        body += f"<tr>{cells}</tr>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """A table of files behind its title and their number; open where they are few. Cells and note are HTML already."""
    more = f'<p class="muted">… and {number(len(rows) - MOST_ROWS)} more.</p>' if len(rows) > MOST_ROWS else ""
    opened = " open" if len(rows) <= 12 else ""
    head = f'<summary>{escape(title)} <span class="muted">{number(len(rows))}</span></summary>'
    return f"<details{opened}>{head}{note}{tabled(title, heads, rows[:MOST_ROWS])}{more}</details>"


def gallery(pictures: Sequence[Picture], verb: str = "said") -> str:
    cards = "".join(_card(picture, verb) for picture in pictures[:MOST_PICTURES])
    return f'<ul class="gallery">{cards}</ul>'


def _card(picture: Picture, verb: str) -> str:
    safe = picture.image.startswith("data:image/")
    pixels = ' class="pixels"' if picture.image.startswith("data:image/png") else ""
    words = f"{verb} {picture.predicted}, label {picture.true}"
    image = f'<img src="{escape(picture.image)}" alt="{escape(words)}"{pixels} loading="lazy">' if safe else ""
    true = "" if picture.true_probability is None else f" <span>{percent(picture.true_probability)}</span>"
    file = f'<p class="file">{_parted(escape(picture.name))}</p>' if picture.name else ""
    label = f"<div><dt>label</dt> <dd>{_parted(isolated(picture.true))}{true}</dd></div>"
    label = "" if picture.true == picture.predicted and true else label  # it says the same
    verb = verb if label else f"{verb}, rightly,"
    return (
        f'<li><div class="frame">{image}</div><dl>'
        f'<div class="said"><dt>{verb}</dt> <dd>{_parted(isolated(picture.predicted))} '
        f"<span>{percent(picture.probability)}</span></dd></div>{label}</dl>{file}</li>"
    )


def _parted(words: str) -> str:
    """HTML of a name that is broken, where it has to be, behind _ and /."""
    return re.sub(r"(?<!<)([/_])", r"\1<wbr>", words)


def isolated(text: str) -> str:
    """A name from outside, kept from turning the direction of the sentence around it."""
    return f"<bdi>{escape(text)}</bdi>"
