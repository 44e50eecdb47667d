"""Figures of a run, read back by something else than what wrote them."""

import json
import struct
from pathlib import Path

import pytest

from vitrail.training.log import EventFile, Log


def crc32c(data: bytes) -> int:
    """By the definition: division of polynomials over GF(2), bit by bit, without a table."""
    remainder = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            top = (remainder ^ (byte >> bit)) & 1
            remainder >>= 1
            if top:
                remainder ^= 0x82F63B78
    return remainder ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_the_checksum_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C (RFC 3720, B.4)


def records(path: Path) -> list[bytes]:
    """TFRecord frames: length, its checksum, the bytes, their checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length, check), body = struct.unpack("<QI", data[:12]), data[12:]
        assert masked(crc32c(data[:8])) == check
        assert masked(crc32c(body[:length])) == struct.unpack("<I", body[length : length + 4])[0]
        found.append(body[:length])
        data = body[length + 4 :]
    return found


def fields(message: bytes) -> list[tuple[int, object]]:
    """(number, value) of a protocol buffer, not looking into nested ones."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value: object = varint()
        elif kind == 2:
            size = varint()
            value, at = message[at : at + size], at + size
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}[kind]
            value, at = struct.unpack(form, message[at : at + size])[0], at + size
        found.append((key >> 3, value))
    return found


def scalars(path: Path) -> dict[tuple[str, int], float]:
    """(tag, step) → value: Event.step = 2, Event.summary = 5, Summary.value = 1, Value.tag = 1, simple_value = 2."""
    found = {}
    for event in map(dict, map(fields, records(path)[1:])):
        for _, value in fields(event[5]):
            parts = dict(fields(value))
            found[parts[1].decode(), event[2]] = parts[2]
    return found


def test_events_hold_what_was_logged(tmp_path):
    log = Log(tmp_path, [], {})
    log.add({"epoch": 1, "train_loss": 1.25, "val_top1": 0.5, "note": "not a number"})
    log.add({"epoch": 300, "train_loss": 1e-3, "val_top1": 1.0})
    log.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    first = dict(fields(records(path)[0]))
    assert first[3] == b"brain.Event:2"
    assert scalars(path) == pytest.approx(
        {
            ("train_loss", 1): 1.25,
            ("val_top1", 1): 0.5,
            ("train_loss", 300): 1e-3,
            ("val_top1", 300): 1.0,
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 300] and rows[0]["note"] == "not a number"


def test_tensorboard_itself_reads_them(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    events = EventFile(tmp_path)
    events.add(3, {"loss": 0.25})
    events.close()
    (path,) = tmp_path.iterdir()
    found = [event for event in loader.EventFileLoader(str(path)).Load() if event.summary.value]
    assert [(event.step, event.summary.value[0].tag) for event in found] == [(3, "loss")]


def test_rows_of_a_resumed_run_replace_those_written_after_its_state(tmp_path):
    log = Log(tmp_path, [], {})
    log.add({"epoch": 1, "train_loss": 2.0})
    log.add({"epoch": 2, "train_loss": 1.0})
    log.close()
    again = Log(tmp_path, [{"epoch": 1, "train_loss": 2.0}], {})
    again.add({"epoch": 2, "train_loss": 1.0})
    again.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["epoch"] for line in text.splitlines()] == [1, 2]
