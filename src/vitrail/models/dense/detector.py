"""Detection: torchvision's Faster R-CNN, Mask R-CNN and RetinaNet on the pyramid of any backbone.

    detector = Detector(model, head="faster_rcnn", num_classes=3)
    detector(images)           # found: boxes, labels, scores for each image, in its own pixels
    detector(images, targets)  # while training: the losses, by name

Images are normalised as for the backbone alone, each [C, h, w] of its own size. Classes count from 0: the background
that torchvision puts first stays inside. Boxes are x0, y0, x1, y1.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.poolers import LevelMapper

from vitrail.errors import VitrailError
from vitrail.models.dense.backbone import build_backbone, drop_classifier, make_pyramid
from vitrail.models.dense.pyramid import STRIDES, Pyramid
from vitrail.models.dense.settings import DetectorSettings
from vitrail.models.grid import Grid
from vitrail.models.preprocessing import Preprocessing
from vitrail.models.swin import SwinTransformer
from vitrail.models.vit import VisionTransformer

LEVELS = {"faster_rcnn": (4, 8, 16, 32, 64), "mask_rcnn": (4, 8, 16, 32, 64), "retinanet": (8, 16, 32, 64, 128)}
MASK_SIDE = 28  # cells of a mask inside its box

Found = dict[str, Tensor]


class Detector(nn.Module):
    def __init__(self, model: nn.Module, head: str = "faster_rcnn", num_classes: int = 1, **changes: Any):
        """`model`, a ViT or a Swin, is taken over with its weights, and loses its classifier. `changes` are fields of
        `DetectorSettings`."""
        super().__init__()
        if not isinstance(model, VisionTransformer | SwinTransformer):
            raise VitrailError(f"A {type(model).__name__} can't carry a detection head: use a ViT or a Swin.")
        self.settings = s = DetectorSettings(model.settings, num_classes, head, **changes)
        pyramid = make_pyramid(model, s.pyramid, s.pyramid_channels)
        drop_classifier(model, s.backbone)
        backbone = Levels(pyramid, LEVELS[s.head], neck=s.pyramid != "simple")
        self.net: nn.Module = _retinanet(s, backbone) if s.head == "retinanet" else _rcnn(s, backbone)
        self.net.transform = Frame(s.short_side, s.long_side)
        # The whole image, in its own size: `Frame` is what resizes it.
        pre = getattr(model, "preprocessing", None) or Preprocessing().suited(s.backbone)
        self.preprocessing = replace(pre, size=s.image_size, crop=1.0, fit="native")

    @classmethod
    def from_settings(cls, settings: DetectorSettings) -> "Detector":
        changes = {name: value for name, value in vars(settings).items() if name != "backbone"}
        return cls(build_backbone(settings.backbone), **changes)

    @property
    def backbone(self) -> nn.Module:
        """The ViT or Swin inside."""
        return self.get_submodule(self.settings.inside.rstrip("."))

    def look_at(self, short_side: int) -> None:
        """Images in another size from now on; the long side may be as many times longer as before."""
        self.settings = self.settings.looking_at(short_side)
        self.net.transform = Frame(*self.settings.image_size)
        self.preprocessing = replace(self.preprocessing, size=self.settings.image_size)

    def forward(
        self, images: Sequence[Tensor] | Tensor, targets: Sequence[dict[str, Tensor]] | None = None
    ) -> dict[str, Tensor] | list[Found]:
        """While training the losses, else for each image `boxes` [n, 4], `labels` [n], `scores` [n], best first; of a
        Mask R-CNN also `masks` [n, 28, 28], the chance of each cell of the box, which `paste` lays on the image.

        Only what is predicted on is resized here: training images come as the augmentation has sized them.
        """
        images, first = list(images), self.settings.background
        if not images:
            raise VitrailError("A detector takes one image or more, got none.")
        for image in images:
            if image.ndim != 3 or image.shape[0] != self.settings.channels:
                raise VitrailError(
                    f"Expected images [{self.settings.channels}, h, w] each, got one of shape {list(image.shape)}."
                )
        if not self.training:
            return [{**found, "labels": found["labels"] - first} for found in self.net(images)]
        if targets is None:
            raise VitrailError("A detector learns from targets: pass them, or call eval() to predict.")
        return self.net(images, [{**target, "labels": target["labels"] + first} for target in targets])


# -- what torchvision's heads stand on ---------------------------------------------------------------------------------


class Levels(nn.Module):
    """A pyramid as torchvision takes it: ordered maps by name, coarser ones than it has by pooling.

    The maps of an adapter or a Swin differ in what they know, so a top-down path (FPN) evens them out, as in both
    papers; ViTDet's are all made from the last map, and need none.
    """

    def __init__(self, pyramid: Pyramid, strides: Sequence[int], neck: bool):
        super().__init__()
        self.pyramid, self.strides, self.out_channels = pyramid, tuple(strides), pyramid.channels
        given = [stride for stride in STRIDES if stride in self.strides]
        self.neck = FeaturePyramidNetwork([pyramid.channels] * len(given), pyramid.channels) if neck else None

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.pyramid(x)
        maps = OrderedDict((str(stride), found[stride].contiguous()) for stride in self.strides if stride in found)
        if self.neck is not None:
            maps = self.neck(maps)
        for stride in self.strides[len(maps) :]:
            maps[str(stride)] = F.max_pool2d(maps[str(stride // 2)], kernel_size=2, ceil_mode=True)
        return maps


class Frame(GeneralizedRCNNTransform):
    """Images of several sizes to one batch, and boxes back to the images' own pixels.

    Nothing is normalised here, since images come so; they are shrunk without aliasing, which torchvision's own does not
    care for; the padding, at the right and the bottom, is 0, the mean colour.
    """

    def __init__(self, short_side: int, long_side: int):
        super().__init__(short_side, long_side, image_mean=[], image_std=[], size_divisible=STRIDES[-1])
        self.short_side, self.long_side = short_side, long_side

    def normalize(self, image: Tensor) -> Tensor:
        return image

    def resize(self, image: Tensor, target: dict[str, Tensor] | None = None) -> tuple[Tensor, Any]:
        size = (image.shape[-2], image.shape[-1])
        wanted = viewing_size(size, self.short_side, self.long_side)
        if self.training or wanted == size:
            return image, target
        return F.interpolate(image[None], wanted, mode="bilinear", antialias=True)[0], target

    def postprocess(self, result: list[Found], image_shapes: list[Grid], original_image_sizes: list[Grid]) -> Any:
        if self.training:
            return result
        for found, viewed, own in zip(result, image_shapes, original_image_sizes, strict=True):
            found["boxes"] = scaled(found["boxes"], viewed, own)
            if "masks" in found:
                found["masks"] = found["masks"][:, 0]  # pasted one at a time, when asked: see `paste`
        return result


def scaled(boxes: Tensor, size: Grid, other: Grid) -> Tensor:
    """Boxes on an image of one size as they lie on it in another."""
    return boxes * boxes.new_tensor([other[1] / size[1], other[0] / size[0]] * 2)


def viewing_size(size: Grid, short_side: int, long_side: int) -> Grid:
    """The size in which an image is looked at: its short side as asked, its long side no more than the limit."""
    scale = min(short_side / min(size), long_side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def frame_size(size: Grid, short_side: int, long_side: int) -> Grid:
    """The size in which the network sees it, when no larger image is beside it."""
    height, width = (math.ceil(side / STRIDES[-1]) * STRIDES[-1] for side in viewing_size(size, short_side, long_side))
    return height, width


class Anchors(AnchorGenerator):
    """In the middle of each cell, with strides that are known instead of guessed from the size of a map, in float32:
    bfloat16 has eight bits, and places a corner at 600 pixels to the nearest four."""

    def __init__(self, strides: Sequence[int], sides: Sequence[Sequence[float]]):
        super().__init__(tuple(tuple(each) for each in sides), ((0.5, 1.0, 2.0),) * len(strides))
        self.strides = strides

    def forward(self, image_list: Any, feature_maps: list[Tensor]) -> list[Tensor]:
        return [torch.cat(self.levels(feature_maps))] * len(image_list.image_sizes)

    def levels(self, feature_maps: list[Tensor]) -> list[Tensor]:
        """Those of each map: [h·w·A, 4]."""
        device = feature_maps[0].device
        self.set_cell_anchors(torch.float32, device)
        every = []
        for each, stride, cell in zip(feature_maps, self.strides, self.cell_anchors, strict=True):
            y, x = (torch.arange(n, device=device, dtype=torch.float32).add(0.5).mul(stride) for n in each.shape[-2:])
            centres = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).view(-1, 1, 2)  # row by row
            every.append((centres.repeat(1, 1, 2) + cell).view(-1, 4))
        return every


# What follows computes in whatever precision it is run in, and answers in float32: boxes are made of the answers.


class Proposer(RPNHead):
    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        logits, deltas = super().forward(x)
        return [each.float() for each in logits], [each.float() for each in deltas]


class BoxPredictor(FastRCNNPredictor):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, deltas = super().forward(x)
        return scores.float(), deltas.float()


class MaskPredictor(MaskRCNNPredictor):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class Dense(RetinaNetHead):
    def forward(self, x: list[Tensor]) -> dict[str, Tensor]:
        return {name: each.float() for name, each in super().forward(x).items()}


def _rcnn(s: DetectorSettings, backbone: Levels) -> nn.Module:
    channels, classes = s.pyramid_channels, s.num_classes + s.background
    strides = LEVELS[s.head]
    anchors = Anchors(strides, [[stride * (s.anchor or 8.0)] for stride in strides])
    parts: dict[str, Any] = {
        "rpn_anchor_generator": anchors,
        "rpn_head": Proposer(channels, anchors.num_anchors_per_location()[0]),
        "rpn_pre_nms_top_n_train": 2 * s.proposals, "rpn_post_nms_top_n_train": s.proposals,
        "rpn_pre_nms_top_n_test": s.proposals, "rpn_post_nms_top_n_test": s.proposals,
        "box_roi_pool": _pool(7),
        "box_head": TwoMLPHead(channels * 7 * 7, s.hidden),
        "box_predictor": BoxPredictor(s.hidden, classes),
        "box_score_thresh": s.score_threshold, "box_nms_thresh": s.overlap, "box_detections_per_img": s.detections,
        "box_batch_size_per_image": s.regions,
    }  # fmt: skip
    if s.head == "faster_rcnn":
        return FasterRCNN(backbone, **parts)
    return MaskRCNN(
        backbone, **parts, mask_roi_pool=_pool(MASK_SIDE // 2), mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1),
        mask_predictor=MaskPredictor(channels, channels, classes),
    )  # fmt: skip


def _pool(side: int) -> MultiScaleRoIAlign:
    """Regions out of the four finest maps. Scales are given: guessed from the first images, as torchvision would, they
    are wrong for all if those are small."""
    pool = MultiScaleRoIAlign([str(stride) for stride in STRIDES], output_size=side, sampling_ratio=2)
    pool.scales = [1 / stride for stride in STRIDES]
    pool.map_levels = LevelMapper(round(math.log2(STRIDES[0])), round(math.log2(STRIDES[-1])))
    return pool


def _retinanet(s: DetectorSettings, backbone: Levels) -> nn.Module:
    strides = LEVELS[s.head]
    sides = [[stride * (s.anchor or 4.0) * 2 ** (third / 3) for third in range(3)] for stride in strides]
    anchors = Anchors(strides, sides)
    # Eight channels or more to a group: the coarsest map of one small image is a single cell.
    groups = next(
        n for n in (32, 16, 8, 4, 2, 1) if n == 1 or (s.pyramid_channels % n == 0 and s.pyramid_channels >= 8 * n)
    )
    norm = partial(nn.GroupNorm, groups)
    head = Dense(s.pyramid_channels, anchors.num_anchors_per_location()[0], s.num_classes, norm_layer=norm)
    return RetinaNet(
        backbone, s.num_classes, anchor_generator=anchors, head=head, score_thresh=s.score_threshold,
        nms_thresh=s.overlap, detections_per_img=s.detections, topk_candidates=s.proposals,
    )  # fmt: skip


def paste(found: Found, size: Grid, threshold: float = 0.5) -> Iterator[Tensor]:
    """The masks of an image of this size, bool [h, w] each; one at a time, since a hundred of a photograph's are more
    than a gigabyte."""
    for mask, box in zip(found["masks"], found["boxes"], strict=True):
        yield paste_masks_in_image(mask[None, None], box[None], size)[0, 0] >= threshold
