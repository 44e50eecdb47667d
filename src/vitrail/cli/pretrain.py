"""`vitrail pretrain`: a masked autoencoder from pictures alone."""

from typing import Annotated

import tyro

from vitrail.train.pretrain.recipe import PretrainRecipe

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
    from vitrail.data.there import check_there
    from vitrail.train.leave import Stopped, telling

    if not options.resume:
        check_there(data, "pretrain")  # before torch is imported
    from vitrail.train.run import run_folder

    try:
        with telling(run_folder(options, data)):
            vitrail.pretrain(data, options)
    except Stopped as stopped:
        print(stopped)
        return 130
    return 0
