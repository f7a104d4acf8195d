#!/usr/bin/env python3
"""How large and how fast the page is, in Chromium: bytes, first paint, frames while eight streams run.

    .venv/bin/python scripts/page_speed.py --model smollm2

Eight conversations of one tab stream at the same time; one of them is seen, and a pixel beside it changes all
the time, so that the browser is asked for every frame. Frames are those of the browser's own trace: a frame
that came too late, or not at all, is one that it dropped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from playwright.sync_api import Browser, Page, expect

from openai_cpu_server.page.bundle import BUILT
from tests.page.browser import running_browser, visiting
from tests.page.talking import answers, endless, say
from tests.server_process import ServerProcess

_STREAMS = 8
_OPENINGS = 5
_FIRST = ("app", "chunk", "index", "theme")
"""Files that a browser needs before it shows anything."""
_FRAMES = "disabled-by-default-devtools.timeline.frame"
_TASKS = "disabled-by-default-devtools.timeline"
_LONG_TASK_US = 50_000
"""Browsers call a task of this length long: three frames pass meanwhile."""


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=10.0, help="time that is looked at")
    given = parser.parse_args()
    for line in (*sizes(), *speeds(given.model, given.seconds)):
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
    told = f"{len(drawn) / seconds:.1f}/s drawn of {names.count('BeginFrame') / seconds:.1f}/s"
    dropped = names.count("DroppedFrame")
    yield f"frames while {_STREAMS} streams run: {told}, {dropped} dropped in {seconds:.0f} s"
    if gaps:
        p99 = gaps[int(len(gaps) * 0.99)]
        yield f"between frames: p50 {median(gaps):.1f} ms, p99 {p99:.1f} ms; tasks over 50 ms: {len(tasks)}"


if __name__ == "__main__":
    main()
