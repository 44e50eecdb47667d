"""`vitrail explain`: what a model sees in images, as PNGs and one page."""

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from vitrail.predict import Predictor

MOST_ON_PAGE = 50  # images: about half a megabyte each, and the page is for reading


def explain(
    images: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES ...", help_behavior_hint="")],
    out: Path | None = None,
    model: str | None = None,
    methods: list[Literal["relevance", "grad_cam", "rollout", "attention"]] | None = None,
    target: str | None = None,
    layer: int | None = None,
    faithfulness: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    fit: Literal["crop", "pad", "stretch", "native"] | None = None,
    architecture: str | None = None,
    image_size: int | None = None,
    batch_size: int = 16,
    device: str | None = None,
) -> int:
    """Shows what a model looks at, and why it says what it says: a folder of PNGs per image, and one explain.html.

    Images that can't be used are named and skipped, and the exit code is then 1.

    Args:
        images: Images, or folders of images.
        out: The folder to write; by default runs/explained or, if a page is there already, runs/explained-2 and so on.
        model: A run folder, a checkpoint, hf://org/name, or a catalog name; by default the model that ships inside.
        methods: Which explanations; all that the model allows by default.
        target: The class to explain, by label or index; for each image its likeliest by default.
        layer: The block whose attention and tokens are shown, from 1 as on the page, or from the end as -1; the model's
            own choice by default.
        faithfulness: Do not draw each image but compare the methods on all of them: hide and show patches in the
            order of each map, and see which the model minds most.
        fit: How an image is brought to the model's size; as the model was trained by default.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        image_size: Side to which images are brought; the model's own by default.
        batch_size: Images at a time, with --faithfulness.
        device: cpu or cuda; the GPU where there is one.
    """
    from vitrail.cli.pictures import collect, needed, report_skipped, to_the_end
    from vitrail.errors import VitrailError

    if batch_size < 1:
        raise VitrailError(f"--batch-size must be at least 1, got {batch_size}.")
    if layer == 0:
        raise VitrailError("--layer counts from 1, as the page does; -1 is the last.")
    page = "faithfulness.html" if faithfulness else "explain.html"
    out = free_folder(page) if out is None else out
    if out.exists() and not out.is_dir():
        raise VitrailError(f"--out names a folder, and {out} is a file.")
    paths = collect(images)
    from vitrail.predict import load  # brings torch

    loaded = load(needed(model), architecture, image_size, device, fit)
    predictor = loaded.backbone
    if predictor is not loaded:
        print(f"Looks into the backbone: what a run that was made to {loaded.task} says is drawn by `vitrail predict`.")
    index = None if target is None else predictor.class_index(target)
    if (out / page).exists():
        print(f"{out / page} of an earlier call is replaced; PNGs of its other pictures stay. Another --out keeps it.")
    bad: list[str] = []
    with to_the_end():
        if faithfulness:
            compare_methods(predictor, paths, out, methods, index, batch_size, bad)
        else:
            explain_each(predictor, paths, out, methods, index, numbered(layer, predictor), bad)
    return report_skipped(bad, len(paths))


def free_folder(page: str) -> Path:
    """The first of runs/explained, runs/explained-2 … without such a page: one that nobody asked to replace stays."""
    base = Path("runs/explained")
    tries = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in itertools.count(1))
    return next(folder for folder in tries if not (folder / page).exists())


def numbered(layer: int | None, predictor: "Predictor") -> int | None:
    """A block as people count, from 1, as Python does, from 0."""
    from vitrail.errors import VitrailError
    from vitrail.explain.looking import seeing
    from vitrail.models.attention_maps import attention_layers

    depth = len(attention_layers(seeing(predictor.model)))
    if layer is None or -depth <= layer < 0:
        return layer
    if not 1 <= layer <= depth:
        raise VitrailError(f"This model has blocks 1 to {depth}; there is no block {layer}.")
    return layer - 1


def explain_each(
    predictor: "Predictor",
    paths: list[Path],
    out: Path,
    methods: Any,
    index: int | None,
    layer: int | None,
    bad: list[str],
) -> None:
    from vitrail.cli.pictures import progress
    from vitrail.errors import VitrailError
    from vitrail.explain import figures
    from vitrail.explain.deletion_insertion import usable
    from vitrail.explain.explanation import portrait, write
    from vitrail.explain.image_maps import percent
    from vitrail.explain.page import document, model_section, section
    from vitrail.inference.decoding import named

    usable(predictor.model, methods)  # better refused now than once for every image
    sections: list[Any] = []
    tables: list[tuple[Any, Any]] = []
    sizes, names = set[tuple[int, int]](), set[str]()
    with telling(out, tables), progress(len(paths)) as advance:
        for path in paths:
            try:
                found = predictor.explain(path, index, methods, layer)
            except VitrailError as error:
                bad.append(str(named(path, error)))
                advance()
                continue
            folder = folder_name(path, names)
            found.save_pictures(out / folder)
            if len(sections) < MOST_ON_PAGE:
                sections.append(section(found, key=f"picture-{len(sections)}"))
            tables.append((found.distance, found.entropy))
            sizes.add((found.picture.shape[0], found.picture.shape[1]))
            said = f"{found.classes[0][0]} {found.classes[0][1]:.1%}, " if found.classes else ""
            other = found.target and found.target != found.classes[0][0]
            asked = f"explained: {found.target} {percent(found.share or 0)}, " if other else ""
            print(f"{path}: {said}{asked}in {out / folder}")
            advance()
    if not tables:
        return
    distance, entropy = (sum(table) / len(table) for table in zip(*tables, strict=True))
    size = sizes.pop() if len(sizes) == 1 else None
    model = portrait(predictor.model, size)
    charts = {
        "attention_distance": figures.distance_figure(distance, model.farthest),
        "attention_entropy": figures.entropy_figure(entropy, model.most),
        **model.figures(),
    }
    for name, figure in charts.items():
        write(out / "model" / f"{name}.png", figures.png(figure))
    done, name = len(tables), predictor.name or "the model"
    left = f"; the page shows the first {MOST_ON_PAGE}" if done > MOST_ON_PAGE else ""
    of = "several sizes" if size is None else f"{size[0]}×{size[1]}"
    summary = f"{done} {'picture' if done == 1 else 'pictures'} of {of}{left}."
    page = document(f"Looking inside {name}", [*sections, model_section(model, distance, entropy, done)], summary)
    print(f"{write(out / 'explain.html', page)}: {summary}")


@contextmanager
def telling(out: Path, drawn: list[Any]) -> Iterator[None]:
    """Whoever interrupts is told what there is already."""
    from vitrail.data.samples import plural

    try:
        yield
    except KeyboardInterrupt:
        if not drawn:
            raise
        raise KeyboardInterrupt(f"Stopped; {plural(len(drawn), 'picture')} drawn in {out}, but no page.") from None


def folder_name(path: Path, taken: set[str]) -> str:
    """The image's name without its ending, safe as a folder, and with a number where another has it already."""
    plain = re.sub(r"[^\w.-]+", "_", path.stem).strip(".") or "picture"
    name, number = plain, 2
    while name.lower() in taken | {"model"}:
        name, number = f"{plain}_{number}", number + 1
    taken.add(name.lower())
    return name


def compare_methods(
    predictor: "Predictor",
    paths: list[Path],
    out: Path,
    methods: Any,
    index: int | None,
    batch_size: int,
    bad: list[str],
) -> None:
    from vitrail.cli.pictures import progress
    from vitrail.explain import compare, figures
    from vitrail.explain.explanation import write
    from vitrail.explain.page import comparison_section, document

    # What a method has to beat is always in the table.
    chosen = None if methods is None else [*dict.fromkeys([*methods, "attention", "random"])]
    with progress(len(paths), batch_size) as advance:
        pictures = ((x, index) for x in batches(predictor, paths, batch_size, bad, advance))
        found = compare(predictor.model, pictures, chosen, multi_label=predictor.multi_label, advance=advance)
    print(found)
    write(out / "faithfulness.json", json.dumps(found.as_dict(), indent=2))
    write(out / "faithfulness.png", figures.png(figures.comparison_figure(found)))
    title = f"Explanations of {predictor.name or 'the model'}, compared"
    page = document(title, [comparison_section(found)])
    print(f"{write(out / 'faithfulness.html', page)}, and the same as .json and .png")


def batches(predictor: "Predictor", paths: list[Path], batch_size: int, bad: list[str], advance: Any) -> Iterator[Any]:
    """Images of one size at a time, as the model takes them; decoded in threads, a few batches ahead."""
    import numpy as np
    import torch

    from vitrail.inference.decoding import decoded

    for batch in decoded(paths, predictor.preprocessing, batch_size):
        groups: dict[tuple[int, ...], list[np.ndarray]] = {}
        for picture in batch:
            if picture.views is None:
                bad.append(str(picture.error))
                advance()
            else:
                groups.setdefault(picture.views.shape, []).append(picture.views[0])
        for pictures in groups.values():
            yield predictor.normalised(torch.from_numpy(np.stack(pictures)))
