#!/usr/bin/env python3
"""Takes the manual's pictures of the page: its chat, and its control room under load, light and dark.

    .venv/bin/python scripts/page_pictures.py [--model smollm2] [--clients 16] [--seconds 65] [--out DIR]

It needs Playwright and Chromium. Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from events_cost import ask_for_ever, server
from playwright.sync_api import Page, expect, sync_playwright

from tests.page.talking import answers, limit, say

ROOT = Path(__file__).resolve().parents[1]
ANSWER_MS = 120_000
SIZE = {"width": 1400, "height": 1080}
OPTIONS = ("--max-seqs", "12", "--ctx-size", "8192")
"""Fewer slots than clients: some wait."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=65.0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    with server(options.model, *OPTIONS) as (port, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(f"http://127.0.0.1:{port}/")
        _talk(page)
        _take(page, options.out, "chat")
        page.keyboard.press("Alt+2")
        page.get_by_role("region", name="Control room").wait_for()
        page.evaluate(COUNT_LONG_TASKS)
        _begin_load(port, options.clients)
        page.wait_for_timeout(1000 * options.seconds)
        _take(page, options.out, "control-room")
        print(f"tasks of the page that took over 50 ms: {page.evaluate('window.longTasks')}")
        browser.close()


COUNT_LONG_TASKS = """() => {
  window.longTasks = 0;
  const note = (list) => (window.longTasks += list.getEntries().length);
  new PerformanceObserver(note).observe({ type: "longtask" });
}"""


def _begin_load(port: int, clients: int) -> None:
    for number in range(clients):
        threading.Thread(target=ask_for_ever, args=(port, number, threading.Event()), daemon=True).start()


def _talk(page: Page) -> None:
    """A list of conversations, and one in which code, tables of figures and a cached prompt can be seen."""
    for title in ("Translate a letter to the landlord", "Names for a boat"):
        _ask(page, title, tokens=8)
        page.keyboard.press("Alt+n")
        expect(answers(page)).to_have_count(0)
    _ask(page, "Write a Python function that finds the median of a list, and explain it.", tokens=160)
    _ask(page, "And what is it for an even number of values?", tokens=50)
    page.locator(".figures").last.locator("summary").click()
    page.get_by_role("complementary").evaluate("panel => panel.scrollTo(0, 0)")


def _ask(page: Page, text: str, *, tokens: int) -> None:
    limit(page, tokens)
    say(page, text)
    expect(answers(page).last.locator(".figures")).to_be_visible(timeout=ANSWER_MS)


def _take(page: Page, folder: Path, room: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.wait_for_timeout(800)
        page.screenshot(path=folder / f"{room}-{theme}.png")


if __name__ == "__main__":
    main()
