"""What people see when something is wrong, and that all goes on by itself when it is over."""

from __future__ import annotations

import os
import signal
import socket

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.page.browser import visiting
from tests.page.conftest import ANN
from tests.page.talking import answers, endless, limit, say, whole_answer
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def test_a_key_is_asked_for_and_kept_in_its_tab(browser: Browser, locked_server: ServerProcess) -> None:
    with visiting(browser, locked_server) as visit:
        page = visit.page
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("wrong")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog.get_by_role("alert")).to_have_text("The server does not know this key.")
        dialog.get_by_label("Key").fill("ключ")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog.get_by_role("alert")).to_contain_text("no such characters")
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
def test_the_text_goes_on_when_the_engine_dies(browser: Browser) -> None:
    with ServerProcess("--model", "demo") as server, visiting(browser, server) as visit:
        page = visit.page
        endless(page, 400)
        say(page, "Tell a long story.")
        prose = answers(page).last.locator(".prose")
        expect(prose).to_contain_text(" ")
        before = prose.inner_text()
        os.kill(server.engine.pid, signal.SIGKILL)
        figures = answers(page).last.locator(".figures")
        expect(figures).to_contain_text("400 tokens", timeout=DEADLINE_S * 1000)
        assert prose.inner_text().startswith(before[:20])
        assert httpx.get(server.url + "/health").json()["restarts"] == 1


@pytest.mark.slow
def test_a_server_that_comes_back_goes_on_where_it_was(browser: Browser) -> None:
    port = free_port()
    options = ("--model", "demo", "--port", str(port))
    with ServerProcess(*options) as server, visiting(browser, server) as visit:
        page = visit.page
        endless(page, 300)
        say(page, "Tell a long story.")
        prose = answers(page).last.locator(".prose")
        expect(prose).to_contain_text(" ")
        server.stop(signal.SIGKILL)
        expect(page.get_by_text("The server does not answer.").first).to_be_visible()
        before = prose.inner_text()
        with ServerProcess(*options):
            expect(page.get_by_text("The server does not answer.")).to_have_count(0)
            expect(answers(page).last.locator(".figures")).to_be_visible(timeout=DEADLINE_S * 1000)
            assert prose.inner_text().startswith(before[: len(before) // 2])
            assert len(prose.inner_text()) > len(before)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_a_full_queue_says_when_it_is_tried_again(browser: Browser) -> None:
    options = ("--model", "smollm2", "--max-queue", "1", "--max-seqs", "1")
    with ServerProcess(*options) as server, visiting(browser, server) as visit:
        page = visit.page
        endless(page, 800)
        for text in ("One", "Two", "Three"):
            say(page, text)
            expect(answers(page)).to_have_count(1)
            if text != "Three":
                page.keyboard.press("Alt+n")
                expect(answers(page)).to_have_count(0)
                endless(page, 800)
        expect(answers(page).get_by_role("status")).to_contain_text("The queue is full")
        page.get_by_role("navigation", name="Conversations").get_by_role(
            "button", name="Two", exact=True
        ).click()
        expect(answers(page).get_by_role("status")).to_contain_text("in the queue")
        expect(answers(page).locator(".figures")).to_be_visible(timeout=DEADLINE_S * 1000)


@pytest.mark.slow
def test_event_streams_do_where_no_websocket_comes_through(browser: Browser) -> None:
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


@pytest.mark.slow
def test_a_model_that_sleeps_is_loaded_by_choice(browser: Browser) -> None:
    with (
        ServerProcess("--model", "demo", "--model", "other=demo") as server,
        visiting(browser, server) as visit,
    ):
        page = visit.page
        page.get_by_title("Model").click()
        page.get_by_role("radio", name="other").check()
        expect(page.locator(".picker-card", has_text="other")).to_contain_text("ready")
        page.keyboard.press("Escape")
        limit(page, 5)
        say(page, "Hello")
        whole_answer(page).locator(".figures summary").click()
        expect(page.locator(".figures")).to_contain_text("other")
