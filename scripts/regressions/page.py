"""*page*: size and speed of the page in Chromium: bytes, first paint, frames while eight streams run.

Eight conversations of one tab stream at once. One is visible, with a pixel beside it that changes all the
time, so that the browser must draw every frame; dropped frames are those of the browser's own trace.
--pictures takes the manual's pictures instead: the chat, and the control room under load, light and dark.
Look at them before you commit them.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from bench.clients import Clients
from bench.prompts import random_tokens
from bench.traffic import BenchRequest, Priority
from playwright.sync_api import Browser, Page, expect

from openai_cpu_server.page.bundle import BUILT
from tests.page.browser import running_browser, visiting
from tests.page.talking import answers, endless, limit, say
from tests.server_process import ServerProcess

_STREAMS = 8
_OPENINGS = 5
_FIRST = ("app", "chunk", "index", "theme")
_FRAMES = "disabled-by-default-devtools.timeline.frame"
_TASKS = "disabled-by-default-devtools.timeline"
_LONG_TASK_US = 50_000
"""Length from which browsers call a task long: three frames pass meanwhile."""
_CLIENTS, _LOAD_S = 16, 65.0
_ANSWER_MS = 120_000
_SIZE = {"width": 1400, "height": 1080}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="docs/images")


def run(options: argparse.Namespace) -> None:
    if options.pictures:
        _take_pictures(options.model, options.pictures)
        return
    for line in (*sizes(), *speeds(options.model, options.seconds)):
        print(line, flush=True)


def sizes() -> Iterator[str]:
    compressed = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in sorted(BUILT.iterdir())}
    first = {name: size for name, size in compressed.items() if name.startswith(_FIRST)}
    kilobytes = [sum(some.values()) / 1000 for some in (compressed, first)]
    yield f"compressed: {kilobytes[0]:.0f} kB in all, {kilobytes[1]:.0f} kB of them for the first paint"


def speeds(model: str, seconds: float) -> Iterator[str]:
    with running_browser() as browser, ServerProcess("--model", model, "--max-seqs", "8") as server:
        paints = sorted(first_paint(browser, server) for _ in range(_OPENINGS))
        yield f"first paint: {median(paints):.0f} ms, at most {paints[-1]:.0f} ms, {_OPENINGS} times uncached"
        with visiting(browser, server) as visit:
            begin_streams(visit.page)
            yield from frames(traced(browser, visit.page, seconds), seconds)


def first_paint(browser: Browser, server: ServerProcess) -> float:
    with visiting(browser, server) as visit:
        expect(visit.page.get_by_label("Message", exact=True)).to_be_visible()
        entry = "performance.getEntriesByName('first-contentful-paint')[0]"
        found: float = visit.page.wait_for_function(f"{entry}?.startTime").json_value()
        return found


def begin_streams(page: Page) -> None:
    for number in range(_STREAMS):
        page.keyboard.press("Alt+n")
        expect(answers(page)).to_have_count(0)
        endless(page)
        say(page, f"Write a very long story, number {number}, with Markdown headings and code.")
        expect(answers(page).last).to_have_attribute("aria-busy", "true")
    expect(answers(page).last.locator(".prose")).to_contain_text(" ")


_BLINKING = """() => {
  const pixel = document.body.appendChild(document.createElement("div"));
  const place = { position: "fixed", inset: "0 auto auto 0", width: "1px", height: "1px" };
  Object.assign(pixel.style, { ...place, background: "red" });
  const blink = (time) => { pixel.style.opacity = (time % 100) / 100; requestAnimationFrame(blink); };
  requestAnimationFrame(blink);
}"""


def traced(browser: Browser, page: Page, seconds: float) -> list[dict[str, Any]]:
    page.evaluate(_BLINKING)
    browser.start_tracing(page=page, categories=["-*", _FRAMES, _TASKS])
    time.sleep(seconds)
    events: list[dict[str, Any]] = json.loads(browser.stop_tracing())["traceEvents"]
    return events


def frames(events: list[dict[str, Any]], seconds: float) -> Iterator[str]:
    names = [event["name"] for event in events]
    drawn = sorted(event["ts"] for event in events if event["name"] == "DrawFrame")
    gaps = sorted((b - a) / 1000 for a, b in pairwise(drawn))
    tasks = [event for event in events if event["name"] == "RunTask" and event.get("dur", 0) > _LONG_TASK_US]
    rate = f"{len(drawn) / seconds:.1f}/s drawn of {names.count('BeginFrame') / seconds:.1f}/s"
    dropped = names.count("DroppedFrame")
    yield f"frames while {_STREAMS} streams run: {rate}, {dropped} dropped in {seconds:.0f} s"
    if gaps:
        p99 = gaps[int(len(gaps) * 0.99)]
        yield f"between frames: p50 {median(gaps):.1f} ms, p99 {p99:.1f} ms; tasks over 50 ms: {len(tasks)}"


def _take_pictures(model: str, folder: Path) -> None:
    """Use fewer slots than clients, so that some wait."""
    with (
        running_browser() as browser,
        ServerProcess("--model", model, "--max-seqs", "12", "--ctx-size", "8192") as server,
        visiting(browser, server) as visit,
    ):
        page = visit.page
        page.set_viewport_size(_SIZE)
        _talk(page)
        _take(page, folder, "chat")
        page.keyboard.press("Alt+2")
        page.get_by_role("region", name="Control room").wait_for()
        load = Clients(httpx.URL(server.url).port or 80).closed_loop(_endless_requests(), _CLIENTS)
        threading.Thread(target=asyncio.run, args=(load,), daemon=True).start()
        page.wait_for_timeout(1000 * _LOAD_S)
        _take(page, folder, "control-room")


def _endless_requests() -> Iterator[BenchRequest]:
    draw = random.Random(0)
    for number in itertools.count():
        yield BenchRequest(
            prompt=random_tokens(draw.randint(20, 80), "page", number),
            max_tokens=draw.randint(200, 600),
            seed=number,
            priority=Priority.BATCH if number % 4 else Priority.INTERACTIVE,
        )


def _talk(page: Page) -> None:
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
    expect(answers(page).last.locator(".figures")).to_be_visible(timeout=_ANSWER_MS)


def _take(page: Page, folder: Path, room: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.wait_for_timeout(800)
        page.screenshot(path=folder / f"{room}-{theme}.png")
