"""The segmenter or detector that a run starts from: a backbone with weights, and something new on it."""

from dataclasses import replace
from typing import Any

from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.models import SwinSettings, ViTSettings
from vitrail.train.dense.plan import suited_width
from vitrail.train.recipe import Recipe
from vitrail.train.run import typical_side
from vitrail.train.start import Start, find_weights, set_drop_path, start_model
from vitrail.weights.checkpoint import Checkpoint

# What speaks of single classes; of use to a model of other classes is only the rest. The cls_logits of what proposes
# regions tell things from ground, whatever they are called: only RetinaNet's are of classes.
OF_CLASSES = ("head.output", "box_predictor.", "mask_fcn_logits.", "classification_head.cls_logits.")


def start_backbone(recipe: Recipe, learnt: list[Sample], gpu: bool) -> tuple[Start, Checkpoint | None]:
    """Without classes; and the checkpoint that it came from, which may hold more than that."""
    largest = typical_side(learnt)
    found = find_weights(recipe.model, recipe.weights, largest, gpu)
    size = recipe.image_size if recipe.task == "segment" else None
    start = start_model(recipe.model, recipe.weights, [], size, None, largest, gpu, found=found)
    if not isinstance(start.model.settings, SwinSettings | ViTSettings):
        raise VitrailError(f"{start.name} gives no maps to {recipe.task} from: use a ViT or a Swin with --model.")
    return start, found[0]


def start_segmenter(start: Start, whole: Checkpoint | None, recipe: Recipe, classes: list[str]) -> Start:
    from vitrail.models.dense.segmenter import Segmenter

    backbone = set_drop_path(start.model, recipe.drop_path or 0.0)
    changes: dict[str, Any] = {} if recipe.pyramid is None else {"pyramid": recipe.pyramid}
    width = suited_width(backbone.settings)
    model = Segmenter(backbone, len(classes), recipe.head or "upernet", width=width, **changes)
    pre = replace(start.preprocessing, fit=recipe.fit or "stretch", crop=1.0)
    return _continued(replace(start, model=model, preprocessing=pre), whole, classes)


def start_detector(
    start: Start, whole: Checkpoint | None, recipe: Recipe, classes: list[str], sides: tuple[int, int]
) -> Start:
    from vitrail.models.dense.detector import Detector

    backbone = set_drop_path(start.model, recipe.drop_path or 0.0)
    width = suited_width(backbone.settings)
    model = Detector(
        backbone, recipe.head or "faster_rcnn", len(classes), pyramid=recipe.pyramid or "auto", pyramid_channels=width,
        hidden=4 * width, short_side=sides[0], long_side=sides[1],
    )  # fmt: skip
    return _continued(replace(start, model=model, preprocessing=model.preprocessing), whole, classes)


def _continued(start: Start, whole: Checkpoint | None, classes: list[str]) -> Start:
    """Where the weights are of a model of the same kind, its head and its pyramid go on too, as far as they fit."""
    model = start.model
    model.preprocessing = start.preprocessing  # type: ignore[assignment]
    if whole is None or type(whole.settings) is not type(model.settings):
        return start
    same = whole.labels == classes
    theirs = {n: t for n, t in whole.state.items() if same or not any(part in n for part in OF_CLASSES)}
    ours = model.state_dict()
    fitting = {n: t for n, t in theirs.items() if n in ours and ours[n].shape == t.shape}
    inside: str = model.settings.inside  # type: ignore[union-attr,assignment]
    around = {n: t for n, t in fitting.items() if not n.startswith(inside)}
    model.load_state_dict(around, strict=False)
    if same and len(fitting) == len(ours):
        return replace(start, why=start.why.replace("the backbone of the model in", "the whole model in"))
    if not around:
        return start
    others = f"the backbone, and {len(around)} of {sum(not n.startswith(inside) for n in ours)} other weights, of"
    return replace(start, why=start.why.replace("the backbone of", others))
