"""DeiT-Ti with photographs: healthy as it is, and found out with faults planted."""

import copy
from dataclasses import replace

import pytest
import torch

import vitrail
from vitrail.doctor.examine import CHECKS
from vitrail.doctor.findings import Finding
from vitrail.doctor.patient import Patient, admit

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def deit(real_data) -> Patient:
    patient, found = admit(real_data / "deit_tiny_in1k", real_data / "imagenette_mini", images=40, device="cpu")
    assert [finding.severity for finding in found] == ["ok"]
    return patient


def look(name: str, patient: Patient) -> list[Finding]:
    return [*CHECKS[name](patient)]


def with_model(patient: Patient, change) -> Patient:
    """The same patient with something done to a copy of its model."""
    model = copy.deepcopy(patient.model)
    with torch.no_grad():
        change(model)
    predictor = vitrail.Predictor(model, patient.preprocessing, patient.predictor.labels, "deit_ti16", "cpu")
    return Patient(patient.name, predictor, patient.batch)


def with_pictures(patient: Patient, x: torch.Tensor, count: int = 40) -> Patient:
    batch = replace(
        patient.batch, x=x[:count], groups=patient.batch.groups[:count], targets=patient.batch.targets[:count]
    )
    return Patient(patient.name, patient.predictor, batch)


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "history"])
def test_deit_is_healthy(deit, name):
    found = look(name, deit)
    assert [finding.severity for finding in found] == ["ok"] * len(found)
    figures = found[-1].figures
    if name == "positions":
        assert figures["neighbours"] > 0.9
    elif name == "preprocessing":
        assert figures["t"] < -2
    elif name == "labels":
        assert figures["neighbours"] > 0.8 and figures["z"] > 10
    elif name == "attention":
        assert 0.1 < figures["least"] < figures["most"] < 0.95


def test_photographs_in_blue_green_red_are_found(deit):
    pre = deit.preprocessing
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (pre.mean, pre.std))
    (found,) = look("preprocessing", with_pictures(deit, ((deit.batch.x * std + mean).flip(1) - mean) / std))
    assert found.code == "channel_order" and found.figures["t"] > 3


def test_photographs_that_were_never_normalised_are_found(deit):
    pre = deit.preprocessing
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (pre.mean, pre.std))
    (found,) = look("preprocessing", with_pictures(deit, deit.batch.x * std + mean, 16))
    assert found.severity == "fault" and found.code == "normalisation"


def test_shuffled_labels_of_photographs_are_found(deit):
    order = torch.randperm(len(deit.batch.x)).tolist()
    groups, targets = ([labels[i] for i in order] for labels in (deit.batch.groups, deit.batch.targets))
    shuffled = replace(deit, batch=replace(deit.batch, groups=groups, targets=targets))
    shuffled.__dict__["answers"] = deit.answers  # of the same pictures
    (found,) = look("labels", shuffled)
    assert found.severity == "fault" and found.code == "shuffled_labels"


def test_planted_faults_of_its_weights_are_found(deit):
    def no_positions(model):
        model.position.table.zero_()

    def half(model):
        fresh = vitrail.create_model("deit_ti16")
        model.load_state_dict(
            {n: t for n, t in fresh.state_dict().items() if n.startswith(("blocks.6", "blocks.7"))}, strict=False
        )

    def other_patches(model):
        model.patch.weight.copy_(vitrail.create_model("deit_ti16").patch.weight)

    def dead(model):
        model.blocks[4].attention.proj.weight[:, 64:128] = 0

    def frozen(model):
        model.blocks[5].requires_grad_(False)

    for change, check, code, where in (
        (no_positions, "positions", "positions_zero", "196"),
        (half, "weights", "half_loaded", "blocks 7–8"),
        (other_patches, "weights", "half_loaded", "the patch embedding"),
        (dead, "attention", "dead_head", "5.2"),
        (frozen, "frozen", "frozen", "block 6"),
    ):
        (found,) = look(check, with_model(deit, change))
        assert found.severity == "fault" and found.code == code and where in found.seen
