"""One image at a time, for other people's loaders: evaluation's pixels exactly, training's crops with a seed."""

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.odd_files import photograph
from vitrail.data import prepare
from vitrail.data.augment.images import Augmenter, Policy
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing

GREY = Preprocessing(size=(24, 32), mean=(0.4,), std=(0.2,), crop=1.0)


@pytest.fixture
def model():
    return vitrail.create_model("vit_nano4", num_classes=3, image_size=(32, 48))


@pytest.fixture
def picture():
    return photograph(3, 60, 80)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch", "native"])
def test_as_at_evaluation_is_what_prepare_does(fit, picture, tmp_path):
    pre = Preprocessing(size=(32, 48), fit=fit)
    transform = vitrail.transforms(pre)
    expected = prepare(picture, pre)[0]
    assert torch.equal(transform(picture), expected)
    assert torch.equal(transform(np.array(picture)), expected)
    assert torch.equal(transform(torch.from_numpy(np.array(picture)).permute(2, 0, 1)), expected)
    picture.save(tmp_path / "picture.png")
    assert torch.equal(transform(tmp_path / "picture.png"), expected)
    assert torch.equal(transform(str(tmp_path / "picture.png")), expected)


def test_the_preprocessing_is_that_of_the_model_the_predictor_the_run_or_the_name(model, picture, tmp_path):
    path = vitrail.save_weights(model, tmp_path / "model.safetensors", labels=["a", "b", "c"])
    expected = prepare(picture, model.preprocessing)[0]
    assert expected.shape == (3, 32, 48)
    predictor = vitrail.load(path, device="cpu")
    for source in (model, predictor, path, str(path), tmp_path, vitrail.Run(tmp_path)):
        assert torch.equal(vitrail.transforms(source)(picture), expected)
    assert vitrail.transforms("vit_b16").preprocessing == vitrail.create_model("vit_b16", depth=1).preprocessing
    assert vitrail.transforms("swinv2_t").preprocessing.size == (256, 256)
    assert vitrail.transforms("vitrail_tiny").preprocessing == vitrail.load("vitrail_tiny", device="cpu").preprocessing
    assert predictor.model(vitrail.transforms(predictor)(picture)[None]).shape == (1, 3)


def test_training_gives_the_light_policy_of_the_augmenter(picture):
    pre = Preprocessing(size=(32, 48))
    transform = vitrail.transforms(pre, train=True, seed=7)
    augmenter = Augmenter(Policy.named("light"), pre.size, pre.mean, pre.std, seed=7)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    for number in range(3):
        assert torch.equal(transform(picture), augmenter([pixels], np.array([number]), 0, "cpu")[0])


def test_a_seed_repeats_and_draws_anew_each_time(picture):
    pre = Preprocessing(size=(32, 32))
    one, two = (vitrail.transforms(pre, train=True, seed=1) for _ in range(2))
    first = [one(picture) for _ in range(4)]
    assert all(torch.equal(a, two(picture)) for a in first)
    assert not any(torch.equal(first[0], other) for other in first[1:])
    assert not torch.equal(vitrail.transforms(pre, train=True, seed=2)(picture), first[0])


def test_without_a_seed_the_generator_of_pytorch_decides(picture):
    transform = vitrail.transforms(Preprocessing(size=(32, 32)), train=True)
    torch.manual_seed(5)
    first = [transform(picture) for _ in range(3)]
    torch.manual_seed(5)
    assert all(torch.equal(a, transform(picture)) for a in first)
    assert not torch.equal(first[0], first[1])


def test_grey_models_get_one_channel(picture):
    assert torch.equal(vitrail.transforms(GREY)(picture), prepare(picture, GREY)[0])
    made = vitrail.transforms(GREY, train=True, seed=0)(picture)
    assert made.shape == (1, 24, 32) and made.dtype == torch.float32
    assert vitrail.transforms(GREY, train=True, seed=0)(picture.convert("L")).shape == (1, 24, 32)


class Folder(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return self.transform(Image.new("RGB", (40, 30), (50 * number, 100, 200)))


def test_a_loader_of_pytorch_takes_it_with_workers():
    transform = vitrail.transforms(Preprocessing(size=(16, 16)), train=True)
    loader = torch.utils.data.DataLoader(Folder(transform), batch_size=2, num_workers=2)
    assert [tuple(batch.shape) for batch in loader] == [(2, 3, 16, 16)] * 2


def test_what_says_nothing_of_its_images_is_refused():
    with pytest.raises(VitrailError, match="A Linear does not say how its images are prepared"):
        vitrail.transforms(torch.nn.Linear(1, 1))
    with pytest.raises(VitrailError, match="There is no model named 'vit_b61'"):
        vitrail.transforms("vit_b61")
    with pytest.raises(VitrailError, match="There is no file or folder"):
        vitrail.transforms("nowhere/model.safetensors")
