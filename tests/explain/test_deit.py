"""What holds for a trained model: DeiT-Ti on real pictures. docs/looking-inside.md has the figures of more of them."""

import pytest
import torch

import vitrail
from vitrail import explain
from vitrail.data import prepare

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def deit(real_data):
    return vitrail.load(real_data / "deit_tiny_in1k", device="cpu")


@pytest.fixture(scope="module")
def x(deit, real_data):
    paths = sorted((real_data / "imagenet_val_1k").glob("*/*.jpg"))[::125]
    return prepare(paths, deit.preprocessing)  # 8 pictures


def test_late_layers_look_far_and_their_heads_agree(deit, x):
    table = explain.attention_distance(deit.model, x)  # 12 layers, 3 heads
    reach, spread = table.mean(dim=1), table.std(dim=1)
    assert reach[-4:].mean() >= 1.5 * reach[:4].mean()
    assert spread[-4:].mean() < 0.5 * spread[:4].mean()
    assert 55 < reach[0] < 85 and (reach[1:3] < 55).all() and 105 < reach.max() < 120


def test_positions_know_their_rows_and_columns(deit):
    found = explain.position_similarity(deit.model)
    others = found.mean(dim=(2, 3))
    for r in range(14):
        for c in range(14):
            same_row, same_column = found[r, c, r].mean(), found[r, c, :, c].mean()
            assert same_row > others[r, c] and same_column > others[r, c]


def test_relevance_beats_random_order_and_raw_attention(deit, x):
    found = explain.compare(deit.model, [x], ["relevance", "attention", "random"], steps=7)
    relevance, attention, random = found.rows
    assert relevance.deletion < attention.deletion < random.deletion
    assert relevance.insertion > attention.insertion
    assert relevance.insertion > random.insertion


def test_explanations_follow_the_class_that_is_asked_for(deit, real_data):
    """A zebra and a volcano side by side, 224×448: how much of each class's map lies on the left half."""
    paths = [next((real_data / "imagenet_val_1k" / name).glob("*.jpg")) for name in ("0340", "0980")]
    both = torch.cat([*prepare(paths, deit.preprocessing)], dim=-1)[None]
    shares = {}
    for name in ("relevance", "grad_cam"):
        maps = [explain.METHODS[name](deit.model, both, target)[0] for target in (340, 980)]
        shares[name] = [float(one[:, :14].sum() / one.sum()) for one in maps]
    assert shares["relevance"][0] > 0.7 and shares["relevance"][1] < 0.4
    assert shares["grad_cam"][0] > 0.9 and shares["grad_cam"][1] < 0.1
