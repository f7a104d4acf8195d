"""Chromium as people have it, without a window, and shut off from everything but this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from tests.server import ServerProcess

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
_PATIENCE_MS = 30_000
"""The longest that a test waits for something to appear; the machine may have much else to do."""


def chromium() -> str:
    """Its path. Skips the test where there is none: scripts/bootstrap dev installs it where it can."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium on the path (Debian: apt install chromium)")
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    """One for all of these tests: while it runs, no other event loop can run in this thread."""
    options = [*_OPTIONS, "--no-sandbox"] if os.geteuid() == 0 else _OPTIONS
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield browser
        browser.close()


class Visit:
    """A visit to a server's page. It keeps what the browser complained of, and whom else it asked."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        context.set_default_timeout(_PATIENCE_MS)
        context.on("request", self._requested)
        context.on("console", self._said)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        self.page = self.tab()

    def tab(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.goto(self.url + path)
        return page

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.url, self.url.replace("http:", "ws:"), "data:", "blob:")):
            self.strangers.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)


@contextmanager
def visiting(
    browser: Browser, server: ServerProcess, *, width: int = 1280, height: int = 800
) -> Iterator[Visit]:
    """Asserts at the end that nobody else was asked for anything."""
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    try:
        visit = Visit(context, server.url)
        yield visit
        assert visit.strangers == []
    finally:
        context.close()
