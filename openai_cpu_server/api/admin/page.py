"""`GET /`: the page for browsers, and its files. The page needs no key, but its requests do."""

from __future__ import annotations

from functools import partial

from anyio import Lock, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.parts import AppState
from openai_cpu_server.http.keys import OPEN
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.page.bundle import Bundle, PageFile, read_bundle

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "media-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
"""Model output can neither run nor fetch anything, even if it passes the page's own sanitizer."""
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(self), payment=(), usb=()",
}
_ALWAYS_ASKED = "no-cache"
_KEPT_FOR_EVER = "public, max-age=31536000, immutable"
_NOT_MODIFIED = 304


class PageRoutes:
    """Reads the files at the first request, to save memory on servers without browsers."""

    def __init__(self) -> None:
        self._bundle: Bundle | None = None
        self._reading = Lock()

    async def index(self, request: Request) -> Response:
        bundle = await self._known()
        return _response(request, bundle.index, bundle.version, _ALWAYS_ASKED)

    async def file(self, request: Request) -> Response:
        """Return a file of this version only, so that a page opened before an update notices."""
        bundle = await self._known()
        file = bundle.files.get(request.path_params["name"])
        if file is None or request.path_params["version"] != bundle.version:
            raise HTTPException(404)
        return _response(request, file, bundle.version, _KEPT_FOR_EVER)

    async def _known(self) -> Bundle:
        async with self._reading:
            if self._bundle is None:
                self._bundle = await to_thread.run_sync(read_bundle)
        return self._bundle


class NoPage:
    async def index(self, request: Request) -> Response:
        """Ollama's clients send `HEAD` to see if the server runs."""
        if request.method == "HEAD":
            return Response()
        raise HTTPException(404)

    async def file(self, request: Request) -> Response:
        raise HTTPException(404)


def _response(request: Request, file: PageFile, version: str, caching: str) -> Response:
    is_small = _takes_gzip(request.headers.get("accept-encoding", ""))
    etag = f'"{version}-gzip"' if is_small else f'"{version}"'
    headers = {**SECURITY_HEADERS, "cache-control": caching, "etag": etag, "vary": "accept-encoding"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=_NOT_MODIFIED, headers=headers)
    headers["content-type"] = file.media_type
    if is_small:
        headers["content-encoding"] = "gzip"
    return Response(file.gzipped if is_small else file.body, headers=headers)


def _takes_gzip(accepted: str) -> bool:
    """`gzip;q=0` rejects gzip."""
    for offer in accepted.lower().split(","):
        name, _, quality = offer.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


_row = partial(ApiRoute[PageRoutes | NoPage], access=OPEN, tag="Page")
_rows = (
    _row(
        "GET",
        "/",
        lambda at: at.index,
        summary="The page for browsers: chat, control room",
        media="text/html",
    ),
    _row(
        "GET",
        "/page/{version}/{name}",
        lambda at: at.file,
        summary="Its scripts and styles",
        media="text/javascript",
    ),
)
ROOM = ApiRouter[AppState, PageRoutes | NoPage](
    lambda parts: PageRoutes() if parts.options.page else NoPage(),
    _rows,
    is_hidden=lambda parts: not parts.options.page,
)
"""Without the page, its paths need no key and return 404."""
