"""torchvision's convolutional networks behind the interface of our models."""

import signal

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import vitrail
from tests.odd_files import photograph
from tests.training.support import (
    SMALL,
    differences,
    make_folder,
    make_images,
    make_trainer,
    rows,
    small_options,
    watch_steps,
)
from tests.training.test_distributed import start, together
from vitrail import VitrailError
from vitrail.exporters import export
from vitrail.models import CNNSettings, ConvNet
from vitrail.models.cnn import architectures
from vitrail.models.cost import cost
from vitrail.reasons import Reason
from vitrail.training.optimization import RunningAverage, statistics
from vitrail.training.run_folder import read_record
from vitrail.training.signals import Stopped

TINY = "tv:shufflenet_v2_x0_5"  # 0.3 M parameters without its head


def test_it_computes_what_torchvision_computes():
    theirs = torchvision.models.resnet18(num_classes=7).eval()
    model = vitrail.create_model("tv:resnet18", num_classes=7).eval()
    state = theirs.state_dict()
    model.head.output.load_state_dict({"weight": state.pop("fc.weight"), "bias": state.pop("fc.bias")})
    model.body.load_state_dict(state)
    x = torch.randn(2, 3, 64, 96)
    assert torch.equal(model(x), theirs(x))
    assert torch.equal(model.head(model.features(x)["pooled"]), theirs(x))
    assert cost("tv:resnet18").parameters == sum(p.numel() for p in torchvision.models.resnet18().parameters())


def test_a_network_that_computes_its_widths_with_tensors_is_counted_too():
    assert cost("tv:regnet_y_400mf").parameters == 4_344_144  # as torchvision says, which also says 0.402 G
    assert round(cost("tv:regnet_y_400mf").multiply_adds / 1e9, 3) == 0.402


@pytest.mark.parametrize(
    ("arch", "width"),
    [("convnext_tiny", 768), ("densenet121", 1024), ("efficientnet_b0", 1280), ("mnasnet0_5", 1280),
     ("mobilenet_v3_small", 1024), ("regnet_y_400mf", 440), ("resnet34", 512), ("shufflenet_v2_x0_5", 1024)],
)  # fmt: skip
def test_every_family_takes_small_pictures_with_its_small_stem(arch, width):
    model = vitrail.create_model(f"tv:{arch}", num_classes=3, image_size=32).eval()
    assert model.settings.stem == "small"
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    assert (first.kernel_size, first.stride, first.padding) == ((3, 3), (1, 1), (1, 1))
    sizes = []
    first.register_forward_hook(lambda _, inputs, output: sizes.append(output.shape[-1]))
    x = torch.randn(2, 3, 32, 32)
    assert model(x).shape == (2, 3) and model.features(x)["pooled"].shape == (2, width) and sizes[0] == 32
    smallest = model.settings.patch_size[0]
    assert model(torch.randn(1, 3, smallest, smallest)).isfinite().all()


def test_the_stem_follows_from_the_size_of_the_pictures_and_stays():
    for size, stem in ((32, "small"), (64, "small"), (65, "usual"), (224, "usual")):
        assert vitrail.create_model("tv:resnet18", image_size=size).settings.stem == stem
    for arch in ("vgg11", "alexnet", "googlenet", "inception_v3"):
        assert not CNNSettings(arch, image_size=(64, 64)).small_stem
    small = vitrail.create_model("tv:resnet18", image_size=32)
    assert isinstance(small.body.maxpool, nn.Identity)
    assert small.body.conv1(torch.randn(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    grey = vitrail.create_model(TINY, channels=1, num_classes=2).eval()
    assert grey(torch.randn(1, 1, 32, 32)).shape == (1, 2) and grey.preprocessing.mean == pytest.approx((0.449,))


def test_a_bundle_gives_back_every_bit_and_stays_what_it_was(tmp_path):
    model = vitrail.create_model(TINY, num_classes=3, image_size=32)
    model.train()(torch.randn(8, 3, 32, 32))  # which leaves statistics
    path = vitrail.save_weights(model.eval(), tmp_path / "model.safetensors", labels=list("abc"), name=TINY)
    predictor = vitrail.load(path, device="cpu")
    before, after = model.state_dict(), predictor.model.state_dict()
    assert before.keys() == after.keys() and len([*statistics(model)]) > 50
    assert all(torch.equal(before[n], after[n]) and before[n].dtype == after[n].dtype for n in before)
    assert predictor.model.settings == model.settings and repr(predictor).startswith(f"Predictor({TINY}, 3 classes")
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(predictor.model(x), model(x))
    larger = vitrail.load(path, device="cpu", image_size=128)
    assert larger.model.settings.stem == "small" and larger.embed(photograph(1)).shape == (1, 1024)
    other = vitrail.create_model(TINY, num_classes=5, image_size=32)
    assert "the head is new" in vitrail.load_weights(other, path).notes[0]
    assert torch.equal(other.body.conv5[0].weight, model.body.conv5[0].weight)


def test_batch_norm_keeps_its_statistics_where_it_is_frozen_and_needs_two_images():
    model = vitrail.create_model(TINY, num_classes=3, image_size=32)
    before = {name: value.clone() for name, value in statistics(model).items()}
    for parameter in model.body.parameters():
        parameter.requires_grad_(False)
    model.train()(torch.randn(4, 3, 32, 32))
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())
    for parameter in model.body.parameters():
        parameter.requires_grad_(True)
    with pytest.raises(VitrailError, match=r"^Batch norm learns from two images at a time or more"):
        model.train()(torch.randn(1, 3, 32, 32))
    assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 3)


def test_a_network_without_batch_norm_learns_from_one_image():
    model = vitrail.create_model("tv:convnext_tiny", num_classes=3, image_size=32).train()
    logits = model(torch.randn(1, 3, 32, 32))
    logits.sum().backward()
    assert logits.shape == (1, 3) and all(p.grad is not None for p in model.parameters())


def test_the_running_average_is_also_that_of_the_statistics():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average, mean = RunningAverage(model, 0.9), torch.zeros(2)
    for step in range(1, 6):
        model[1].running_mean.fill_(step)
        average.update(model)
        decay = min(0.9, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * step
    average.swap(model)
    assert torch.allclose(model[1].running_mean, mean)
    average.swap(model)
    assert model[1].running_mean.tolist() == [5, 5] and model[1].num_batches_tracked == 0


def test_it_learns_at_one_rate_and_norms_do_not_decay():
    model = vitrail.create_model(TINY, num_classes=4, image_size=8)
    trainer = make_trainer(model, images=make_images(16), batch_size=8, epochs=2, weight_decay=0.1, layer_decay=0.5)
    groups = trainer.optimizer.param_groups
    assert [group["scale"] for group in groups] == [1.0, 1.0]
    decayed = next(group for group in groups if group["weight_decay"])
    assert all(p.ndim > 1 for p in decayed["params"]) and len(decayed["params"]) == 1 + sum(
        isinstance(m, nn.Conv2d) for m in model.modules()
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("pictures"), count=60)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> vitrail.Run:
    """Long enough for the statistics of its batch norms to settle."""
    options = small_options(model=TINY, epochs=12, batch_size=12, ema=0.9, lr=5e-3)
    return vitrail.train(data, **options, out=tmp_path_factory.mktemp("runs") / "cnn")


def test_it_is_trained_evaluated_asked_and_exported_like_any_other(data, run, tmp_path):
    assert run.metrics["top1"] > 0.6  # of three classes
    predictor = vitrail.load(run, device="cpu")
    assert (
        predictor.preprocessing.size == (16, 16) and predictor.model.settings.stem == "small"
    )  # pictures of 15 pixels
    figures = vitrail.evaluate(run, data, device="cpu")
    assert figures["top1"] == run.metrics["top1"] and figures["n"] == 12
    pictures = [photograph(number, 12, 15, hue=number / 3) for number in range(3)]
    assert [len(found) for found in predictor.predict(pictures, top=2)] == [2, 2, 2]
    assert predictor.embed(pictures).shape == (3, 1024)
    found = export(run, "onnx", tmp_path / "model.onnx")
    assert found.difference is not None and found.difference < 1e-4
    again = vitrail.load(tmp_path / "model.onnx", device="cpu")
    assert torch.allclose(again.probabilities(pictures), predictor.probabilities(pictures), atol=1e-5)


def test_the_plan_says_what_is_different(data, tmp_path):
    run = vitrail.train(data, **small_options(model=TINY, epochs=1, weights="auto", out=tmp_path / "run"))
    record = read_record(run.folder)
    assert record.model["why"] == " ".join(
        map(str, [Reason("start_scratch_cnn", name=TINY), Reason("start_small_stem", size="16×16")])
    )
    assert record.why["layer_decay"] == str(Reason("one_rate")) and record.why["drop_path"] == str(Reason("no_paths"))


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(data, tmp_path):
    options = small_options(model=TINY, epochs=2, batch_size=12, ema=0.9)
    whole = vitrail.train(data, **options, out=tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patched:
        watch_steps(patched, stop_in=[6])
        with pytest.raises(Stopped):
            vitrail.train(data, **options, out=tmp_path / "run")
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (1, 3)
    vitrail.train(out=tmp_path / "run", resume=True)
    assert differences(whole.folder, tmp_path / "run") == []


def test_tuning_goes_on_from_a_run_and_a_head_alone_leaves_the_body(data, run, tmp_path):
    other = vitrail.train(
        data, **small_options(model=None, weights=run, epochs=1, tune="head", refit="off"), out=tmp_path / "run"
    )
    assert [row["epoch"] for row in rows(other.folder)] == [0, 1]
    before, after = (vitrail.load(each, device="cpu").model.body.state_dict() for each in (run, other))
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"model": "tv:resnet19"},
            "torchvision has no convolutional classifier named 'resnet19' that can be used here.",
        ),
        ({"model": "tv:vit_b_16"}, "tv: names convolutional baselines of torchvision; vit_b_16 is in the catalog,"),
        ({"model": "tv:squeezenet1_0"}, "torchvision has no convolutional classifier named 'squeezenet1_0' that can"),
        ({"model": TINY, "layer_decay": 0.7}, "--layer-decay counts the blocks of a transformer: leave it out for"),
        ({"model": TINY, "drop_path": 0.2}, "torchvision's shufflenet_v2_x0_5 has no paths to drop: leave --drop-path"),
    ],
)
def test_what_can_not_be_is_one_sentence(data, tmp_path, options, sentence):
    with pytest.raises(VitrailError) as caught:
        vitrail.train(data, **{**small_options(epochs=1, out=tmp_path / "run"), **options})
    assert str(caught.value).startswith(sentence)
    assert not (tmp_path / "run").exists()


def test_other_dialects_other_families_layers_and_tiny_pictures_are_refused(tmp_path):
    model = vitrail.create_model(TINY, num_classes=3, image_size=32).eval()
    for dialect in ("timm", "hf", "torchvision"):
        with pytest.raises(VitrailError, match=rf"^{TINY} is kept as a bundle \(dialect vitrail\) or exported to ONNX"):
            vitrail.save_weights(model, tmp_path / "other", dialect)
    path = vitrail.save_weights(model, tmp_path / "model.safetensors")
    with pytest.raises(VitrailError, match="holds a convolutional network, which can't fill a ViT"):
        vitrail.load_weights(vitrail.create_model("vit_nano2"), path)
    with pytest.raises(VitrailError, match="does not fit this model"):
        vitrail.load_weights(vitrail.create_model("tv:resnet18", image_size=32), path)
    with pytest.raises(VitrailError, match=r"has no layers of tokens; it gives pooled features\.$"):
        model.features(torch.randn(1, 3, 32, 32), layers=[0])
    with pytest.raises(VitrailError, match="no attention layer"), vitrail.capture(model):
        pass
    vgg = CNNSettings("vgg11").patch_size
    assert vgg == (32, 32)
    convnext = vitrail.create_model("tv:convnext_tiny", num_classes=2)
    with pytest.raises(VitrailError, match="An image of 16×20 pixels is too small for torchvision's convnext_tiny"):
        convnext(torch.randn(1, 3, 16, 20))


def test_the_names_are_torchvisions_and_nothing_is_listed_that_can_not_be_built():
    names = vitrail.list_models("tv:*")
    assert "tv:resnet50" in names and len(names) == len(architectures()) > 60
    assert not [name for name in names if "vit" in name or "swin" in name]
    assert not [name for name in vitrail.list_models() if name.startswith("tv:")]
    assert vitrail.list_models("tv:resnet?8") == ["tv:resnet18"]
    assert isinstance(
        vitrail.create_model("tv:mobilenet_v3_small", num_classes=0).eval()(torch.randn(1, 3, 32, 32)), torch.Tensor
    )
    assert np.isclose(cost("tv:resnet50").multiply_adds / 1e9, 4.09, atol=0.01)
    assert ConvNet(CNNSettings("convnext_tiny", drop_path=0.3)).body.features[7][2].stochastic_depth.p == pytest.approx(
        0.3
    )


def test_two_processes_share_their_statistics_and_resume_exactly(data, tmp_path):
    options = [*SMALL, "--model", TINY, "--epochs", "2", "--batch-size", "12", "--ema", "0.9"]
    whole, folder, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    together(2, "train", data, *options, "--out", whole, log=log)
    at = ("vitrail.training.trainer.Trainer.train_step", 3, signal.SIGTERM)
    commands = start(2, "train", data, *options, "--out", folder, log=log, at=at, armed=1)
    assert [command.wait() for command in commands] == [130, 130], commands[0].said
    together(2, "train", "--out", folder, "--resume", log=log)
    assert differences(whole, folder) == []
    state = torch.load(whole / "last.pt", weights_only=True)["model"]
    assert state["body.conv1.1.num_batches_tracked"] == 8 and state["body.conv1.1.running_mean"].abs().max() > 0
