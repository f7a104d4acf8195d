"""Errors that the page shows, and its recovery without the user."""

from __future__ import annotations

import signal

import pytest
from playwright.sync_api import Browser, expect

from tests.page.browser import visiting
from tests.page.conftest import ANN
from tests.page.talking import answers, endless, limit, say, whole_answer
from tests.proxies import free_port
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def test_a_key_is_requested_and_stored_in_its_tab_only(
    browser: Browser, locked_server: ServerProcess
) -> None:
    with visiting(browser, locked_server) as visit:
        page = visit.page
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("wrong")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog.get_by_role("alert")).to_have_text("The server does not recognize this key.")
        dialog.get_by_label("Key").fill("ключ")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog.get_by_role("alert")).to_contain_text("characters that a key cannot have")
        dialog.get_by_label("Key").fill(ANN)
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_have_count(0)
        limit(page, 5)
        say(page, "Hello")
        expect(whole_answer(page).locator(".figures")).to_be_visible()
        page.reload()
        expect(page.get_by_title("Model")).to_contain_text("demo")
        other = visit.tab()
        expect(other.get_by_role("dialog", name="API key")).to_be_visible()
        assert page.evaluate("Object.values(localStorage).join()").find(ANN) < 0


@pytest.mark.slow
def test_an_answer_continues_when_its_server_returns(browser: Browser) -> None:
    options = ("--model", "demo", "--port", str(free_port()))
    with ServerProcess(*options) as server, visiting(browser, server) as visit:
        page = visit.page
        endless(page, 300)
        say(page, "Tell a long story.")
        prose = answers(page).last.locator(".prose")
        expect(prose).to_contain_text(" ")
        server.stop(signal.SIGKILL)
        expect(page.get_by_text("The server is not responding.").first).to_be_visible()
        before = prose.inner_text()
        with ServerProcess(*options):
            expect(page.get_by_text("The server is not responding.")).to_have_count(0)
            expect(answers(page).last.locator(".figures")).to_be_visible()
            assert prose.inner_text().startswith(before[: len(before) // 2])
            assert len(prose.inner_text()) > len(before)


@pytest.mark.slow
def test_event_streams_replace_websockets_that_are_unavailable(browser: Browser) -> None:
    with ServerProcess("--model", "demo") as server, visiting(browser, server) as visit:
        page = visit.page
        page.evaluate("delete window.WebSocket; delete Navigator.prototype.locks")
        endless(page, 300)
        say(page, "Tell a story.")
        expect(answers(page).last.locator(".prose")).to_contain_text(" ")
        page.get_by_role("button", name="Stop").click()
        limit(page, 12)
        page.get_by_role("button", name="Another answer").click()
        expect(whole_answer(page).locator(".figures summary")).to_contain_text("12 tokens")
