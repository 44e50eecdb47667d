"""`vitrail pretrain`: a masked autoencoder from pictures alone."""

from typing import Annotated

import tyro

from vitrail.training.pretrain.recipe import PretrainRecipe

DEFAULT = PretrainRecipe()


def pretrain(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = "",
    # What may be left open is still no word to be typed: so --norm-pix and --no-norm-pix are switches.
    options: Annotated[PretrainRecipe, tyro.conf.arg(name=""), tyro.conf.DisallowNone] = DEFAULT,
) -> int:
    """Trains a masked autoencoder, without labels; `vitrail train DATA --weights RUN` then continues from it.

    Args:
        data: A folder of pictures, with class folders or without, a table, tar shards, a torchvision name, or hf:NAME.
    """
    import vitrail
    from vitrail.data.existence import check_exists
    from vitrail.training.signals import Stopped, telling

    if not options.resume:
        check_exists(data, "pretrain")  # before torch is imported
    from vitrail.training.run import run_folder

    try:
        with telling(run_folder(options, data)):
            vitrail.pretrain(data, options)
    except Stopped as stopped:
        print(stopped)
        return 130
    return 0
