"""The control room in a real browser: running and waiting requests are shown and can be ended."""

from __future__ import annotations

import os
import re
import signal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.browser import Visit, visiting
from tests.page.conftest import ANN, METER
from tests.page.talking import answers, endless, say
from tests.page.watching import generating, room
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]


@pytest.fixture(scope="module")
def server(slow_server: ServerProcess) -> ServerProcess:
    return slow_server


def test_a_running_request_is_shown_and_ended(visit: Visit, server: ServerProcess) -> None:
    page = room(visit)
    with generating(server):
        row = page.get_by_role("region", name="Running requests").get_by_role("row").filter(has_text="ann")
        expect(row).to_contain_text("writing")
        row.get_by_role("button", name="End ").click()
        row.get_by_role("button", name="Really end ").click()
        expect(page.get_by_text("No request is running.")).to_be_visible()


def test_a_streamed_answer_is_shown_continues_after_a_reload_and_is_gone_when_it_is_stopped(
    visit: Visit,
) -> None:
    """The test needs the slow server, because the demo model may finish before the click."""
    page = visit.page
    endless(page, 7000)
    say(page, "Tell a story.")
    answer = answers(page).last
    expect(answer.locator(".prose")).not_to_be_empty()
    expect(answer).to_have_attribute("aria-busy", "true")
    watching = visit.tab("/#/control")
    expect(watching.get_by_role("region", name="Running requests")).to_contain_text("writing")
    before = answer.locator(".prose").inner_text()
    page.reload()
    expect(answer.locator(".prose")).to_contain_text(re.compile(re.escape(before[:40]) + ".{60}", re.S))
    expect(answer).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(watching.get_by_text("No request is running.")).to_be_visible()


def test_the_timeline_of_steps_can_be_paused_stepped_through_and_read(
    visit: Visit, server: ServerProcess
) -> None:
    page = room(visit)
    steps = page.get_by_role("slider", name="Steps")
    with generating(server):
        expect(page.get_by_text(", computing ")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        steps.focus()
        page.keyboard.press("ArrowLeft")
        expect(steps).to_have_attribute("aria-valuetext", re.compile("tokens in .* predicted .* decode"))
        page.locator(".control-timeline summary").click()
        table = page.get_by_role("region", name="The last steps as a table")
        expect(table.get_by_role("row").nth(1)).to_contain_text("interactive")
        page.get_by_role("button", name="Resume").click()


def test_a_crashed_engine_is_shown_with_its_cause_and_requests_continue(
    visit: Visit, server: ServerProcess
) -> None:
    page = room(visit)
    with generating(server):
        expect(page.get_by_role("region", name="Running requests")).to_contain_text("writing")
        os.kill(server.engine.pid, signal.SIGSEGV)
        restarts = page.get_by_role("region", name="Restarts")
        expect(restarts).to_contain_text("SIGSEGV")
        expect(page.get_by_role("region", name="Running requests")).to_contain_text("writing")


@pytest.mark.slow
def test_a_key_without_the_scope_gets_an_explanation(browser: Browser, locked_server: ServerProcess) -> None:
    """A key without `admin` sees its own requests only."""
    with visiting(browser, locked_server) as visit:
        page = room(visit)
        _use_key(page, METER)
        expect(page.get_by_text("This key may not use the control room.")).to_be_visible()
        page.get_by_role("button", name="API key").click()
        _use_key(page, ANN)
        expect(page.get_by_text("only your own; others are counted")).to_be_visible()


def _use_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_nothing_overflows_the_screen_of_a_phone(browser: Browser, server: ServerProcess) -> None:
    with visiting(browser, server, width=360, height=740) as visit, generating(server):
        page = room(visit)
        expect(page.get_by_role("region", name="Running requests")).to_contain_text("writing")
        width = "document.querySelector('.control-room').scrollWidth"
        wait_until(lambda: page.evaluate(width) <= 360)


def test_leaving_the_room_closes_its_event_stream(visit: Visit) -> None:
    page = room(visit)
    expect(page.get_by_role("region", name="Models", exact=True)).to_contain_text("ready")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/events")):
        page.get_by_role("link", name="Chat").click()
