"""What a detector says of one image, as a graph: torchvision's rules without its branches on how much was found.

torchvision's own forward asks at every step whether a list is empty or how long it is, which no graph can. The parts
with weights are the detector's own; only the rules between them, which have none, are said again here. That they are
the same rules is what the check after an export shows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import nms, roi_align

from vitrail.models.dense.detector import Detector
from vitrail.models.dense.pyramid import STRIDES
from vitrail.models.grid import Grid
from vitrail.models.layers import pad_to_multiple

# Rows and columns of the coarsest map of the pyramid in the example that is traced. Primes, and larger than any window:
# with others a size could look like a rule, such as a map that is always a multiple of the window.
EXAMPLE = (37, 41)
LEAST = 4 * STRIDES[-1] + 1  # pixels, so that the coarsest map of all, of stride 128, has two rows
MOST = 1 << 20  # boxes; said to the exporter, which would else reckon with more than a number can hold

Candidates = tuple[Tensor, Tensor, Tensor]  # boxes [n, 4], scores [n], and of which class or level [n]


def example(channels: int) -> Tensor:
    return torch.zeros(1, channels, *(side * STRIDES[-1] - 5 for side in EXAMPLE))


class Boxes(nn.Module):
    """An image [1, C, h, w], as it is to be looked at, to its boxes [n, 4] in its pixels, scores [n] and labels [n],
    the best first; of a Mask R-CNN also masks [n, 28, 28]."""

    score_threshold: Tensor

    def __init__(self, model: Detector):
        super().__init__()
        self.net: Any = model.net
        self.settings = model.settings
        self.names = ["boxes", "scores", "labels"] + ["masks"] * (model.settings.head == "mask_rcnn")
        # By its name in the file, so that the check can also compare boxes that are hardly any. Until it is written it
        # is a number like no other: of constants that are equal, the exporter keeps one.
        self.register_buffer("score_threshold", torch.tensor(-math.e))
        self.named = {"score_threshold": torch.tensor(model.settings.score_threshold)}

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        size = (images.shape[-2], images.shape[-1])
        maps = self.net.backbone(pad_to_multiple(images, (STRIDES[-1], STRIDES[-1])))
        if self.settings.head == "retinanet":
            return self.best(self.everywhere(maps, size), torch.sigmoid)
        heads = self.net.roi_heads
        boxes, scores, labels = self.best(self.refined(maps, self.proposals(maps, size), size))
        if self.settings.head == "faster_rcnn":
            return boxes, scores, labels
        masks = heads.mask_predictor(heads.mask_head(pool(heads.mask_roi_pool, maps, boxes)))
        own = (labels + self.settings.background)[:, None, None, None].expand(-1, 1, *masks.shape[-2:])
        return boxes, scores, labels, masks.gather(1, own)[:, 0].sigmoid()

    def everywhere(self, maps: dict[str, Tensor], size: Grid) -> Candidates:
        """RetinaNet: the likeliest pairs of anchor and class of each level, with logits for scores."""
        net, classes = self.net, self.settings.num_classes
        levels = []
        for each, anchors in zip(maps.values(), net.anchor_generator.levels(list(maps.values())), strict=True):
            found = net.head([each])
            scores, top = most(found["cls_logits"].flatten(), net.topk_candidates)
            place = top // classes
            levels.append((found["bbox_regression"][0][place], anchors[place], scores, top % classes))
        deltas, anchors, scores, labels = joined(levels)
        return clipped(net.box_coder.decode_single(deltas, anchors), size), scores, labels

    def proposals(self, maps: dict[str, Tensor], size: Grid) -> Tensor:
        """The regions that the first stage of an R-CNN passes on: [n, 4]."""
        rpn = self.net.rpn
        anchors = rpn.anchor_generator.levels(list(maps.values()))
        levels = []
        for number, (logits, deltas, cells) in enumerate(zip(*rpn.head(list(maps.values())), anchors, strict=True)):
            scores, top = most(logits.permute(0, 2, 3, 1).flatten(), rpn.pre_nms_top_n())
            deltas = deltas.unflatten(1, (-1, 4)).permute(0, 3, 4, 1, 2).reshape(-1, 4)
            levels.append((deltas[top], cells[top], scores, torch.full_like(top, number)))
        deltas, cells, scores, level = joined(levels)
        boxes = clipped(rpn.box_coder.decode_single(deltas, cells), size)
        boxes, scores, level = chosen((boxes, scores, level), torch.where(sides(boxes) >= rpn.min_size)[0])
        kept = apart(boxes, scores, level, len(maps), rpn.nms_thresh)
        return boxes[kept[most(scores[kept], rpn.post_nms_top_n())[1]]]

    def refined(self, maps: dict[str, Tensor], proposals: Tensor, size: Grid) -> Candidates:
        """The second stage: each region as each class."""
        heads, first = self.net.roi_heads, self.settings.background
        logits, deltas = heads.box_predictor(heads.box_head(pool(heads.box_roi_pool, maps, proposals)))
        boxes = clipped(heads.box_coder.decode_single(deltas, proposals).unflatten(1, (-1, 4)), size)[:, first:]
        scores = logits.softmax(dim=-1)[:, first:]
        labels = torch.arange(self.settings.num_classes).expand(scores.shape)
        every = boxes.reshape(-1, 4), scores.reshape(-1), labels.reshape(-1)
        return chosen(every, torch.where(sides(every[0]) >= 1e-2)[0])

    def best(self, candidates: Candidates, chance: Callable[[Tensor], Tensor] = lambda scores: scores) -> Candidates:
        """Those above the threshold, without the weaker of two that overlap, and no more than `detections`. `chance`
        makes probabilities of scores; last, since a runtime's own sigmoid may change the order of the faintest."""
        s = self.settings
        candidates = chosen(candidates, torch.where(chance(candidates[1]) > self.score_threshold)[0])
        kept = apart(*candidates, s.num_classes, s.overlap)
        boxes, scores, labels = chosen(candidates, kept[most(candidates[1][kept], s.detections)[1]])
        return boxes, chance(scores), labels


def joined(levels: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(each) for each in zip(*levels, strict=True))


def chosen(candidates: Candidates, which: Tensor) -> Candidates:
    boxes, scores, groups = candidates
    return boxes[which], scores[which], groups[which]


def most(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest, or all if there are fewer, and where they are."""
    values, places = scores.topk(torch.sym_min(count, scores.shape[0]))
    return values, places


def sides(boxes: Tensor) -> Tensor:
    """The shorter side of each."""
    return (boxes[:, 2:] - boxes[:, :2]).amin(dim=1)


def clipped(boxes: Tensor, size: Grid) -> Tensor:
    height, width = size
    return boxes.clamp(min=0).minimum(torch.tensor([width, height, width, height], dtype=boxes.dtype))


def apart(boxes: Tensor, scores: Tensor, groups: Tensor, count: int, overlap: float) -> Tensor:
    """Which boxes remain when the weaker of two of one group that overlap is dropped.

    Each group is moved to a place of its own, so that one pass serves all. They lie in a square: in a row, the last of
    eighty would be so far out that float32 has no hundredths of a pixel left.
    """
    columns = math.isqrt(count - 1) + 1
    step = torch.cat([boxes, boxes.new_zeros(1, 4)]).max() + 1  # there may be no box
    places = torch.stack([groups % columns, groups // columns], dim=1) * step
    return nms(boxes + places.repeat(1, 2), scores, overlap)


def pool(pooler: Any, maps: dict[str, Tensor], boxes: Tensor) -> Tensor:
    """torchvision's `MultiScaleRoIAlign` for one image: each box out of the map that suits its size."""
    levels = pooler.map_levels([boxes])
    found, places = [], []
    for level, (name, scale) in enumerate(zip(pooler.featmap_names, pooler.scales, strict=True)):
        here = torch.where(levels == level)[0]
        torch._check(here.shape[0] <= MOST)
        regions = F.pad(boxes[here], (1, 0))  # of the first image
        found.append(roi_align(maps[name], regions, pooler.output_size, scale, pooler.sampling_ratio))
        places.append(here)
    return torch.cat(found)[torch.cat(places).argsort()]
