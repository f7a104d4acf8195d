"""The control room, and a request to be shown in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from playwright.sync_api import Page, expect

from tests.page.browser import Visit
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

LONG = {"prompt": "Once upon a time", "ignore_eos": True, "max_tokens": 7000, "user": "ann"}


@contextmanager
def generating(server: ServerProcess, **more: object) -> Iterator[None]:
    """Run a request until it is ended or its reader leaves."""
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**LONG, "stream": True, **more}, timeout=DEADLINE_S
    ) as answer:
        assert answer.status_code == 200
        reader = threading.Thread(target=_read, args=(answer,), daemon=True)
        reader.start()
        yield


def _read(answer: httpx.Response) -> None:
    try:
        for _ in answer.iter_raw():
            pass
    except (httpx.HTTPError, httpx.StreamError, OSError):
        pass  # the test has closed the stream


def room(visit: Visit) -> Page:
    visit.page.goto(visit.url + "/#/control")
    expect(visit.page.get_by_role("region", name="Control room")).to_be_visible()
    return visit.page
