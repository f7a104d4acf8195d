"""Page for browsers. It needs no key, but its requests do."""

from __future__ import annotations

from anyio import Lock, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.state import AppState
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
"""Model output can neither run nor fetch anything, even behind a broken sanitizer."""
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(self), payment=(), usb=()",
}


class PageRoutes:
    """Files are read at the first request, to save memory."""

    def __init__(self, state: AppState) -> None:
        self._is_served = state.options.page
        self._bundle: Bundle | None = None
        self._reading = Lock()

    @ApiRoute("GET", "/", OPEN, "Page", media="text/html")
    async def index(self, request: Request) -> Response:
        """Return the page for browsers, with chat and control room."""
        if not self._is_served and request.method == "HEAD":
            return Response()  # Ollama's clients see by it if the server runs
        bundle = await self._read()
        return _response(request, bundle.index, bundle.version, "no-cache")

    @ApiRoute("GET", "/page/{version}/{name}", OPEN, "Page", media="text/javascript")
    async def file(self, request: Request) -> Response:
        """Return a script or style of this version, so that a page opened before an update notices."""
        bundle = await self._read()
        file = bundle.files.get(request.path_params["name"])
        if file is None or request.path_params["version"] != bundle.version:
            raise HTTPException(404)
        return _response(request, file, bundle.version, "public, max-age=31536000, immutable")

    async def _read(self) -> Bundle:
        if not self._is_served:
            raise HTTPException(404)
        async with self._reading:
            if self._bundle is None:
                self._bundle = await to_thread.run_sync(read_bundle)
        return self._bundle


def _response(request: Request, file: PageFile, version: str, caching: str) -> Response:
    is_small = _takes_gzip(request.headers.get("accept-encoding", ""))
    etag = f'"{version}-gzip"' if is_small else f'"{version}"'
    headers = {**SECURITY_HEADERS, "cache-control": caching, "etag": etag, "vary": "accept-encoding"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
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


ROUTER = ApiRouter[AppState](PageRoutes, is_hidden=lambda state: not state.options.page)
"""Hidden paths need no key and return 404."""
