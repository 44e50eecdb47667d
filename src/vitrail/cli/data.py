"""`vitrail data`: what is in a data set, before anything is learned from it."""

import json as json_format
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitrail.cli.options import helpful

LISTED = 40  # classes, or files with a problem, that are shown; --json has all
FEW = 5  # of those whose problem is one and the same: a column or a folder that is not there


def inspect(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    task: str = "classify",
    image_size: int | None = None,
    out: Path = Path("runs/inspection.png"),
    json: Path | None = None,
    workers: int | None = None,
) -> int:
    """Reads every image of a data set, and says what is there, what is broken and what is there twice.

    Draws a few images as the model would see them under --fit crop, pad and stretch, or with their masks or boxes.
    The exit code is 0, or 1 if some files can't be read, some labels are lost or people are in two splits, or 2 if the
    data can't be used at all.

    Args:
        data: Class folders, a .csv or .parquet table, .tar shards, the name of a torchvision data set, or hf:org/name;
            with --task segment images/ beside masks/, a table path,mask or COCO's JSON; with --task detect COCO's JSON,
            Pascal VOC's or YOLO's folders; with --task spoof folders live/ and attack types, a table or lists of faces;
            with --task regress a table path,value[,value2…].
        task: What it is to be used for, as in `train --task`; pretrain takes images without labels, too.
        image_size: Side of the model's input, for the image; by default what `train` chooses for such images
            where public weights can be had.
        out: Where to draw the image.
        json: Also write all of it as JSON, with every file that has a problem.
        workers: Threads that decode; by default one for each core, 16 at most.
    """
    import warnings

    from vitrail.cli.pictures import progress, writing
    from vitrail.data.existence import check_exists
    from vitrail.errors import VitrailError
    from vitrail.tasks import registry

    if image_size is not None and image_size < 1:
        raise VitrailError(f"--image-size must be at least 1, got {image_size}.")
    name = "reconstruct" if task == "pretrain" else task
    registry.check(name)
    check_exists(data, registry.expects(name), registry.takes_names(name))
    _check_writable(out)  # better known now than after an hour of images
    from vitrail.data import inspect as inspection  # brings torch, as do the others
    from vitrail.data.inspect import sheet

    sheet.kind_of(out)  # which refuses what it can't be drawn as
    warnings.filterwarnings("ignore", module="PIL")  # about a file, without its name; what matters is listed below
    with writing(json) as report:
        source = registry.task(name).inspected(data)
        with progress(len(source)) as advance:
            found = inspection.inspect(source, workers, lambda *_: advance())
        pre = suited(found, image_size)
        show(found, max(pre.size))
        if report:
            report.write(json_format.dumps(found.as_dict(), indent=2, ensure_ascii=False) + "\n")
    print()
    if json:
        print(f"All of this as JSON: {json}")
    if found.seen:
        drawn = registry.task(name).draw_samples(source, out)
        title, path = drawn or ("What the model will see", sheet.picture(source, out, pre, found))
        print(f"{title}: {path}")
    return 1 if found.unreadable or (found.labelled and found.labelled.flawed) else 0


def suited(found: Any, side: int | None) -> Any:
    """How `train` would prepare these images, by the same look at a few of those it learns from."""
    from dataclasses import replace

    from torch.cuda import is_available

    from vitrail.models import resolve
    from vitrail.tasks import backbones

    split = next((split for split, looks in found.looks.items() if any(looks)), None)
    samples = [] if split is None else found.source.splits[split]
    readable = [sample for sample, look in zip(samples, found.looks.get(split, []), strict=True) if look]
    largest = backbones.typical_side(readable) if readable else 0
    side = side or backbones.suited_side(largest)
    return replace(resolve(backbones.suited(largest, is_available()))[0].preprocessing, size=(side, side))


def show(found: Any, image_size: int) -> None:
    """The inspection for a reader: classes, then sizes, then what is wrong."""
    from rich.console import Console
    from rich.markup import escape

    from vitrail.cli.pictures import pace
    from vitrail.data.samples import plural, some

    console = Console()
    if not console.is_terminal:
        console.width = 160
    source = found.source
    seen = found.seen
    splits = "" if list(source.splits) == ["all"] else f" in {', '.join(source.splits)}"
    labels = ", several to a picture" if source.multi_label else ""
    broken = f", {len(found.unreadable):,} of which can't be read" if found.unreadable else ""
    ranges = getattr(found.labelled, "ranges", None)
    classes = f"{len(source.classes):,} classes{labels}" if source.classes else "no labels"
    if ranges:
        classes = plural(len(source.classes), "number") + " for each"
    console.print(
        f"[bold]{escape(source.name)}[/]: {len(source):,} pictures{splits}{broken}, "
        f"{classes} [dim]({pace(len(source) / max(found.seconds, 1e-9))})[/]",
        highlight=False,
    )
    if source.classes:
        console.print()
        console.print(_range_table(ranges) if ranges else _class_table(found))
    if people := getattr(found.labelled, "people", None):
        console.print()
        console.print(_people_table(source.classes, people))
    lines = [*found.labelled.facts.items()] if found.labelled else []
    if found.imbalance is not None and len(source.classes) > 1 and not found.labelled:
        even = "the classes are of one size" if found.imbalance == 1 else "the largest class over the smallest"
        lines.append(("imbalance", f"{found.imbalance:.1f}×, {even}"))
    for side, (least, median, most) in found.sizes().items():
        form = "{:.2f}" if side == "aspect" else "{:.0f}"
        lines.append((side, f"{form} to {form}, median {form}".format(least, most, median)))
    small = sum(min(look.height, look.width) < image_size for look in seen)
    if small:
        lines.append(("small", f"{small:,} with a side below {image_size} pixels, which will be enlarged"))
    kinds = Counter(f"{look.format} {look.mode}" for look in seen).most_common()
    lines.append(("files", some((f"{count:,} {kind}" for kind, count in kinds), 8)))
    for name, count in (("grey", sum(look.grey for look in seen)), ("turned", sum(look.turned for look in seen))):
        what = "without colour" if name == "grey" else "stored on their side or mirrored, and put upright"
        if count:
            lines.append((name, f"{count:,} {what} ({count / len(seen):.1%})"))
    print()
    for name, text in lines:
        console.print(f"[dim]{name:>10}[/]  {text}", highlight=False, soft_wrap=True)
    _show_problems(found, console)


def _class_table(found: Any) -> Any:
    """Every class, or the largest and the smallest of many."""
    from rich.markup import escape
    from rich.table import Table

    source = found.source
    counts = {split: found.counts(split) for split in source.splits}
    total = [sum(numbers) for numbers in zip(*counts.values(), strict=True)]
    bad = Counter(label for one in found.unreadable for label in one.labels)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("class", overflow="fold")
    columns = list(source.splits) + (["together"] if len(counts) > 1 else []) + (["unreadable"] if bad else [])
    amounts = _amounts(found)
    for title in [*columns, *(name for name, _ in amounts)]:
        table.add_column("pictures" if title == "all" else title, justify="right", no_wrap=True)

    def add(name: str, numbers: list[int], unreadable: int, more: list[str], style: str | None = None) -> None:
        cells = numbers + ([sum(numbers)] if len(counts) > 1 else []) + ([unreadable] if bad else [])
        table.add_row(escape(name), *(f"{number:,}" for number in cells), *more, style=style)

    order = list(range(len(source.classes)))
    if len(order) > LISTED:
        by_size = sorted(order, key=lambda index: (-total[index], source.classes[index]))
        groups = [by_size[: LISTED // 2], by_size[-LISTED // 2 :]]
    else:
        groups = [order]
    for number, group in enumerate(groups):
        if number:
            table.add_row(f"… {len(order) - LISTED:,} classes of a size between …", style="dim")
        for index in group:
            name = source.classes[index]
            numbers, more = [counts[split][index] for split in counts], [cells[index] for _, cells in amounts]
            add(name, numbers, bad[name], more, "red" if not total[index] else None)
    if not source.multi_label:
        add("all", [sum(numbers) for numbers in counts.values()], sum(bad.values()), [], "bold")
    return table


def _range_table(ranges: dict[str, dict[str, tuple[float, float, float]]]) -> Any:
    """Of each column of numbers the least, the median and the greatest in each split."""
    from rich.markup import escape
    from rich.table import Table

    from vitrail.report.numbers import number

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("number", overflow="fold")
    table.add_column("split")
    for name in ("least", "median", "greatest"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [(name, split, ends) for split, columns in ranges.items() for name, ends in columns.items()]
    for name, split, ends in rows[:LISTED]:
        table.add_row(escape(name), split, *map(number, ends))
    if len(rows) > LISTED:
        table.add_row(f"… {len(rows) - LISTED:,} more; --json FILE lists them all", style="dim")
    return table


def _people_table(classes: list[str], people: dict[str, dict[str, dict[str, int]]]) -> Any:
    """Subjects with their images of each class, as many as are listed."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("subject", overflow="fold")
    for name in ("split", *classes):
        table.add_column(escape(name), justify="left" if name == "split" else "right", no_wrap=True)
    rows = [(split, person, kinds) for split, them in people.items() for person, kinds in them.items()]
    for split, person, kinds in rows[:LISTED]:
        table.add_row(escape(person), split, *(f"{kinds.get(name, 0):,}" for name in classes))
    if len(rows) > LISTED:
        table.add_row(f"… {len(rows) - LISTED:,} more; --json FILE lists them all", style="dim")
    return table


def _amounts(found: Any) -> list[tuple[str, list[str]]]:
    """Columns of a table of classes: the share of the pixels, or the number of boxes, of each split."""
    columns = []
    for split, numbers in found.labelled.amounts.items() if found.labelled else ():
        title = found.labelled.unit if split == "all" else f"{split} {found.labelled.unit}"
        total = max(1, sum(numbers))
        pixels = found.labelled.unit == "pixels"
        columns.append((title, [f"{number / total:.1%}" if pixels else f"{number:,}" for number in numbers]))
    return columns


def _show_problems(found: Any, console: Any) -> None:
    from vitrail.data.inspect.faces import NAMELESS

    across = [one for one in found.duplicates if one.across]
    conflicting = [one for one in found.duplicates if one.conflicting]
    within = [one for one in found.duplicates if not one.across and not one.conflicting]
    empty = [
        name
        for name, count in zip(found.source.classes, found.counts(next(iter(found.looks))), strict=True)
        # A type of attack may be there to be tested on, and a column of numbers has no images of its own.
        if not count and not hasattr(found.labelled, "people") and not hasattr(found.labelled, "ranges")
    ]
    groups = [
        ("notes", found.source.notes),
        ("classes without a picture that can be read", empty),
        ("files that can't be read, which will be left out", [f"{one.name} {one.reason}" for one in found.unreadable]),
        ("pictures in more than one split, so that a score would flatter", [_copies(one) for one in across]),
        ("pictures with more than one label", [_copies(one) for one in conflicting]),
        ("pictures more than once in a split", [_copies(one) for one in within]),
        *(found.labelled.problems.items() if found.labelled else ()),
    ]
    for title, lines in groups:
        if lines:
            heading = title if title == "notes" else f"{title}: {len(lines):,}"
            console.print(f"\n[bold {'yellow' if title != 'notes' else ''}]{heading}[/]", highlight=False)
            listed = FEW if title == NAMELESS else LISTED
            for line in lines[:listed]:
                console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
            if len(lines) > listed:
                console.print(f"  … and {len(lines) - listed:,} more; --json FILE lists them all", style="dim")
    if not any(lines for title, lines in groups if title != "notes"):
        console.print("\nEvery file can be read, and no picture is there twice.", style="green")


def _copies(duplicate: Any) -> str:
    """a.jpg (train, cat) = b.jpg (test, dog), with as much in brackets as differs."""
    names = []
    for name, split, labels in zip(duplicate.names, duplicate.splits, duplicate.labels, strict=True):
        facts = ([split] if duplicate.across else []) + (
            ["|".join(labels) or "no label"] if duplicate.conflicting else []
        )
        names.append(f"{name} ({', '.join(facts)})" if facts else name)
    return " = ".join(names[:6]) + (f" = {len(names) - 6} more" if len(names) > 6 else "")


def _check_writable(path: Path) -> None:
    from vitrail.errors import VitrailError

    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise VitrailError(f"{path} can't be written: {error.strerror}.") from None


def data(
    verb: Annotated[
        Annotated[Any, tyro.conf.subcommand(name="inspect", constructor=helpful(inspect))]
        | Annotated[None, tyro.conf.Suppress],
        tyro.conf.arg(name=""),
    ],
) -> int:
    """What is in a data set: inspect."""
    return verb or 0
