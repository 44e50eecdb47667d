"""`vitrail train`: from a folder of images to a model, a report, and one file to ship."""

from typing import Annotated

import tyro

from vitrail.training.config import Recipe

DEFAULT = Recipe()


def train(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    options: Annotated[Recipe, tyro.conf.arg(name="")] = DEFAULT,
) -> int:
    """Trains a classifier, or with --task a segmenter, a detector or a judge of faces. What is left out is chosen by
    the size of the data and printed before it starts.

    Args:
        data: Class folders, a CSV or Parquet table, tar shards, a torchvision name, or hf:NAME; with --task segment
            images/ beside masks/, path,mask or COCO; with --task detect COCO, Pascal VOC or YOLO; with --task spoof
            live/ beside folders of attacks, a table, or lists.
    """
    import vitrail
    from vitrail.data.existence import check_exists
    from vitrail.training.signals import Stopped, telling

    if not options.resume:
        check_exists(data, options.task)  # before torch is imported: it is the commonest slip
    from vitrail.training.run import run_folder

    try:
        with telling(run_folder(options, data)):
            vitrail.train(data, options)
    except Stopped as stopped:
        print(stopped)
        return 130
    return 0
