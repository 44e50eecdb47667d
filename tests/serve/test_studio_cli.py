"""`vitrail studio`: what it says when it can't start."""

import socket

import pytest

import vitrail
from vitrail.cli import main
from vitrail.serve.guard import is_loopback, split_host


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
