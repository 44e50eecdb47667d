"""What can be read is read without running any of it; what can't is refused in one sentence."""

import argparse
import json
import os
import pathlib
import pickle
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

import vitrail
from tests.weights.small import assert_equal_states, output, pth, small
from vitrail import VitrailError
from vitrail.weights import read_checkpoint
from vitrail.weights.files import read_source


def refusal(source) -> str:
    """The one sentence with which a source is refused."""
    with pytest.raises(VitrailError) as caught:
        read_checkpoint(source)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.fixture
def model():
    return small("vit")


@pytest.fixture
def state(model, tmp_path):
    """The small model's weights under timm's names."""
    return read_source(vitrail.save_weights(model, tmp_path / "made" / "timm.safetensors", dialect="timm")).state


class Runs:
    """What an attacker would pickle."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "named"),
    [(os.mkdir, "mkdir"), (eval, "eval"), (pathlib.Path.touch, "getattr")],
    ids=["os", "builtins", "method"],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_pickle_with_code_in_it_is_refused_by_name_and_never_run(function, named, legacy, state, tmp_path):
    target = tmp_path / "created"
    argument = f"open({str(target)!r}, 'w')" if function is eval else target if named == "getattr" else str(target)
    path = tmp_path / "evil.pth"
    torch.save({"model": state, "x": Runs(function, argument)}, path, _use_new_zipfile_serialization=not legacy)
    text = refusal(path)
    assert named in text
    assert "may hold only tensors and plain values" in text
    assert not target.exists()
    pickle.loads(pickle.dumps(Runs(function, argument)))  # the trap itself works
    assert target.exists()


def test_pickled_module_is_refused_by_the_name_of_its_class(model, tmp_path):
    assert "vitrail.models.vit.VisionTransformer" in refusal(pth(tmp_path / "whole.pth", model))


def test_what_training_scripts_leave_behind_is_read(state, tmp_path):
    windows = Runs(pathlib.WindowsPath, "C:\\", "runs")  # pickles as a path that was saved there does
    content = {
        "model": state,
        "args": argparse.Namespace(lr=1e-3, output_dir=pathlib.Path("/runs/x"), data=windows),
        "epoch": np.int64(299),
        "accuracy": np.float32(0.722),
        "best": np.bool_(True),
        "dtype": np.dtype("float16"),
    }
    path = pth(tmp_path / "checkpoint.pth", content)
    assert b"WindowsPath" in path.read_bytes()
    read = read_source(path).state
    assert read.keys() == state.keys()
    assert all(torch.equal(read[key], state[key]) for key in state)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "teacher", "module"])
@pytest.mark.parametrize("prefix", ["", "module.", "module.backbone.", "_orig_mod.", "model."])
def test_wrappers_and_prefixes_of_training_are_taken_off(wrapper, prefix, state, tmp_path):
    content = {"epoch": 3, wrapper: {prefix + key: value for key, value in state.items()}}
    assert read_source(pth(tmp_path / "model.pth", content)).state.keys() == state.keys()


def test_architecture_that_a_training_script_noted_is_kept(state, tmp_path):
    args = argparse.Namespace(model="deit_tiny_patch16_224")
    assert read_source(pth(tmp_path / "a.pth", {"model": state, "args": args})).config["architecture"] == args.model
    assert (
        read_source(pth(tmp_path / "b.pth", {"state_dict": state, "arch": "swin_t"})).config["architecture"] == "swin_t"
    )


def test_unreadable_files_are_each_told_in_one_sentence(state, tmp_path):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": [1, 2]}))
    assert "not a PyTorch checkpoint" in refusal(tmp_path / "plain.pkl")
    (tmp_path / "text.pth").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "not a PyTorch checkpoint" in refusal(tmp_path / "text.pth")
    (tmp_path / "empty.safetensors").touch()
    assert "is empty (0 bytes)" in refusal(tmp_path / "empty.safetensors")
    (tmp_path / "noise.bin").write_bytes(os.urandom(4096))
    assert "noise.bin" in refusal(tmp_path / "noise.bin")
    assert "expected a state_dict" in refusal(pth(tmp_path / "list.pth", [torch.ones(2)]))
    assert "expected a state_dict" in refusal(pth(tmp_path / "numbers.pth", {"epoch": 3}))
    with warnings.catch_warnings(action="ignore"):  # torch would rather have something newer
        torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "program.pt")
    with warnings.catch_warnings(action="error"):
        assert "is a TorchScript program" in refusal(tmp_path / "program.pt")
    (tmp_path / "text.npz").write_text("not a zip")
    assert "can't be read as .npz" in refusal(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", weights=np.array([{"a": 1}], dtype=object))
    assert "can't be read as .npz" in refusal(tmp_path / "objects.npz")


@pytest.mark.parametrize("keep", [4, 100, 0.5, 0.999])
def test_truncated_files_are_called_cut_off(keep, state, tmp_path):
    """Cut in the length of the header, in the header, and in the data."""
    save_file(state, tmp_path / "whole.safetensors")
    pth(tmp_path / "whole.pth", state)
    np.savez(tmp_path / "whole.npz", **{key: value.numpy() for key, value in state.items()})
    for whole in ("whole.safetensors", "whole.pth", "whole.npz"):
        data = (tmp_path / whole).read_bytes()
        path = tmp_path / f"cut_{whole}"
        path.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
        text = refusal(path)
        assert str(path) in text
        assert "cut off" in text or "not a PyTorch checkpoint" in text or "can't be read as .npz" in text
        if path.suffix == ".safetensors":
            assert "cut off or damaged" in text


def test_sources_that_are_not_there_are_named(tmp_path):
    assert "There is no file or folder" in refusal(tmp_path / "nowhere.safetensors")
    text = refusal(tmp_path)
    assert f"The folder {tmp_path} holds no weights" in text
    assert "model.safetensors" in text


def test_file_that_may_not_be_opened_is_told(state, tmp_path):
    path = tmp_path / "model.pth"
    path.symlink_to("/proc/self/mem")  # exists, and reading it fails
    assert "can't be opened" in refusal(path)


def test_folder_with_one_file_is_that_file_and_with_several_asks(state, tmp_path):
    save_file(state, tmp_path / "epoch_1.safetensors")
    assert read_source(tmp_path).state.keys() == state.keys()
    save_file(state, tmp_path / "epoch_2.safetensors")
    assert "epoch_1.safetensors, epoch_2.safetensors; name one" in refusal(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    assert read_source(tmp_path).path.name == "model.safetensors"


@pytest.mark.parametrize("content", ["{broken", "[1, 2]", '{"model_type": "vit", "id2label": 5}', "\xff"])
def test_broken_config_is_named(content, tmp_path):
    vitrail.save_weights(small("vit"), tmp_path / "folder", dialect="hf")
    (tmp_path / "folder" / "config.json").write_text(content, encoding="latin-1")
    assert "config.json" in refusal(tmp_path / "folder")


def test_unrelated_checkpoint_is_told_by_some_of_its_names(tmp_path):
    text = refusal(pth(tmp_path / "resnet.pth", resnet18().state_dict()))
    assert "holds 122 tensors (conv1.weight," in text
    assert "no Vision Transformer known here" in text


def test_variant_with_more_in_its_blocks_is_refused_rather_than_read_without_it(state, tmp_path):
    strange = state | {"blocks.0.attn.relative_position_bias_table": torch.ones(4)}  # as BEiT has
    save_file(strange, tmp_path / "model.safetensors")
    assert "blocks.0.attn.relative_position_bias_table, which no model here has" in refusal(tmp_path)


def test_head_of_another_task_is_left_out_with_a_warning(state, model, tmp_path):
    save_file(state | {"projector.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=r"left out, unknown here: projector\.weight"):
        read_checkpoint(tmp_path, heads=2)
    assert vitrail.load_weights(model, tmp_path).notes == ["left out, unknown here: projector.weight"]


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_sharded_weights_are_read_by_their_index(suffix, state, model, tmp_path):
    names = list(state)
    parts = {f"part-1.{suffix}": names[:7], f"part-2.{suffix}": names[7:]}
    for part, keys in parts.items():
        content = {key: state[key] for key in keys}
        save_file(content, tmp_path / part) if suffix == "safetensors" else torch.save(content, tmp_path / part)
    base = "model.safetensors" if suffix == "safetensors" else "pytorch_model.bin"
    index = tmp_path / f"{base}.index.json"
    index.write_text(json.dumps({"weight_map": {key: part for part, keys in parts.items() for key in keys}}))
    fresh = small("vit", num_classes=5)
    with torch.no_grad():
        fresh.class_token.zero_()
    vitrail.load_weights(fresh, tmp_path)
    assert_equal_states(fresh, model)

    (tmp_path / f"part-2.{suffix}").unlink()
    assert f"part-2.{suffix}, which is not beside it" in refusal(tmp_path)
    index.write_text("{}")
    assert "names no parts" in refusal(tmp_path)


def test_index_does_not_lead_out_of_its_folder(state, tmp_path):
    (tmp_path / "folder").mkdir()
    save_file(state, tmp_path / "outside.safetensors")
    index = {"weight_map": dict.fromkeys(state, "../outside.safetensors")}
    (tmp_path / "folder" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "outside.safetensors, which is not beside it" in refusal(tmp_path / "folder")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_file_of_another_precision_loads_as_fp32(dtype, state, model, tmp_path):
    save_file({key: value.to(dtype) for key, value in state.items()}, tmp_path / "half.safetensors")
    other = small("vit")
    vitrail.load_weights(other, tmp_path / "half.safetensors")
    assert {parameter.dtype for parameter in other.parameters()} == {torch.float32}
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs.to(dtype).float())
    x = torch.randn(2, 3, 32, 32)
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-6}[dtype]
    assert torch.allclose(output(other, x), output(model, x), atol=tolerance)
