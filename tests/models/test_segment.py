"""Logits for every pixel at any size, heads that learn, and windows that make the whole."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vitrail import VitrailError, create_model
from vitrail.models.dense.segmenter import Segmenter, enlarged
from vitrail.models.dense.settings import SegmenterSettings
from vitrail.models.windows import bands, window_labels
from vitrail.tasks.segment.objective import Segment

VIT = {"depth": 4, "width": 48, "heads": 3}
SWIN = {"width": 24, "depths": (1, 1, 1, 1), "heads": (1, 2, 2, 2)}
KINDS = [
    ("vit_ti16", VIT, "linear", {}),
    ("vit_ti16", VIT, "fcn", {"pyramid": "simple"}),
    ("vit_ti16", {**VIT, "patch_size": 14, "registers": 2}, "upernet", {"pyramid": "simple"}),
    ("vit_ti16", {**VIT, "distillation_token": True, "head": "mlp"}, "upernet", {"norm": "channel"}),
    ("siglip_b16", {**VIT, "num_classes": 7}, "linear", {}),
    ("swin_t", SWIN, "linear", {}),
    ("swin_t", SWIN, "fcn", {}),
    ("swin_t", SWIN, "upernet", {"pyramid": "own"}),
]


def segmenter(name, changes, head, more, classes=5) -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(create_model(name, **changes), classes, head, width=32, **more)


@pytest.mark.parametrize(("name", "changes", "head", "more"), KINDS)
def test_every_head_gives_logits_at_the_size_of_any_image(name, changes, head, more):
    model = segmenter(name, changes, head, more).eval()
    for size in [(64, 96), (70, 50), (33, 100)]:
        with torch.no_grad():
            logits = model(torch.randn(2, 3, *size))
        assert logits.shape == (2, 5, *size)
        assert logits.isfinite().all() and logits.std() > 0


@pytest.mark.parametrize(("name", "changes", "head", "more"), KINDS)
def test_every_trainable_parameter_gets_a_gradient_and_settings_rebuild_the_model(name, changes, head, more):
    model = segmenter(name, changes, head, more)
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad == (p.grad is None)] == []
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == set(model.idle)
    settings = SegmenterSettings(**json.loads(json.dumps(asdict(model.settings))))
    assert settings == model.settings
    again = Segmenter.build(settings)
    again.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 40, 56)
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_the_backbones_weights_stay_and_its_classifier_goes():
    vit = create_model("vit_ti16", **VIT, num_classes=7)
    before = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    model = Segmenter(vit, 3, "upernet", width=32)
    after = model.backbone.state_dict()
    assert {name for name in before if name not in after} == {"head.output.weight", "head.output.bias"}
    assert all(torch.equal(before[name], after[name]) for name in after)
    assert model.settings.num_classes == 3 and model.settings.image_size == (224, 224) and model.settings.channels == 3


def test_enlarging_keeps_every_stride_on_the_same_pixels():
    """A ramp of the pixels' own places, averaged over cells of 16, comes back as the same ramp away from its ends."""
    ramp = torch.arange(96.0) + 0.5
    cells = ramp.view(6, 16).mean(1).view(1, 1, 1, 6).expand(1, 1, 4, 6)
    back = enlarged(cells, (16, 16), (50, 90))
    assert back.shape == (1, 1, 50, 90)
    assert torch.allclose(back[0, 0, 20, 8:82], ramp[8:82], atol=1e-4)


def test_the_plain_linear_head_is_one_matrix_on_the_normed_tokens():
    model = segmenter("vit_ti16", VIT, "linear", {}).eval()
    x = torch.randn(1, 3, 48, 64)
    with torch.no_grad():
        tokens = model.backbone.features(x)["tokens"][:, 1:]
        weight, bias = model.head.output.weight[:, :, 0, 0], model.head.output.bias
        cells = (tokens @ weight.T + bias).view(3, 4, 5).permute(2, 0, 1)
        wanted = nn.functional.interpolate(cells[None], (48, 64), mode="bilinear", align_corners=False)
        assert torch.allclose(model(x), wanted, atol=1e-6)


def test_a_single_image_of_a_single_coarse_cell_passes_in_training_too():
    model = segmenter("swin_t", SWIN, "upernet", {})
    assert model(torch.randn(1, 3, 32, 32)).isfinite().all()


def test_bfloat16_stays_near_float32():
    model = segmenter("vit_ti16", VIT, "upernet", {}).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(x)
    assert (rough.float() - exact).abs().mean() < 0.1 * exact.std()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Segmenter(create_model("mae_b16", depth=1, decoder_depth=1), 3), "use a ViT or a Swin"),
        (lambda: Segmenter(create_model("vit_ti16", **VIT), 3, "unet"), "upernet"),
        (lambda: Segmenter(create_model("vit_ti16", **VIT), 3, pyramid="own"), "adapter or simple"),
        (lambda: Segmenter(create_model("vit_ti16", **VIT), 0), "num_classes"),
        (lambda: windows(nn.Identity(), torch.zeros(1, 3, 9, 9), 4, 1.0), "overlap"),
        (lambda: windows(nn.Identity(), torch.zeros(3, 9, 9), 4), r"\[B, C, H, W\]"),
    ],
)
def test_refusals_are_one_sentence(make, words):
    with pytest.raises(VitrailError, match=words):
        make()


# Four images by heart


def shapes(size: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """Four pictures of a disc, a bar and a triangle in noise, each class with a colour of its own; the last column of
    one mask is ignored."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:size, :size] / size
    colours = np.array([[0.2, 0.2, 0.2], [0.9, 0.3, 0.2], [0.2, 0.8, 0.3], [0.3, 0.3, 0.9]])
    images, masks = [], []
    for _ in range(4):
        mask = np.zeros((size, size), np.uint8)
        y, x = rng.uniform(0.3, 0.7, 2)
        mask[(rows - y) ** 2 + (columns - x) ** 2 < 0.05] = 1
        left = rng.uniform(0.05, 0.7)
        mask[(columns > left) & (columns < left + 0.2) & (rows > 0.6)] = 2
        mask[(columns + rows < rng.uniform(0.35, 0.55))] = 3
        images.append(colours[mask] + rng.normal(0, 0.1, (size, size, 3)))
        masks.append(mask)
    masks[0][:, -1] = 255
    x = torch.from_numpy(np.stack(images)).float().permute(0, 3, 1, 2)
    return (x - 0.4) / 0.25, torch.from_numpy(np.stack(masks))


@pytest.mark.parametrize(
    ("head", "pyramid", "steps"), [("linear", "auto", 50), ("fcn", "simple", 80), ("upernet", "adapter", 90)]
)
def test_every_head_learns_four_images_by_heart(head, pyramid, steps):
    torch.manual_seed(0)
    patch = 4 if head == "linear" else 16
    vit = create_model("vit_ti16", image_size=48, patch_size=patch, width=64, depth=2, heads=4, mlp_ratio=2.0)
    model = Segmenter(vit, 4, head, pyramid=pyramid, width=32, dropout=0.0)
    task = Segment(["ground", "disc", "bar", "corner"])
    images, masks = shapes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(steps):
        loss = task.loss(task.outputs(model, images), masks).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = task.figures(task.rows(model.eval()(images), masks, boundaries=True), rounds=10)
    print(head, found)
    assert min(found[f"iou/{label}"] for label in task.classes) > 0.95
    assert found["boundary_f1"] > 0.95


# Windows


def windows(*given) -> torch.Tensor:
    """All logits."""
    return torch.cat([rows for _, rows in bands(*given)], dim=2)


class Counting(nn.Module):
    """A class score from a pixel alone, which no window can change; and how large a window it has seen."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 1)
        self.seen: list[tuple[int, int]] = []

    def forward(self, x):
        self.seen.append(tuple(x.shape[-2:]))
        return self.conv(x)


@pytest.mark.parametrize("size", [(64, 64), (37, 101), (130, 40), (8, 8)])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.6, 0.9])
def test_windows_make_the_whole_where_a_pixel_decides_alone(size, overlap):
    model, x = Counting(), torch.randn(2, 3, *size)
    with torch.no_grad():
        wanted = model(x)
    model.seen.clear()
    assert torch.allclose(windows(model, x, (32, 24), overlap), wanted, atol=1e-5)
    assert set(model.seen) == {(min(32, size[0]), min(24, size[1]))}
    assert torch.equal(window_labels(model, x, (32, 24), overlap), wanted.argmax(1).byte())


def test_one_window_is_the_model_itself_to_the_bit():
    model, x = segmenter("vit_ti16", VIT, "fcn", {}).eval(), torch.randn(1, 3, 50, 70)
    with torch.no_grad():
        assert torch.equal(windows(model, x, 96), model(x))


def test_a_constant_added_to_every_logit_of_a_window_is_blended_from_one_to_the_other():
    """Two windows that disagree by 1: the seam is a ramp without a jump, 0 and 1 where one window is alone."""

    class Shifted(nn.Module):
        calls = 0

        def forward(self, x):
            Shifted.calls += 1
            return torch.full_like(x[:, :1], float(Shifted.calls - 1))

    blended = windows(Shifted(), torch.zeros(1, 3, 10, 30), (10, 20), 0.5)[0, 0]
    assert (blended[:, :10] == 0).all() and (blended[:, 20:] == 1).all()
    seam = blended[0, 9:21]
    assert torch.allclose(seam.diff(), torch.full((11,), 1 / 11), atol=1e-6)


def test_bands_come_from_top_to_bottom_and_may_be_prepared_from_bytes():
    model, pixels = Counting(), torch.randint(0, 256, (1, 3, 100, 40), dtype=torch.uint8)
    found = [*bands(model, pixels, 32, 0.25, prepare=lambda part: part.float() / 255)]
    assert [first for first, _ in found] == [0, 23, 45, 68]
    assert sum(rows.shape[2] for _, rows in found) == 100
    with torch.no_grad():
        assert torch.allclose(torch.cat([rows for _, rows in found], 2), model(pixels.float() / 255), atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_large_picture_takes_the_memory_of_a_band():
    """32 classes of 900×900 pixels are 104 MB of logits; a band of 96 rows is 11 MB, and two are held."""
    code = """
import re, torch
from pathlib import Path
from torch import nn
from vitrail.models.windows import bands, window_labels

def windows(*given, prepare): return torch.cat([rows for _, rows in bands(*given, prepare=prepare)], dim=2)

def read(key): return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

def grown(work):
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = read("VmRSS")
    work()
    return read("VmHWM") - before

model, x = nn.Conv2d(3, 32, 1), torch.randint(0, 256, (1, 3, 900, 900), dtype=torch.uint8)
window_labels(model, x[..., :96, :96], 96, prepare=lambda part: part.float())
print(*(grown(lambda: work(model, x, 96, prepare=lambda part: part.float())) for work in (window_labels, windows)))
"""
    returned = {
        "MALLOC_MMAP_THRESHOLD_": "65536"
    }  # what is freed is given back, and the second starts as the first did
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | returned)
    assert done.returncode == 0, done.stderr
    labels, logits = map(float, done.stdout.split())
    assert labels < 50
    assert logits > 100  # had they all been kept, it would show
