"""`vitrail studio`: what it says when it can't start."""

import socket

import pytest
from safetensors import safe_open

import vitrail
from vitrail.cli import main
from vitrail.serve.guard import is_loopback, split_host
from vitrail.serve.run import called, listen
from vitrail.weights.header import HEADER


def refusal(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["studio", *arguments, "--no-browser"])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.safetensors"
    return str(vitrail.save_weights(vitrail.create_model("vit_ti16", depth=1, num_classes=2), path))


def test_a_port_that_is_taken_is_named(model, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refusal([model, "--port", str(port)], capsys)
    assert f"Port {port} is in use" in said and "--port" in said


@pytest.mark.parametrize("port", [99999, 65536, -5])
def test_a_port_that_there_is_not_is_refused(port):
    with pytest.raises(vitrail.VitrailError, match=rf"^--port is from 0 to 65535, got {port}\.$"):
        listen("127.0.0.1", port)


@pytest.mark.parametrize("verb", ["studio", "doctor"])
def test_an_onnx_file_that_shows_no_layers_is_named(verb, model, tmp_path, monkeypatch, capsys):
    """The smallest graph that says of itself what an export of ours does."""
    from onnx import TensorProto, helper, save

    monkeypatch.chdir(tmp_path)
    with safe_open(model, "pt") as file:
        header = file.metadata()[HEADER]
    given = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Flatten", ["image"], ["logits"])], "model", [given], [logits])
    exported = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(exported, {HEADER: header})
    save(exported, "model.onnx")
    options = ["--port", "0", "--no-browser"] if verb == "studio" else []
    with pytest.raises(SystemExit) as stopped:
        main([verb, "model.onnx", *options])
    assert stopped.value.code == 2
    said = "model.onnx is an ONNX file, which shows no layers: name the run it was exported from."
    assert capsys.readouterr().err == f"vitrail: {said}\n"


def test_places_that_do_not_exist_are_named(model, tmp_path, capsys):
    assert "no place to listen called nowhere.invalid" in refusal([model, "--host", "nowhere.invalid"], capsys)
    assert "There is no folder" in refusal([model, "--samples", str(tmp_path / "none")], capsys)
    assert "none.safetensors" in refusal([str(tmp_path / "none.safetensors"), "--port", "0"], capsys)


def test_hosts_are_read_as_browsers_write_them():
    assert split_host("127.0.0.1:7860") == ("127.0.0.1", 7860)
    assert split_host("[::1]:7860") == ("::1", 7860)
    assert split_host("LocalHost") == ("localhost", None)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "studio.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_only_a_masked_autoencoder_paints(model, capsys):
    said = refusal([model, "--mae", model, "--port", "0"], capsys)
    assert f"{model} is no masked autoencoder" in said and "vitrail pretrain" in said


def test_runs_are_called_by_their_folders_and_two_that_agree_by_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = vitrail.create_model("vit_ti16", depth=1, num_classes=2)
    places = ["a/mine", "a/other", "b/mine"]
    for place in places:
        (tmp_path / place).mkdir(parents=True)
        vitrail.save_weights(net, tmp_path / place / "model.safetensors", name="vit_ti16")
    found = [vitrail.load(place, device="cpu") for place in places]
    assert called(places[:2], found[:2]) == ["mine (vit_ti16)", "other (vit_ti16)"]
    assert called(places, found) == ["a/mine (vit_ti16)", "other (vit_ti16)", "b/mine (vit_ti16)"]
    assert called(["a/mine/model.safetensors", found[0]], [found[0]] * 2) == [
        "a/mine/model.safetensors (vit_ti16)", "vit_ti16",
    ]  # fmt: skip


def test_the_help_names_what_it_speaks_of(capsys):
    with pytest.raises(SystemExit):
        main(["studio", "--help"])
    said = capsys.readouterr().out
    assert "[RUN ...]" in said and "(default: )" not in said
