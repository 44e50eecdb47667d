"""`vitrail studio`: what it says when it can't start."""

import socket

import pytest

import vitrail
from vitrail.cli import main
from vitrail.serve.guard import is_loopback, split_host
from vitrail.serve.run import called


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
