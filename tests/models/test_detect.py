"""Detection heads on every pyramid: any size, boxes in the image's own pixels, nothing normalised twice."""

from dataclasses import asdict

import pytest
import torch

from vitrail import VitrailError, create_model
from vitrail.models.dense.detector import LEVELS, Anchors, Detector, Frame, paste, viewing_size
from vitrail.models.dense.pyramid import STRIDES
from vitrail.models.dense.settings import DETECT_HEADS, DetectorSettings

SMALL = {
    "pyramid_channels": 16, "hidden": 32, "short_side": 64, "long_side": 96, "proposals": 50, "regions": 16,
    "score_threshold": 0.0, "detections": 5,
}  # fmt: skip


def build(head: str = "faster_rcnn", kind: str = "simple", **changes) -> Detector:
    torch.manual_seed(0)
    if kind == "own":
        model = create_model("swin_t", num_classes=0, width=16, depths=(1, 1, 1, 1), heads=(1, 1, 2, 2))
    else:
        model = create_model("vit_ti16", num_classes=0, depth=4, width=48, heads=3)
    return Detector(model, head, 2, pyramid=kind, **{**SMALL, **changes})


def targets(*sizes: tuple[int, int]) -> list[dict[str, torch.Tensor]]:
    """A box in the middle of each; none in the last, which is a negative example."""
    made = []
    for place, (h, w) in enumerate(sizes):
        boxes = torch.tensor([[w / 4, h / 4, w * 3 / 4, h * 3 / 4]])[: int(place < len(sizes) - 1)]
        masks = torch.zeros(len(boxes), h, w, dtype=torch.uint8)
        masks[:, h // 4 : h * 3 // 4, w // 4 : w * 3 // 4] = 1
        made.append({"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64), "masks": masks})
    return made


@pytest.mark.parametrize("kind", ["adapter", "simple", "own"])
@pytest.mark.parametrize("head", DETECT_HEADS)
def test_every_head_learns_from_and_predicts_on_every_backbone(head, kind):
    detector, sizes = build(head, kind), [(64, 96), (70, 50), (33, 64)]
    images = [torch.randn(3, *size) for size in sizes]
    losses = detector.train()(images, targets(*sizes))
    sum(losses.values()).backward()
    assert len(losses) == {"faster_rcnn": 4, "mask_rcnn": 5, "retinanet": 2}[head]
    assert all(loss.isfinite() and loss >= 0 for loss in losses.values())
    idle = {n for n, p in detector.named_parameters() if p.grad is None}
    # A RetinaNet begins at stride 8; the last norm of a backbone is on no way to a pyramid.
    finest = ("scales.4", "outputs.4", "outputs.0", "prior.outputs.0", ".up.", "norms.0", "laterals.0")
    assert all(".model.norm" in n or (head == "retinanet" and any(part in n for part in finest)) for n in idle)
    with torch.no_grad():
        found = detector.eval()([torch.randn(3, 130, 50), torch.randn(3, 40, 200)])
    for each, (h, w) in zip(found, [(130, 50), (40, 200)], strict=True):
        assert each["boxes"].shape == (5, 4) and each["scores"].shape == (5,)
        assert (each["boxes"] >= 0).all() and (each["boxes"] <= torch.tensor([w, h, w, h]) + 1e-3).all()
        assert {*each["labels"].tolist()} <= {0, 1}
        assert (each["scores"].diff() <= 0).all()
        assert ("masks" in each) == (head == "mask_rcnn")


def test_images_reach_the_backbone_as_they_come_padded_with_zeros():
    detector, seen = build(), []
    detector.net.backbone.pyramid.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    image = torch.randn(3, 64, 90) * 5 + 3
    with torch.no_grad():
        detector.eval()([image, torch.randn(3, 64, 64)])
    assert seen[0].shape == (2, 3, 64, 96)
    assert torch.equal(seen[0][0, :, :, :90], image)
    assert seen[0][0, :, :, 90:].abs().max() == 0 and seen[0][1, :, :, 64:].abs().max() == 0


@pytest.mark.parametrize(
    ("size", "wanted"), [((480, 640), (60, 80)), ((100, 400), (24, 96)), ((30, 30), (64, 64)), ((96, 64), (96, 64))]
)
def test_a_picture_is_looked_at_with_its_short_side_as_asked_unless_it_gets_too_long(size, wanted):
    assert viewing_size(size, *((60, 90) if size == (480, 640) else (64, 96))) == wanted


def test_boxes_come_back_in_the_pixels_of_the_image():
    frame = Frame(64, 96).eval()
    image, _ = frame.resize(torch.randn(3, 200, 100))
    assert tuple(image.shape) == (3, 96, 48)
    found = frame.postprocess([{"boxes": torch.tensor([[12.0, 24.0, 48.0, 96.0]])}], [(96, 48)], [(200, 100)])
    assert torch.allclose(found[0]["boxes"], torch.tensor([[25.0, 50.0, 100.0, 200.0]]))


def test_shrinking_averages_instead_of_picking_pixels():
    """Noise all but vanishes; of the four pixels that torchvision's own resize takes, half of it would remain."""
    image, _ = Frame(50, 50).eval().resize(torch.randn(1, 400, 400))
    assert image.shape == (1, 50, 50) and image.std() < 0.15


def test_training_images_keep_the_size_that_augmentation_gave_them():
    frame = Frame(64, 96).train()
    assert frame.resize(torch.randn(3, 40, 150))[0].shape == (3, 40, 150)


def test_anchors_stand_in_the_middle_of_their_cells_in_full_precision():
    anchors = Anchors((4, 8), [[32.0], [64.0]])

    class Images:
        image_sizes = ((600, 600),)

    maps = [torch.zeros(1, 1, 2, 151, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 3, dtype=torch.bfloat16)]
    (found,) = anchors(Images, maps)
    assert found.dtype == torch.float32 and len(found) == (2 * 151 + 3) * 3
    middles = (found[:, :2] + found[:, 2:]) / 2
    assert torch.equal(middles[150 * 3 + 1], torch.tensor([602.0, 2.0]))  # square, last of the first row
    assert torch.equal(middles[151 * 3 + 1], torch.tensor([2.0, 6.0]))
    assert torch.equal(found[302 * 3 + 1], torch.tensor([4.0 - 32, 4.0 - 32, 4.0 + 32, 4.0 + 32]))
    sides = found[0, 2:] - found[0, :2]
    assert sides[1] / sides[0] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("head", DETECT_HEADS)
def test_coarser_maps_than_the_pyramid_has_are_halves_of_the_last(head):
    detector = build(head)
    with torch.no_grad():
        maps = detector.net.backbone(torch.randn(1, 3, 100, 70))
    assert [*maps] == [str(stride) for stride in LEVELS[head]]
    for stride in LEVELS[head]:
        assert maps[str(stride)].shape[-2:] == (-(-100 // stride), -(-70 // stride))


def test_a_small_first_image_does_not_spoil_the_next():
    """torchvision guesses the scale of each map from the first image it sees, and keeps the guess."""
    one, other = build(short_side=32, long_side=96).eval(), build(short_side=32, long_side=96).eval()
    image = torch.randn(3, 96, 96)
    with torch.no_grad():
        one([torch.randn(3, 33, 33)])
        assert torch.equal(one([image])[0]["boxes"], other([image])[0]["boxes"])
    assert one.net.roi_heads.box_roi_pool.scales == [1 / stride for stride in STRIDES]


@pytest.mark.parametrize("head", DETECT_HEADS)
def test_under_bfloat16_losses_and_boxes_are_float32_and_near(head):
    detector, images = build(head), [torch.randn(3, 64, 96), torch.randn(3, 64, 64)]
    wanted = targets((64, 96), (64, 64))
    torch.manual_seed(1)
    plain = detector.train()(images, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        losses = detector(images, wanted)
        with torch.no_grad():
            found = detector.eval()(images)
    assert all(loss.dtype == torch.float32 for loss in losses.values())
    assert sum(losses.values()).item() == pytest.approx(sum(plain.values()).item(), rel=0.1)
    assert all(each["boxes"].dtype == torch.float32 for each in found)


@pytest.mark.parametrize("kind", ["adapter", "own"])
def test_settings_rebuild_the_detector(kind):
    detector = build("mask_rcnn", kind).eval()
    again = Detector.from_settings(DetectorSettings(**asdict(detector.settings))).eval()
    assert again.settings == detector.settings
    again.load_state_dict(detector.state_dict())
    image = torch.randn(3, 64, 80)
    with torch.no_grad():
        one, other = detector([image])[0], again([image])[0]
    assert all(torch.equal(one[key], other[key]) for key in ("boxes", "labels", "scores", "masks"))


def test_the_backbone_keeps_its_weights_and_leaves_its_classifier_behind():
    model = create_model("vit_ti16", num_classes=7, depth=2, width=48, heads=3).bfloat16()
    model.patch.requires_grad_(False)
    before = dict(model.named_parameters())
    detector = Detector(model, "faster_rcnn", 2, **SMALL)
    assert detector.backbone is model  # taken over, as by a segmenter
    assert model.settings == detector.settings.backbone and model.settings.num_classes == 0
    after = dict(model.named_parameters())
    assert {*before} - {*after} == {"head.output.weight", "head.output.bias"}
    assert all(after[name] is before[name] for name in after)
    assert after["norm.weight"].dtype == torch.bfloat16 and not after["patch.weight"].requires_grad
    assert detector.preprocessing.mean == model.preprocessing.mean and detector.preprocessing.fit == "native"


def test_a_mask_is_pasted_into_its_box():
    masks = torch.ones(1, 28, 28)
    (mask,) = paste({"boxes": torch.tensor([[10.0, 5.0, 30.0, 25.0]]), "masks": masks}, (40, 50))
    assert mask.shape == (40, 50) and mask.dtype == torch.bool
    rows, columns = mask.any(dim=1).nonzero().ravel(), mask.any(dim=0).nonzero().ravel()
    assert (
        abs(rows[0] - 5) <= 1 and abs(rows[-1] - 24) <= 1 and abs(columns[0] - 10) <= 1 and abs(columns[-1] - 29) <= 1
    )


def test_what_no_detector_can_do_is_refused_in_a_sentence():
    model = create_model("vit_ti16", num_classes=0, depth=1, width=48, heads=3)
    with pytest.raises(VitrailError, match=r'no detection head: use .* Did you mean "retinanet"'):
        Detector(model, "retina_net")
    with pytest.raises(VitrailError, match="num_classes must be a whole number of at least 1"):
        Detector(model, num_classes=0)
    with pytest.raises(VitrailError, match="can't carry a detection head: use a ViT or a Swin"):
        Detector(torch.nn.Linear(2, 2))
    detector = build()
    with pytest.raises(VitrailError, match="learns from targets"):
        detector.train()([torch.randn(3, 64, 64)])
    with pytest.raises(VitrailError, match=r"Expected images \[3, h, w\] each, got one of shape \[1, 64, 64\]"):
        detector.eval()([torch.randn(1, 64, 64)])
    with pytest.raises(VitrailError, match="takes one image or more, got none"):
        detector([])
