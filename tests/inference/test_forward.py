"""A model over a whole split: the logits that `predict` would give, whatever the batch, the memory and the files."""

import numpy as np
import pytest
import torch

from tests.odd_files import photograph
from tests.training.support import Narrow
from vitrail import VitrailError
from vitrail.data.image_set import fitted
from vitrail.data.loader import Subset, read_subset
from vitrail.data.samples import Sample
from vitrail.distributed import Processes
from vitrail.inference.forward import Forward
from vitrail.models import Preprocessing, create_model
from vitrail.models.heads import classifiers
from vitrail.predict import Predictor

PRE = Preprocessing(size=(8, 8), crop=0.9)


@pytest.fixture
def samples(tmp_path) -> list[Sample]:
    found = []
    for number in range(10):
        path = tmp_path / f"{number}.png"
        photograph(number, 14, 11).save(path)
        found.append(Sample(path.name, path, (number % 3,)))
    return found


def images(samples: list[Sample], cache: str = "memory") -> Subset:
    return read_subset(fitted(samples, PRE, cache), Processes(), workers=0)


def test_logits_are_what_predict_gives(samples):
    model = create_model("vit_nano2", num_classes=3).train()
    logits = Forward(images(samples), PRE, Processes(), torch.float32, batch=4).logits(model)
    assert model.training  # as it was found
    wanted = Predictor(model, PRE, device="cpu").probabilities([sample.where for sample in samples])
    torch.testing.assert_close(logits.softmax(dim=1), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["vit_nano2", "deit_ti16_distilled"])
def test_head_inputs_give_the_logits_back(samples, name):
    settings = {} if name == "vit_nano2" else {"depth": 1, "width": 24, "heads": 2, "image_size": 8, "patch_size": 4}
    model = create_model(name, num_classes=3, **settings).eval()
    forward = Forward(images(samples), PRE, Processes(), torch.float32, batch=4)
    features = forward.head_inputs(model)
    layers = classifiers(model)
    assert len(features) == len(layers) == (2 if "distilled" in name else 1)
    each = [layer(inputs) for layer, inputs in zip(layers, features, strict=True)]
    torch.testing.assert_close(torch.stack(each).mean(dim=0), forward.logits(model), rtol=0, atol=1e-5)
    assert not any(layer._forward_pre_hooks for layer in layers)


def test_images_that_can_not_be_read_are_left_out_of_the_figures(samples):
    """Found as they come, where nothing is cached: neither another's answer nor a row of its own stands for them."""
    samples[3].where.write_bytes(b"nothing")
    samples[9].where.unlink()
    model, lazy = create_model("vit_nano2", num_classes=3), images(samples, "off")
    assert len(lazy.numbers) == 10
    logits = Forward(lazy, PRE, Processes(), torch.float32, batch=4).logits(model)
    assert lazy.numbers.tolist() == [0, 1, 2, 4, 5, 6, 7, 8] and lazy.bad.keys() == {"3.png", "9.png"}
    assert lazy.labels() == [(n % 3,) for n in (0, 1, 2, 4, 5, 6, 7, 8)]
    known = images(samples)
    assert np.array_equal(known.numbers, lazy.numbers)
    torch.testing.assert_close(logits, Forward(known, PRE, Processes(), torch.float32).logits(model))


def test_little_memory_makes_smaller_batches(samples):
    model = Narrow(create_model("vit_nano2", num_classes=3), room=3)
    forward = Forward(images(samples), PRE, Processes(), torch.float32, batch=8)
    logits = forward.logits(model)
    wanted = Forward(images(samples), PRE, Processes(), torch.float32).logits(model.model)
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-6)
    assert forward.batch == 2 and max(model.asked) == 8
    model.room = 0
    with pytest.raises(VitrailError, match="--image-size"):
        forward.logits(model)
