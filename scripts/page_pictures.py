#!/usr/bin/env python3
"""Pictures of the page for the manual: both rooms under load, light and dark.

    .venv/bin/python scripts/page_pictures.py docs/images

People and batch clients ask a server with SmolLM2 meanwhile. It writes page-chat-light.png,
page-chat-dark.png, page-control-light.png and page-control-dark.png.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
from PIL import Image
from playwright.sync_api import Page, expect

from tests.page.browser import Visit, running_browser, visiting
from tests.page.talking import answers, limit, say, whole_answer
from tests.server import ServerProcess

_COLOURS = 128
"""A picture of a page has few colours: so it takes a third of the bytes."""
_SHARED = "You are a careful assistant in a small library. Answer in plain words. " * 12
_QUESTIONS = ("What is a median?", "Why is the sky blue?", "Name three rivers.", "How does one make tea?")
_CONTROL_S = 45.0
"""The timeline shows a minute."""


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=12)
    given = parser.parse_args()
    with (
        ServerProcess("--model", given.model, "--max-seqs", "8") as server,
        running_browser() as browser,
        visiting(browser, server, width=1280, height=820) as visit,
    ):
        chat(visit, given.folder)
        with asking(server.url, given.clients):
            control(visit, given.folder)


@contextmanager
def asking(url: str, num_clients: int) -> Iterator[None]:
    """Every third client is a batch client; the others share a system prompt."""
    ended = threading.Event()
    clients = [threading.Thread(target=_ask, args=(url, number, ended)) for number in range(num_clients)]
    for client in clients:
        client.start()
    yield
    ended.set()
    for client in clients:
        client.join()


def _ask(url: str, number: int, ended: threading.Event) -> None:
    dice = random.Random(number)
    priority = "interactive" if number % 3 else "batch"
    while not ended.wait(dice.uniform(0, 2)):
        messages = [
            {"role": "system", "content": _SHARED},
            {"role": "user", "content": dice.choice(_QUESTIONS)},
        ]
        body = {"messages": messages, "max_tokens": dice.randint(30, 160), "priority": priority}
        httpx.post(url + "/v1/chat/completions", json=body, timeout=120)


def chat(visit: Visit, folder: Path) -> None:
    page = visit.page
    for title in ("Translate a letter to the landlord", "Names for a boat"):
        limit(page, 8)
        say(page, title)
        whole_answer(page)
        page.keyboard.press("Alt+n")
        expect(answers(page)).to_have_count(0)
    limit(page, 220)
    say(page, "Write a Python function that finds the median of a list, and explain it.")
    whole_answer(page)
    limit(page, 60)
    say(page, "And what is it for an even number of values?")
    whole_answer(page).locator(".figures summary").click()
    page.get_by_role("complementary").evaluate("panel => panel.scrollTo(0, 0)")
    pictures(page, folder, "chat")


def control(visit: Visit, folder: Path) -> None:
    visit.page.keyboard.press("Alt+2")
    time.sleep(_CONTROL_S)
    pictures(visit.page, folder, "control")


def pictures(page: Page, folder: Path, room: str) -> None:
    for theme in ("Dark", "Light"):
        page.get_by_role("radio", name=theme).check()
        time.sleep(1)
        path = folder / f"page-{room}-{theme.lower()}.png"
        page.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(_COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main()
