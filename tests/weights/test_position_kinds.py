"""A kind of positions is one class: it answers what is asked of it, and no other module has a list of kinds."""

import pytest
import torch
from torch import nn

from tests.doctor.small import check
from vitrail.errors import VitrailError
from vitrail.explain import position_similarity
from vitrail.exporters.read_back import read_back
from vitrail.models import VisionTransformer
from vitrail.models.grid import resize_grid
from vitrail.models.position import KINDS
from vitrail.models.position_kind import Position
from vitrail.serve.strip import stages
from vitrail.weights import load_weights, model_from, read_checkpoint, save_weights

VIT = {"image_size": 32, "patch_size": 8, "width": 16, "depth": 2, "heads": 2, "num_classes": 4}


class ColumnPosition(Position):
    """A learned vector per column, and none per row: a kind that nobody has written down anywhere else."""

    kind, summary, acts = "columns", "a learned vector per column", "patches"
    learned = resized = True

    def __init__(self, width, grid, rule):
        super().__init__(rule)
        self.of_columns = nn.Parameter(torch.empty(grid[1], width))
        nn.init.trunc_normal_(self.of_columns, std=0.02)

    @classmethod
    def build(cls, shape):
        return cls(shape.width, shape.grid, shape.rule)

    def add(self, patches):
        return patches + resize_grid(self.of_columns[None], (1, patches.shape[2]), self.rule)

    @classmethod
    def recognised(cls, stored):
        if "of_columns" not in stored.state:
            return None
        side = len(stored.state["of_columns"])
        return {"image_size": (side * stored.stride[0], side * stored.stride[1])}

    @classmethod
    def resize(cls, state, old, new, rule):
        return {"of_columns": resize_grid(state["of_columns"][None], (1, new[1]), rule)[0]}


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setitem(KINDS, "columns", ColumnPosition)
    return VisionTransformer(**VIT, position="columns").eval()


def test_it_is_stored_and_recognised(model, tmp_path):
    path = save_weights(model, tmp_path / "model.safetensors")
    assert read_checkpoint(path).settings == model.settings
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    with pytest.warns(UserWarning, match="assumed: mean"):
        bare = read_checkpoint(tmp_path / "bare.pth", heads=2)
    assert (bare.settings.position, bare.settings.image_size) == ("columns", (32, 32))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model_from(bare)(x), model(x))


def test_it_is_resized_with_the_images(model, tmp_path):
    path = save_weights(model, tmp_path / "model.safetensors")
    wide = VisionTransformer(**{**VIT, "image_size": (32, 64)}, position="columns").eval()
    assert load_weights(wide, path).notes == ["positions resized from 4×4 to 4×8 by the rule 'timm'"]
    x = torch.randn(1, 3, 32, 64)
    torch.testing.assert_close(wide(x), model(x))
    learned = VisionTransformer(**VIT)
    assert load_weights(learned, path).notes == ["positions are learned; those of the file, columns, were left out"]


def test_it_can_be_looked_at(model):
    alike = position_similarity(model)  # [h, w, h, w]
    torch.testing.assert_close(alike[0, 1, 3, 1], torch.ones(()))
    assert alike[0, 0, 0, 1] < 0.9
    (stage,) = [stage for stage in stages(model, torch.randn(1, 3, 32, 32)) if stage.key == "positions"]
    assert stage.note == "a learned vector per column; one token in front"
    assert stage.table is not None

    (finding,) = check("positions", model)
    assert finding.severity == "ok" and finding.seen.startswith("columns, 4×4: size 0.02")


def test_what_another_library_has_no_place_for_is_refused_by_its_name(model, tmp_path):
    for dialect in ("timm", "hf", "torchvision"):
        with pytest.raises(VitrailError, match="can't do position='columns'"):
            save_weights(model, tmp_path / "model", dialect=dialect)


def test_a_file_of_ours_reads_back_as_it_was(model, tmp_path):
    path = save_weights(model, tmp_path / "model.safetensors")
    again, notes = read_back(path, model.settings, None)
    x = torch.randn(1, 3, 40, 32)
    assert torch.equal(again(x), model(x)) and notes == []


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_answers(name):
    """One sentence of itself, a place where it acts, and vectors, a carrier or a reason why there are none."""
    kind = KINDS[name]
    assert kind.kind == name and kind.summary
    assert kind.acts in ("nowhere", "patches", "attention", "between")
    position = VisionTransformer(**VIT, position=name).position
    assert type(position) is kind
    assert kind.learned == any(True for _ in position.parameters())
    vectors = position.vectors((3, 5), 16)
    if vectors is None:
        assert kind.no_vector
        assert kind.acts in ("nowhere", "attention", "between")
    else:
        assert vectors.shape[0] == 15 and vectors.dtype == torch.float32
    assert (position.carrier() is None) == (kind.acts in ("nowhere", "patches"))
    assert (position.as_table() is None) != kind.tabular
    if kind.tabular and not kind.learned:
        assert torch.equal(kind.formula(16, (4, 4)).flatten(0, 1), position.as_table()[1])
