"""What a classifier's plan chooses, by the facts, and why."""

from dataclasses import replace

import pytest

from vitrail.errors import VitrailError
from vitrail.models import create_model
from vitrail.reasons import Reason
from vitrail.tasks import registry
from vitrail.tasks.classify.plan import fine_tuning_rate, policy_of
from vitrail.tasks.planning import Facts
from vitrail.training.config import TrainConfig
from vitrail.training.run import plan

CONVOLUTIONAL = create_model("tv:resnet18", num_classes=10, image_size=32).settings


def planned(facts, **options):
    """The configuration with nothing left open, and the reasons."""
    return plan(registry.task("classify"), TrainConfig(**options), facts)


def test_paths_of_frozen_blocks_are_not_dropped_and_the_plan_says_so():
    facts = Facts(images=2_000, classes=10, pretrained=True, side=64)
    for tune in ("head", "probe", "lora"):
        full, why = planned(facts, tune=tune)
        assert full.drop_path == 0.0 and why["drop_path"] == Reason("frozen_paths")
        with pytest.raises(VitrailError, match=f"--tune {tune}") as info:
            planned(facts, tune=tune, drop_path=0.3)
        assert info.value.code == "frozen_paths"
    assert planned(facts)[0].drop_path == 0.1


def test_thresholds_of_several_labels_stay_with_the_weights_they_were_chosen_with():
    facts = Facts(images=2_000, classes=10, pretrained=True, side=64)
    assert planned(facts)[0].refit == "on"
    full, why = planned(replace(facts, multi_label=True))
    assert full.refit == "off" and why["refit"] == Reason("thresholds")
    assert planned(replace(facts, multi_label=True), refit="on")[0].refit == "on"


def test_small_images_are_moved_and_the_plan_says_so():
    for side, moved in ((16, False), (32, True), (64, False)):
        facts = Facts(images=20_000, classes=10, pretrained=False, side=side)
        full, why = planned(facts)
        policy = policy_of(full.augment, full.flip, (side, side))
        assert (policy.border > 0) == moved == (why["augment"].code == "moved")
        assert policy.scale == (1.0, 1.0) or not moved
    assert policy_of(full.augment, full.flip, (24, 32)).ratio == (4 / 3, 4 / 3)  # of the images that the model sees
    assert policy_of("none", full.flip, (32, 32)).scale is None


@pytest.mark.parametrize(
    ("facts", "options", "expected"),
    [
        (Facts(5_000, 10, pretrained=False, side=32), {}, "muon"),
        (Facts(5_000, 10, pretrained=False, side=32), {"optimizer": "adamw"}, "adamw"),
        (Facts(5_000, 10, pretrained=False, side=32), {"tune": "head"}, "adamw"),  # no matrix of a block learns
        (Facts(5_000, 10, pretrained=False, side=16), {}, "adamw"),
        (Facts(5_000, 10, pretrained=False, side=32, settings=CONVOLUTIONAL), {}, "adamw"),
        (Facts(5_000, 10, pretrained=True, side=32), {}, "adamw"),
        (Facts(5_000, 10, pretrained=True, side=32), {"optimizer": "muon"}, "muon"),
        (Facts(5_000, 10, pretrained=True, side=32, masked=True), {}, "muon"),
    ],
)
def test_muon_is_for_transformers_that_have_seen_no_labels_unless_asked_for(facts, options, expected):
    full, why = planned(facts, **options)
    assert full.optimizer == expected
    assert (why["optimizer"] == Reason("as_asked")) == ("optimizer" in options)


def test_the_plan_of_cheap_tuning_differs_where_it_should():
    facts = Facts(3_000, 37, pretrained=True, side=224)
    full, _ = planned(facts)
    cheap, why = planned(facts, tune="lora")
    assert (full.layer_decay, cheap.layer_decay, cheap.drop_path) == (0.75, 1.0, 0.0)
    assert cheap.epochs == full.epochs and why["layer_decay"] == Reason("layers_new")
    assert fine_tuning_rate(0.9, 64) == (3e-4, Reason("probe_score", score=0.9))
    lr, reason = fine_tuning_rate(0.9, 64, "prompt")
    assert lr == pytest.approx(3e-3) and reason == Reason("probe_score_times", score=0.9, times=10, tune="prompt")
    masked, _ = planned(Facts(3_000, 37, pretrained=True, side=224, masked=True), tune="adapter")
    assert masked.epochs == full.epochs and masked.lr is None


def test_gradients_are_clipped_at_1_unless_asked_otherwise():
    facts = Facts(images=2_000, classes=10, pretrained=True, side=64)
    assert [planned(facts, **asked)[0].clip for asked in ({}, {"clip": 0}, {"clip": 0.5})] == [1.0, 0, 0.5]


def test_a_rate_goes_with_the_root_of_the_batch():
    facts = Facts(images=5_000, classes=10, pretrained=False, side=32)
    usual, _ = planned(facts)
    full, why = planned(facts, batch_size=4 * usual.batch_size)
    assert full.lr == pytest.approx(2 * usual.lr) and why["lr"].code == "batch_scaled"
    assert planned(facts, batch_size=256, lr=0.1)[0].lr == 0.1


def test_a_warmup_is_at_most_half_of_the_run():
    facts = Facts(images=5_000, classes=10, pretrained=True, side=32)
    full, why = planned(facts, epochs=1)
    assert full.warmup == 0.5 and why["warmup"] == Reason("half_of_run")
