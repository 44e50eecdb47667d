"""The predictor as users meet it, on real weights and real pictures."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from tests.parity.peers import shake

CHOSEN = slice(None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    model = shake(vitrail.create_model("vit_ti16", depth=2, num_classes=3))
    pre = vitrail.load  # noqa: F841
    return vitrail.Predictor(model, vitrail.models.Preprocessing(), ["ant", "bee", "猫"], "vit_ti16", device="cpu")


@pytest.mark.data
def test_deit_tiny_reaches_its_published_accuracy_and_agrees_with_timm(real_data):
    predictor = vitrail.load(real_data / "deit_tiny_in1k", device="cpu")
    assert predictor.name == "deit_ti16"
    peer = timm.create_model("deit_tiny_patch16_224").eval()
    peer.load_state_dict(load_file(real_data / "deit_tiny_in1k" / "model.safetensors"), strict=True)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=peer))
    files = sorted((real_data / "imagenet_val_1k").glob("*/*.jpg"))
    truth = torch.tensor([int(f.parent.name) for f in files])
    assert len(files) == 1000

    found = torch.tensor([[p.index for p in ranked] for ranked in predictor.predict(files, top=5)])
    theirs = []
    with torch.inference_mode():
        for start in range(0, 1000, 50):
            batch = torch.stack([transform(Image.open(f).convert("RGB")) for f in files[start : start + 50]])
            theirs.append(peer(batch).argmax(dim=1))
    top1 = (found[:, 0] == truth).float().mean().item()
    top5 = (found == truth[:, None]).any(dim=1).float().mean().item()
    agreement = (found[:, 0] == torch.cat(theirs)).float().mean().item()
    print(f"top-1 {top1:.3f}  top-5 {top5:.3f}  same as timm {agreement:.3f}")
    assert abs(top1 - 0.702) <= 0.002
    assert abs(top5 - 0.902) <= 0.002
    assert agreement >= 0.99
