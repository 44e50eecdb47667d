"""What stands in front of the Studio: whose requests are answered, how large they may be, what a page may load.

A page on another site can send requests to 127.0.0.1 from the visitor's own browser. It can't forge the Host and Origin
headers, so both are compared with the names under which this server is really reached (a name that an attacker has
pointed at 127.0.0.1 is not among them). No answer carries a CORS header: another origin reads none.
"""

import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Nothing from outside, nothing inline, no frames around it. blob: is the dropped image and the PNG that is saved.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# A browser shows an answer only once its upload is through, so what is too long is read to its end and thrown away, a
# piece at a time. Beyond this the connection is closed instead.
MOST_DISCARDED = 1 << 30


class Guard:
    """ASGI: refuses foreign hosts and origins, counts bodies, adds the headers."""

    def __init__(self, app: Any, host: str, limits: dict[str, int], smallest: int = 64 * 1024):
        """`limits` are bytes of body by path; other paths take `smallest`."""
        self.app, self.limits, self.smallest = app, limits, smallest
        self.names = {"localhost", "127.0.0.1", "::1"}
        if not is_loopback(host):
            self.names |= {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # there are no WebSockets here
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        if refusal := self.refusal(scope, headers):
            return await answer(send, *refusal)
        limit = self.limits.get(scope["path"], self.smallest)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limit:
            await discard(receive)
            return await answer(send, 413, too_large(limit))

        seen = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:  # sent in pieces, without a length
                await discard(receive)
                raise TooLarge(too_large(limit))
            return message

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *encoded(HEADERS)]}
            await send(message)

        await self.app(scope, counted, with_headers)

    def refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        name, port = split_host(headers.get("host", ""))
        served, served_port = (scope.get("server") or ("", None))[:2]
        # An address can't be rebound as a name can, so the one that this connection came in on is right as well.
        if name not in self.names | {served} or (port or 80) != served_port:
            return 421, "This is Vitrail Studio under another name: open it by the address that it printed."
        own = f"http://{headers['host']}".lower()
        from_here = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if headers.get("origin", own).lower() != own or not from_here:
            # A link on another page may lead here; its scripts, forms and images may not.
            if scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate":
                return None
            return 403, "Only the Studio's own page may ask for this."
        return None


class TooLarge(Exception):
    """The sentence to answer with, and 413."""


def too_large(limit: int) -> str:
    size = f"{limit / 2**20:.0f} MB" if limit >= 2**20 else f"{limit / 2**10:.0f} kB"
    return f"That is too large: at most {size} can be sent here. Save the picture smaller, or as a JPEG."


async def discard(receive: Receive) -> None:
    seen = 0
    while seen < MOST_DISCARDED:
        message = await receive()
        seen += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return


async def answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = {**HEADERS, "content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    await send({"type": "http.response.start", "status": status, "headers": encoded(headers)})
    await send({"type": "http.response.body", "body": body})


def encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]


def split_host(value: str) -> tuple[str, int | None]:
    """ "[::1]:7860" -> ("::1", 7860)."""
    name, colon, port = value.lower().rpartition(":")
    if not colon or not port.isdigit():
        name, port = value.lower(), ""
    return name.removeprefix("[").removesuffix("]"), int(port) if port else None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
