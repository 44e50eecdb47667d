"""explain.html: pictures, charts and words in one file that asks for nothing from outside."""

import base64
import html
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from vitrail.explain import figures
from vitrail.explain.deletion_insertion import Comparison
from vitrail.explain.drawing import (
    LEAD,
    Array,
    as_bytes,
    encoded,
    filter_mosaic,
    head_mosaic,
    head_names,
    nearly_even,
    pixels,
    position_mosaic,
)
from vitrail.explain.explanation import Explanation, Portrait, percent

MEANING = {
    "relevance": "What spoke for this class, followed back through all blocks.",
    "grad_cam": "The patch tokens where this class reads them, weighted by its gradient.",
    "rollout": "Where attention leads over all blocks. Knows nothing of classes.",
    "attention": "Raw attention of block {block}, the mean of its heads. Knows nothing of classes.",
    "tokens": "The patch tokens of block {block} by their three principal components: like colours, like tokens.",
}
HOW_JUDGED = (
    "Patches are hidden, in the mean colour, or shown in the order of each map. A map that knows what matters makes the"
    " probability fall early on the left, and rise early on the right. One picture says little; a folder says more:"
    " vitrail explain FOLDER --faithfulness."
)
HOW_DRAWN = (
    "A map has one value per patch and is drawn from 0 to its own largest, so two maps can be compared in place, not in"
    " strength. Blocks and heads count from 1; Python counts them from 0."
)


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def document(title: str, sections: Iterable[str], summary: str = "", note: str = HOW_DRAWN) -> str:
    """The whole page; `note` stands at its foot."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    # The policy makes sure of what the page promises: nothing is asked from outside, whatever a name may hold.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    under = f"<p>{escape(summary)}</p>" if summary else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="generator" content="Vitrail">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{under}</header><main>{''.join(sections)}</main>"
        f"<footer>Made by Vitrail. {note} This page asks for nothing from outside.</footer></body></html>\n"
    )


def _section(key: str, title: str, parts: Iterable[str]) -> str:
    head = f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>'
    return head + "".join(parts) + "</section>"


def section(found: Explanation, key: str = "picture") -> str:
    """One picture: what it is taken for, why, and which of the explanations to believe."""
    overlays = found.overlays()
    parts = [_first(found, overlays.pop("picture"))]
    tiles = "".join(_tile(found, name, picture) for name, picture in overlays.items())
    parts.append(f'<h3>Where the model looked</h3><div class="tiles">{tiles}</div>')
    if found.curves:
        areas = [
            f"{figures.name_of(name)}: deletion {curves.deletion_auc.mean():.2f},"
            f" insertion {curves.insertion_auc.mean():.2f}"
            for name, curves in found.curves.items()
        ]
        words = escape(f"Deletion and insertion curves, areas under them. {'; '.join(areas)}.")
        chart = figures.inline_svg(figures.curves_figure(found.curves), words)
        parts.append(f'<h3>Which to believe</h3><p class="note">{HOW_JUDGED}</p>{_chart(chart)}')
    parts.append(_heads(found))
    if found.reconstruction is not None:
        names = ("As it is", "What the encoder saw", "What the decoder painted")
        stages = [
            f"<figure>{inline_image(as_bytes(pixels(stage[0])), f'{found.name}: {name}')}"
            f"<figcaption><b>{name}</b></figcaption></figure>"
            for stage, name in zip(found.reconstruction[:3], names, strict=True)
        ]
        parts.append(f'<h3>Painted from a part</h3><div class="tiles">{"".join(stages)}</div>')
    return _section(key, found.name, parts)


def _first(found: Explanation, picture: Array) -> str:
    said = "".join(f", {label} {share:.0%}" for label, share in found.classes[:3])
    shown = inline_image(picture, f"{found.name} as the model saw it{said}")
    bars = [
        f'<li style="--v:{share:.4f}"{" class=asked" if label == found.target else ""}>'
        f"<span>{escape(label)}</span><span>{percent(share)}</span></li>"
        for label, share in found.classes
    ]
    beside = f'<ol class="classes">{"".join(bars)}</ol>' if bars else "<p>This model gives features, not classes.</p>"
    asked = f'<p class="note">Explained: {escape(found.target)}.</p>' if found.target else ""
    return f'<div class="first"><figure>{shown}</figure><div>{beside}{asked}</div></div>'


def _tile(found: Explanation, name: str, picture: Array) -> str:
    title = "Tokens, as colours" if name == "tokens" else figures.name_of(name)
    swatch = f'<span class="swatch" style="background:var(--{name.replace("_", "-")})"></span>'
    words = MEANING[name].format(block=found.layer + 1)
    if name in found.maps and nearly_even(found.maps[name]):
        words += " Nearly even: no patch stands out."
    alt = f"{title} over {found.name}. {words}"
    if name in found.maps:  # in words, for those who can't see it
        values = found.maps[name]
        row, column = divmod(int(values.argmax()), values.shape[1])
        alt += f" Strongest at row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}."
    head = f"<b>{swatch if name in found.curves else ''}{title}</b>"
    return f"<figure>{inline_image(picture, alt)}<figcaption>{head}{words}</figcaption></figure>"


def _heads(found: Explanation) -> str:
    layers = len(found.attention)
    cells = [found.cell(maps) for maps in found.attention]
    picture = head_mosaic(found.picture, found.attention, cells, 96 if layers > 6 else 128, LEAD)
    names = head_names(found.attention)
    rows = "".join(f"<span>{name}</span>" for name in names)
    columns = "".join(f"<span>block {i + 1}</span>" for i in range(layers))
    below = "a row for each head and one for their mean" if len(names) > 1 else "the mean of its heads"
    alt = f"What {found.attention_of} attends to: a column for each of {layers} blocks, {below}."
    return (
        f'<h3>What {found.attention_of} attends to, block by block</h3><div class="wide" tabindex="0">'
        f'<div class="heads" style="--layers:{layers}"><div class="columns" aria-hidden="true">{columns}</div>'
        f'<div class="rows" aria-hidden="true">{rows}</div>'
        f"{inline_image(picture, alt)}</div></div>"
    )


def model_section(found: Portrait, distance: Tensor, entropy: Tensor, pictures: int) -> str:
    """What the model does on the whole: reach and spread of attention over the pictures, positions, filters."""

    def ends(table: Tensor, unit: str, digits: int) -> str:
        first, last = (f"{float(row.nanmean()):.{digits}f}" for row in (table[0], table[-1]))
        return f"by block: {first} {unit} in block 1, {last} in block {len(table)}. A dot per head."

    reach = figures.inline_svg(
        figures.distance_figure(distance, found.farthest), f"Mean attention distance {ends(distance, 'pixels', 0)}"
    )
    spread = figures.inline_svg(
        figures.entropy_figure(entropy, found.most), f"Attention entropy {ends(entropy, 'nats', 1)}"
    )
    over = f"Mean of {pictures} pictures." if pictures > 1 else "Of one picture."
    words = f"How far attention reaches and how spread it is: a dot per head, a line through their means. {over}"
    weights = ""
    if found.positions is not None:
        h, w = found.positions.shape[:2]
        picture = inline_image(
            position_mosaic(found.positions, between=LEAD), f"Position similarity of {h}×{w} patches", "PNG"
        )
        weights += _weights(
            picture,
            "Positions",
            "Each square is the map of the patch at that place: how similar, bright, its position is to all others."
            " Rows and columns show in a model that has learned where patches lie.",
        )
    if found.filters is not None:
        filters, share = found.filters
        alt = f"The first {len(filters)} principal components of the patch filters"
        weights += _weights(
            inline_image(filter_mosaic(filters, between=LEAD), alt, "PNG"),
            "Patch filters",
            f"Their first {len(filters)} principal components, {share.sum():.0%} of the variance: what the first layer"
            " can see of a patch.",
        )
    charts = f'<div class="two"><figure>{reach}</figure><figure>{spread}</figure></div>'
    return _section("model", "The model", [f'<p class="note">{words}</p>', charts, f'<div class="two">{weights}</div>'])


def _weights(picture: str, title: str, words: str) -> str:
    return f"<figure>{picture}<figcaption><b>{title}</b>{words}</figcaption></figure>"


def comparison_section(found: Comparison) -> str:
    """The methods side by side over many pictures."""
    areas = "; ".join(f"{figures.name_of(r.method)} {r.deletion:.3f} and {r.insertion:.3f}" for r in found.rows)
    chart = figures.inline_svg(figures.comparison_figure(found), escape(f"Mean deletion and insertion areas: {areas}."))
    others = [*dict.fromkeys(name for row in found.rows for name in row.against)]
    head = "".join(f"<th scope=col>deletion − {o}</th><th scope=col>insertion − {o}</th>" for o in others)
    body = ""
    for row in found.rows:
        cells = f"<td>{row.deletion:.3f}</td><td>{row.insertion:.3f}</td>"
        for other in others:
            both = row.against.get(other)
            cells += "<td>–</td><td>–</td>" if both is None else ""
            for difference, low, high in both or ():
                interval = f"<small>{low:+.3f} to {high:+.3f}</small>" if low == low else ""  # NaN: too few pictures
                cells += f"<td>{difference:+.3f}{interval}</td>"
        body += f"<tr><th scope=row>{figures.name_of(row.method)}</th>{cells}</tr>"
    words = (
        f"Areas under the curves of {found.n} pictures, {found.steps} steps. Lower deletion and higher insertion are"
        f" better. Differences are picture by picture, {found.how_sure}."
    )
    table = (
        f'<div class="wide" tabindex="0"><table><caption>{words}</caption><thead><tr><td></td>'
        f"<th scope=col>deletion</th><th scope=col>insertion</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    return _section("faithfulness", "Which explanation to believe", [_chart(chart), table])


def _chart(svg: str) -> str:
    """On a phone it keeps letters that can be read, and is moved sideways; by keys too."""
    return f'<figure class="chart" tabindex="0">{svg}</figure>'


def inline_image(picture: Array, alt: str, kind: str = "JPEG") -> str:
    """PNG is for what has hard edges and no photograph in it. It is enlarged without blur, and shrunk with it, lest
    lines of one width come out as several."""
    content = base64.b64encode(encoded(picture, kind)).decode()
    look = ' class="pixels"' if kind == "PNG" and picture.shape[1] < 500 else ""
    return f'<img{look} src="data:image/{kind.lower()};base64,{content}" alt="{escape(alt)}">'
