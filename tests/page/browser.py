"""The installed Chromium, headless and cut off from everything but this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Request,
    WebError,
    expect,
    sync_playwright,
)

from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

_ANSWER = re.compile(r"/v1/(chat/completions|responses)/[^/]+$")
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
_DEADLINE_MS = DEADLINE_S * 1000


def chromium() -> str:
    """Return Chromium's path, or skip the test. `scripts/bootstrap dev` installs it where it can."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium on the path (Debian: apt install chromium)")
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run one browser for all page tests. Meanwhile no other event loop can run in this thread."""
    options = [*_OPTIONS, "--no-sandbox"] if os.geteuid() == 0 else _OPTIONS
    expect.set_options(timeout=_DEADLINE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield browser
        browser.close()


class Visit:
    """Visit to a server's page, with the browser's complaints and its requests to other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.foreign_urls: list[str] = []
        page.context.on("request", self._requested)
        page.context.on("console", self._complained)
        page.context.on("weberror", self._failed)
        page.goto(url + "/")

    def tab(self, path: str = "/") -> Page:
        """Open another tab beside `page`."""
        page = self.page.context.new_page()
        page.goto(self.url + path)
        return page

    def forget(self) -> None:
        """Leave nothing to the next visit."""
        context = self.page.context
        for other in context.pages[1:]:
            other.close()
        self.page.evaluate("sessionStorage.clear()")
        with contextlib.suppress(Error):  # the server may be gone
            self.page.goto(self.url + "/health")  # after a blank page the next visit needs a new process
        session = context.new_cdp_session(self.page)
        session.send("Storage.clearDataForOrigin", {"origin": self.url, "storageTypes": "all"})
        session.detach()
        # Last, because complaints of a page that is left are not the next visit's.
        context.remove_listener("request", self._requested)
        context.remove_listener("console", self._complained)
        context.remove_listener("weberror", self._failed)

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.url, self.url.replace("http:", "ws:"), "data:", "blob:")):
            self.foreign_urls.append(request.url)

    def _complained(self, message: ConsoleMessage) -> None:
        # The answer had just ended when it was stopped, resumed or deleted; /health has no icon.
        path = message.location["url"].split("?")[0]
        is_expected = path.endswith(("/control", "/stream", "/lookup", "/favicon.ico")) or (
            ("404 (Not Found)" in message.text and _ANSWER.search(path)) or "409 (Conflict)" in message.text
        )
        if message.type == "error" and not is_expected:
            self.complaints.append(f"{message.text} {message.location['url']}")

    def _failed(self, error: WebError) -> None:
        self.complaints.append(str(error.error))


@contextmanager
def visiting(
    browser: Browser, server: ServerProcess, *, width: int = 1280, height: int = 800
) -> Iterator[Visit]:
    """Visit the page, and assert at the end that no other host got a request."""
    page = _window(browser)
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="null", reduced_motion="reduce")
    visit = Visit(page, server.url)
    try:
        yield visit
        assert visit.foreign_urls == []
    finally:
        visit.forget()


def _window(browser: Browser) -> Page:
    """Return the window of all visits. Another one for each would take half a second."""
    if browser.contexts:
        return browser.contexts[0].pages[0]
    context = browser.new_context()
    context.set_default_timeout(_DEADLINE_MS)
    return context.new_page()
