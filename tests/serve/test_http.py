"""The Studio's server: whom it answers, what it refuses, and how large it grows."""

import http.client
import io
import json
import re
import socket
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import vitrail
import vitrail.serve
from vitrail.serve.run import MOST_CONNECTIONS

from .conftest import LABELS, Served, served_here, serving

PAGE = Path(vitrail.serve.__file__).parent / "page"


def send(
    studio: Served, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def sentence(content: bytes) -> str:
    return json.loads(content)["error"]


def png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG of one bit per pixel whose header says width×height, whatever `rows` unfold to."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def ico(inner: bytes) -> bytes:
    """An icon of one PNG or BMP."""
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inner), 22) + inner


@pytest.fixture(scope="module")
def fresh(studio: Served, picture: Path) -> Iterator[Served]:
    """Its memory has only known one picture."""
    with serving(studio.model) as served:
        assert send(served, "POST", "/api/pictures", picture.read_bytes())[0] == 200
        yield served


def test_the_studio_says_what_it_serves(studio):
    status, _, content = send(studio, "GET", "/api/studio")
    found = json.loads(content)
    assert status == 200
    assert [model["name"] for model in found["models"]] == ["small vit", "small swin", "small mae"]
    assert found["models"][0]["heads"] == [3, 3, 3, 3]
    assert found["models"][1]["heads"] == [2, 4, 4]
    assert [model["reconstructs"] for model in found["models"]] == [False, False, True]
    assert found["models"][0]["sizes"][:2] == [32, 48] and found["models"][0]["sizes"][-1] == 288


def test_bad_uploads_get_a_sentence_and_the_server_stays_up_and_small(fresh, picture):
    megabytes_200 = 200 * 2**20

    def pieces():
        for _ in range(200):
            yield bytes(2**20)

    hundred = png(10_000, 10_000, bytes(1251 * 10_000))
    bomb = png(60_000, 60_000, bytes(10**6))
    unfolding = png(64, 64, bytes(100 * 10**6))  # says it is small, and unfolds to 100 MB
    cases = [
        (b"not a picture, only words", {}, 400, r"^That file is not an image.*format: choose another\.$"),
        (b"", {}, 400, r"empty \(0 bytes\)"),
        (picture.read_bytes()[:200], {}, 400, r"damaged or incomplete.*choose another"),
        (hundred, {}, 400, r"^That file has 100,000,000 pixels \(10000×10000\).*limit is 50,000,000: save it smaller"),
        (bomb, {}, 400, r"has 3,600,000,000 pixels.*limit is 50,000,000"),
        (ico(hundred), {}, 400, r"has 100,000,000 pixels.*limit is 50,000,000"),  # Pillow decodes an icon to open it
        (
            b"icns" + struct.pack(">I", 16 + len(hundred)) + b"ic10" + struct.pack(">I", 8 + len(hundred)) + hundred,
            {},
            400,
            r"not an image of a known format",
        ),
        (pieces(), {"content_length": str(megabytes_200)}, 413, r"at most 32 MB"),
        (pieces(), {}, 413, r"at most 32 MB"),  # in chunks, without a length
    ]
    assert len(hundred) < 20_000 and len(bomb) < 20_000 and len(unfolding) < 200_000
    with fresh.growth() as most:
        for body, headers, status, words in cases:
            found, _, content = send(fresh, "POST", "/api/pictures", body, **headers)
            assert (found, bool(re.search(words, sentence(content)))) == (status, True), sentence(content)
            assert "Traceback" not in sentence(content)
        status, _, content = send(fresh, "POST", "/api/pictures", unfolding)  # no more is read than the header says
        assert (status, json.loads(content)["width"], json.loads(content)["height"]) == (200, 64, 64)
        assert send(fresh, "GET", "/api/studio")[0] == 200
    # One body of up to 32 MB in pieces, and as much again where the pieces lie; an icon alone would unfold to 400 MB.
    assert most[0] < 80


def test_an_icon_is_a_picture_too(studio, picture):
    file = io.BytesIO()
    Image.open(picture).resize((48, 48)).save(file, "ICO")
    status, _, content = send(studio, "POST", "/api/pictures", file.getvalue())
    assert (status, json.loads(content)["width"]) == (200, 48)


def test_unfinished_uploads_hold_no_more_than_two_bodies(fresh, picture):
    size = 20 * 2**20
    connections = [http.client.HTTPConnection("127.0.0.1", fresh.port, timeout=60) for _ in range(10)]
    with fresh.growth() as most:
        for connection in connections:
            connection.putrequest("POST", "/api/pictures")
            connection.putheader("content-length", str(size))
            connection.endheaders(bytes(size - 1))
        status, _, content = send(fresh, "POST", "/api/pictures", picture.read_bytes())
        assert (status, sentence(content)) == (503, "Too much is being asked at once: wait a moment.")
    assert most[0] < 90  # the ten together are 200
    answers = []
    for connection in connections:
        connection.send(b".")
        answers.append(connection.getresponse().status)
        connection.close()
    assert answers == [400] * 2 + [503] * 8  # zeros are no picture
    assert send(fresh, "POST", "/api/pictures", picture.read_bytes())[0] == 200


def test_an_upload_that_stalls_gives_its_place_to_the_next(studio, monkeypatch):
    monkeypatch.setattr("vitrail.serve.app.UPLOAD_SECONDS", 0.2)
    with served_here(vitrail.load(studio.model, device="cpu")) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
        connection.putrequest("POST", "/api/pictures")
        connection.putheader("content-length", "1000")
        connection.endheaders(b"some of it")
        answer = connection.getresponse()
        assert (answer.status, sentence(answer.read())) == (
            408, "The picture did not arrive in time: send it again.",
        )  # fmt: skip
        connection.close()


def test_connections_are_counted(fresh):
    idle = [socket.create_connection(("127.0.0.1", fresh.port)) for _ in range(MOST_CONNECTIONS)]
    assert send(fresh, "GET", "/api/studio")[0] == 503
    for connection in idle:
        connection.close()
    for _ in range(50):  # until the server has noticed
        if (status := send(fresh, "GET", "/api/studio")[0]) == 200:
            break
        time.sleep(0.05)
    assert status == 200


def test_only_its_own_name_and_origin_are_answered(studio):
    own = f"http://127.0.0.1:{studio.port}"
    assert send(studio, "GET", "/", host=f"localhost:{studio.port}")[0] == 200
    assert send(studio, "GET", "/api/studio", origin=own)[0] == 200
    for host in ("evil.example", f"evil.example:{studio.port}", "127.0.0.1:1", "127.0.0.1.evil.example"):
        assert send(studio, "GET", "/api/studio", host=host)[0] == 421
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://localhost:{studio.port}"},  # asked under one name, sent by a page under another
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},  # another port of this machine
    ):
        for method, path in (("GET", "/api/studio"), ("POST", "/api/pictures"), ("GET", "/page/main.js")):
            status, answer, _ = send(studio, method, path, b"" if method == "POST" else None, **headers)
            assert status == 403
            assert not [name for name in answer if name.startswith("access-control")]
    # A link on another site may lead to the page itself.
    assert send(studio, "GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200


def test_it_listens_on_loopback_only(studio):
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{studio.port:04X}")] == [f"0100007F:{studio.port:04X}"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2f..%2fapp.py", "/page/%2fetc%2fpasswd",
        "/page//etc/passwd", "/etc/passwd", "/api/samples/99", "/docs", "/openapi.json",
    ],
)  # fmt: skip
def test_no_path_of_a_request_is_read(studio, path):
    status, _, content = send(studio, "GET", path)
    assert status == 404
    assert sentence(content)


def test_a_picture_is_named_by_what_was_sent_and_by_nothing_else(studio, picture):
    asked = {"picture": str(picture), "size": 96}
    status, _, content = send(studio, "POST", "/api/look", json.dumps(asked).encode(), content_type="application/json")
    assert (status, sentence(content)) == (410, "That picture is no longer kept: drop it again.")


def test_the_policy_lets_nothing_in_from_outside(studio):
    for path in ("/", "/page/main.js", "/api/studio", "/nothing"):
        _, headers, _ = send(studio, "GET", path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, never asked for
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text, file.name


def test_wrong_questions_get_a_sentence(studio, picture):
    _, _, content = send(studio, "POST", "/api/pictures", picture.read_bytes())
    good = {"picture": json.loads(content)["picture"], "size": 96}
    for change, status, words in (
        ({"size": 97}, 400, "sizes from 32 to 288"),
        ({"model": 7}, 400, "no model 7"),
        ({"hidden": [36]}, 400, "no patch 36 to hide; there are 36"),
        ({"fit": "bent"}, 422, "trained"),
        ({"path": "/etc/passwd"}, 422, "path"),
    ):
        body = json.dumps({**good, **change}).encode()
        found, _, content = send(studio, "POST", "/api/classes", body, content_type="application/json")
        assert (found, words in sentence(content)) == (status, True), sentence(content)
    found, _, content = send(studio, "POST", "/api/classes", bytes(10**6), content_type="application/json")
    assert (found, "at most 256 kB" in sentence(content)) == (413, True)
    pieces = (bytes(2**16) for _ in range(8))  # in chunks, without a length
    found, _, content = send(studio, "POST", "/api/classes", pieces, content_type="application/json")
    assert (found, "at most 256 kB" in sentence(content)) == (413, True)
    found, _, content = send(studio, "GET", "/api/classes")
    assert (found, sentence(content)) == (405, "This can't be asked in that way.")
    found, _, content = send(studio, "POST", "/api/classes", json.dumps(good).encode(), content_type="application/json")
    assert sorted(c["label"] for c in json.loads(content)["classes"]) == sorted(LABELS)
    assert sum(c["probability"] for c in json.loads(content)["classes"]) == pytest.approx(1, abs=1e-5)
