"""The Studio's HTTP interface. No request names a path: pages and samples are looked up in lists made at the start."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitrail.errors import VitrailError
from vitrail.serve.answers import Asked, AskedLayers, AskedOverlay, AskedPaint, Busy, Left, Studio
from vitrail.serve.guard import Guard, TooLarge
from vitrail.serve.pictures import LARGEST_FILE, LARGEST_PICTURE, Gone, Sample, thumbnail
from vitrail.serve.views import Lens

PAGE = Path(__file__).parent / "page"
# Each holds a file of up to `LARGEST_FILE` from its first byte until it is decoded.
MOST_UPLOADS = 2
UPLOAD_SECONDS = 120  # one that stalls gives its place to the next
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(lenses: list[Lens], samples: list[Sample], host: str = "127.0.0.1") -> Guard:
    """The whole of it as one ASGI application, guarded."""
    # No interactive documentation: its page would load scripts from outside.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    studio = Studio(lenses, samples)
    files = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in PAGE.iterdir() if path.suffix in TYPES}
    thumbnails: dict[int, bytes] = {}
    uploads = asyncio.Semaphore(MOST_UPLOADS)

    def sentence(status: int, text: str) -> JSONResponse:
        return JSONResponse({"error": text}, status)

    @app.exception_handler(VitrailError)
    async def refused(_: Request, error: VitrailError) -> Response:
        return sentence(400, str(error))

    @app.exception_handler(TooLarge)
    async def too_large(_: Request, error: TooLarge) -> Response:
        return sentence(413, str(error))

    @app.exception_handler(RequestValidationError)
    async def misunderstood(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return sentence(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}.")

    @app.exception_handler(Gone)
    async def gone(*_: Any) -> Response:
        return sentence(410, "That picture is no longer kept: drop it again.")

    @app.exception_handler(Busy)
    async def busy(*_: Any) -> Response:
        return sentence(503, "Too much is being asked at once: wait a moment.")

    @app.exception_handler(ClientDisconnect)
    @app.exception_handler(Left)
    async def left(*_: Any) -> Response:
        return Response(status_code=499)

    @app.exception_handler(HTTPException)
    async def unanswered(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, TooLarge):  # met while FastAPI read a body
            return sentence(413, str(error.__cause__))
        own = {404: "There is nothing here.", 405: "This can't be asked in that way."}
        return sentence(error.status_code, own.get(error.status_code, f"{error.detail}."))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        memory = isinstance(error, MemoryError) or "out of memory" in str(error)
        reason = "there is not enough memory for this size: choose a smaller one" if memory else "see the terminal"
        return sentence(500, f"Something went wrong; {reason}.")

    @app.get("/")
    async def index() -> Response:
        return Response(files["index.html"][0], media_type=files["index.html"][1])

    @app.get("/page/{name}")
    async def page(name: str) -> Response:
        if name not in files:
            return sentence(404, "There is nothing here.")
        return Response(files[name][0], media_type=files[name][1])

    @app.get("/api/studio")
    async def about() -> dict[str, Any]:
        return {
            "models": [lens.about for lens in lenses],
            "samples": [{"name": sample.name, "credit": sample.credit} for sample in samples],
            "limits": {"bytes": LARGEST_FILE, "pixels": LARGEST_PICTURE},
        }

    @app.get("/api/samples/{number}")
    async def sample(request: Request, number: int) -> Response:
        if not 0 <= number < len(samples):
            return sentence(404, "There is no such sample.")
        if number not in thumbnails:
            thumbnails[number] = await studio.work(request, thumbnail, samples[number])
        return Response(thumbnails[number], media_type="image/jpeg")

    async def added(request: Request, function: Callable[..., Any], argument: Any) -> dict[str, Any]:
        name, image = await studio.work(request, function, argument)
        return {"picture": name, "width": image.width, "height": image.height}

    @app.post("/api/pictures")
    async def upload(request: Request) -> dict[str, Any]:
        if uploads.locked():
            async for _ in request.stream():  # a browser shows the answer only once its upload is through
                pass
            raise Busy
        async with uploads:
            try:
                async with asyncio.timeout(UPLOAD_SECONDS):
                    content = await request.body()
            except TimeoutError:
                raise HTTPException(408, "The picture did not arrive in time: send it again") from None
            return await added(request, studio.pictures.add, content)

    @app.post("/api/samples/{number}")
    async def choose(request: Request, number: int) -> dict[str, Any]:
        return await added(request, studio.pictures.add_sample, number)

    def binary(content: bytes) -> Response:
        return Response(content, media_type="application/octet-stream")

    @app.post("/api/look")
    async def look(request: Request, asked: Asked) -> Response:
        return binary(await studio.work(request, studio.look, asked))

    @app.post("/api/classes")
    async def classes(request: Request, asked: Asked) -> dict[str, Any]:
        return await studio.work(request, studio.classes, asked)

    @app.post("/api/said")
    async def said(request: Request, asked: Asked) -> Response:
        return binary(await studio.work(request, studio.said, asked))

    @app.post("/api/attention")
    async def attention(request: Request, asked: AskedLayers) -> Response:
        return binary(await studio.work(request, studio.attention, asked))

    @app.post("/api/tokens")
    async def tokens_(request: Request, asked: AskedLayers) -> Response:
        return binary(await studio.work(request, studio.tokens, asked))

    @app.post("/api/overlay")
    async def overlay(request: Request, asked: AskedOverlay) -> Response:
        return binary(await studio.work(request, studio.overlay, asked))

    @app.post("/api/spreads")
    async def spreads(request: Request, asked: Asked) -> dict[str, Any]:
        return await studio.work(request, studio.spreads, asked)

    @app.post("/api/positions")
    async def positions(request: Request, asked: Asked) -> Response:
        return binary(await studio.work(request, studio.position, asked))

    @app.post("/api/paint")
    async def paint(request: Request, asked: AskedPaint) -> Response:
        return binary(await studio.work(request, studio.paint, asked))

    return Guard(app, host, {"/api/pictures": LARGEST_FILE}, smallest=256 * 1024)
