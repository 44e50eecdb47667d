"""TensorBoard's event files, written by hand: a scalar is a few bytes of protocol buffer in a checksummed frame, and
the library that usually writes them brings more packages than the rest of training together."""

import os
import socket
import struct
import time
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


class EventFile:
    """`runs/x/events.out.tfevents…`: what `tensorboard --logdir runs` reads."""

    def __init__(self, folder: Path):
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / name).open("wb", buffering=0)  # an event is written when it is written
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, values: dict[str, float]) -> None:
        summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._write(_double(1, time.time()) + _varint(2 << 3) + _varint(step) + _bytes(5, summary))

    def close(self) -> None:
        self.file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self.file.write(length + _checksum(length) + event + _checksum(event))


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
