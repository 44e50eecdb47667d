"""explain.html: images, charts and words in one file that asks for nothing from outside."""

from collections.abc import Iterable

from markupsafe import Markup
from torch import Tensor

from vitrail.explain import figures
from vitrail.explain.charts import curve_charts, heads_chart, hue_of
from vitrail.explain.deletion_insertion import Comparison, Row
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
from vitrail.explain.image_maps import ImageMaps, Portrait, percent
from vitrail.report import page
from vitrail.report.drawing import data_uri
from vitrail.report.page import PARTS, Section, macros

MEANING = {
    "relevance": "What spoke for this class, followed back through all blocks.",
    "grad_cam": "The patch tokens where this class reads them, weighted by its gradient.",
    "rollout": "Where attention leads over all blocks. Does not depend on the class.",
    "attention": "Raw attention of block {block}, the mean of its heads. Does not depend on the class.",
    "tokens": "The patch tokens of block {block} by their three principal components: like colours, like tokens.",
}
HOW_JUDGED = (
    "Patches are hidden, in the mean colour, or shown in the order of each map. A map that knows what matters makes the"
    " probability fall early on the left, and rise early on the right. One image says little; a folder says more:"
    " vitrail explain FOLDER --faithfulness."
)
HOW_DRAWN = (
    "A map has one value per patch and is drawn from 0 to its own largest, so two maps can be compared in place, not in"
    " strength. Blocks and heads count from 1; Python counts them from 0."
)

HTML = macros("explain/page.html")


def document(title: str, sections: Iterable[Section], summary: str = "") -> str:
    return page.document(title, sections, summary, note=HOW_DRAWN)


def section(found: ImageMaps, key: str = "picture") -> Section:
    """One image: what it is taken for, why, and which of the explanations to believe."""
    overlays = found.overlays()
    said = "".join(f", {label} {share:.0%}" for label, share in found.classes[:3])
    classes = [(label, share, percent(share)) for label, share in found.classes]
    picture = overlays.pop("picture")
    body = HTML.opening(_inline(picture), f"{found.name} as the model saw it{said}", classes, found.target)
    tiles = [_tile(found, name, overlay) for name, overlay in overlays.items()]
    body += HTML.tiles("Where the model looked", tiles)
    if found.curves:
        deletion = {name: one.deletion.mean(dim=0) for name, one in found.curves.items()}
        insertion = {name: one.insertion.mean(dim=0) for name, one in found.curves.items()}
        rows = [
            [figures.name_of(name), f"{one.deletion_auc.mean():.2f}", f"{one.insertion_auc.mean():.2f}"]
            for name, one in found.curves.items()
        ]
        charts = curve_charts(deletion, insertion)
        body += HTML.curves(charts, rows, note=HOW_JUDGED, title="Which explanation to believe")
    body += _heads(found)
    if found.reconstruction is not None:
        names = ("As it is", "What the encoder saw", "What the decoder reconstructed")
        stages = [
            PARTS.figure(_inline(as_bytes(pixels(stage[0]))), f"{found.name}: {name}", name)
            for stage, name in zip(found.reconstruction[:3], names, strict=True)
        ]
        body += HTML.tiles("Reconstructed from the visible patches", stages)
    return Section(key, found.name, body)


def _tile(found: ImageMaps, name: str, overlay: Array) -> Markup:
    title = "Tokens, as colours" if name == "tokens" else figures.name_of(name)
    words = MEANING[name].format(block=found.layer + 1)
    if name in found.maps and nearly_even(found.maps[name]):
        words += " Nearly even: no patch stands out."
    alt = f"{title} over {found.name}. {words}"
    if name in found.maps:  # in words, for those who can't see it
        values = found.maps[name]
        row, column = divmod(int(values.argmax()), values.shape[1])
        alt += f" Strongest at row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}."
    head = HTML.titled(title, hue_of(name) if name in found.curves else "")
    return PARTS.figure(_inline(overlay), alt, head, words)


def _heads(found: ImageMaps) -> Markup:
    layers = len(found.attention)
    cells = [found.cell(maps) for maps in found.attention]
    picture = head_mosaic(found.picture, found.attention, cells, 96 if layers > 6 else 128, LEAD)
    names = head_names(found.attention)
    below = "a row for each head and one for their mean" if len(names) > 1 else "the mean of its heads"
    alt = f"What {found.attention_of} attends to: a column for each of {layers} blocks, {below}."
    return HTML.heads(found.attention_of, _inline(picture), alt, layers, names)


def model_section(found: Portrait, distance: Tensor, entropy: Tensor, pictures: int) -> Section:
    """What the model does on the whole: reach and spread of attention over the images, positions, filters."""
    charts = [
        heads_chart(
            "Mean attention distance, in pixels", distance, lambda value: f"{value:.0f}", found.farthest,
            "all patches alike",
        ),
        heads_chart(
            "Attention entropy, in nats", entropy, lambda value: f"{value:.2f}", found.most, "all tokens alike: log N"
        ),
    ]  # fmt: skip
    over = f"Mean of {pictures} images." if pictures > 1 else "Of one image."
    note = f"How far attention reaches and how spread it is: a dot per head, a line through their means. {over}"
    weights = []
    if found.positions is not None:
        h, w = found.positions.shape[:2]
        weights.append(
            sharp(
                position_mosaic(found.positions, between=LEAD), f"Position similarity of {h}×{w} patches", "Positions",
                "Each square is the map of the patch at that place: how similar, bright, its position is to all others."
                " Rows and columns show in a model that has learned where patches lie.",
            )
        )  # fmt: skip
    if found.filters is not None:
        filters, share = found.filters
        weights.append(
            sharp(
                filter_mosaic(filters, between=LEAD), f"The first {len(filters)} components of the patch filters",
                "Patch filters",
                f"Their first {len(filters)} principal components, {share.sum():.0%} of the variance: what the first"
                " layer can see of a patch.",
            )
        )  # fmt: skip
    return Section("model", "The model", HTML.model(note, charts, weights))


def comparison_section(found: Comparison) -> Section:
    """The methods side by side over many images."""
    others = [*dict.fromkeys(name for row in found.rows for name in row.against)]
    heads = ["Method", "Deletion", "Insertion"]
    heads += [f"{measure} − {other}" for other in others for measure in ("Deletion", "Insertion")]
    note = (
        f"Areas under the curves of {found.n} images, {found.steps} steps. Lower deletion and higher insertion are"
        f" better. Differences are image by image, {found.how_sure}."
    )
    charts = curve_charts(found.deletion, found.insertion)
    body = HTML.curves(charts, [_compared(row, others) for row in found.rows], heads, note)
    return Section("faithfulness", "Which explanation to believe", body)


def _compared(row: Row, others: list[str]) -> list[str]:
    cells = [figures.name_of(row.method), f"{row.deletion:.3f}", f"{row.insertion:.3f}"]
    for other in others:
        if (both := row.against.get(other)) is None:
            cells += ["–", "–"]
            continue
        for difference, low, high in both:
            interval = f"{low:+.3f} to {high:+.3f}" if low == low else ""  # NaN: too few images
            cells.append(HTML.difference(f"{difference:+.3f}", interval))
    return cells


def sharp(picture: Array, alt: str, title: str, words: str) -> Markup:
    """What has hard edges and no photograph in it, with its caption. It is enlarged without blur, and shrunk with it,
    lest lines of one width come out as several."""
    source = data_uri(encoded(picture, "PNG"), "PNG")
    return PARTS.figure(source, alt, title, words, pixels=picture.shape[1] < 500)


def _inline(picture: Array) -> str:
    return data_uri(encoded(picture, "JPEG"), "JPEG")
