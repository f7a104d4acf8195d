"""Tools that the server runs, in the chat room: chosen, approved, shown, stopped. The MCP server is real."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.browser import Visit
from tests.page.talking import answers, composer, limit, say, settings, whole_answer
from tests.tool_server import HOSTILE
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

SHOWN = HOSTILE.replace("\u202e", "\\u{202e}")


def servers(page: Page) -> Locator:
    """The settings of MCP servers, with the tools of one."""
    part = settings(page, "MCP servers")
    part.get_by_role("checkbox", name="tools").check()
    expect(part.get_by_role("list", name="Tools of tools")).to_contain_text("doze")
    return part


def demand(page: Page, tool: str, *, ask: str = "never") -> None:
    """The model must call it first. It writes what is likely: else a call may have more arguments than its
    tool knows, and take long."""
    part = servers(page)
    part.get_by_label("Ask me").select_option(ask)
    part.get_by_label("When").select_option(f"tools/{tool}")
    settings(page, "Sampling").get_by_role("textbox", name="Temperature").fill("0")
    limit(page, 120)


def folded(page: Page, tool: str) -> Locator:
    """A call that was made."""
    return answers(page).last.locator("details.call", has_text=f"tools: {tool}")


def test_a_call_waits_for_its_approval_beyond_a_reload_and_is_made_once(visit: Visit) -> None:
    """And what strangers write is text, wherever it is shown."""
    page = visit.page
    demand(page, "lure", ask="always")
    tool = settings(page, "MCP servers").get_by_role("listitem").filter(has_text="lure")
    tool.get_by_text("Arguments of lure").click()
    expect(tool.get_by_text(SHOWN)).to_have_count(2)  # of the tool and of its argument
    say(page, "Look.")
    asked = page.get_by_role("group", name="Call of lure")
    expect(asked).to_contain_text('"word": "yes"')
    expect(page.get_by_text("A call is waiting for your approval.")).to_be_attached()
    page.reload()
    expect(asked).to_contain_text("waiting for you")
    composer(page).fill("Well?")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    with page.expect_request("**/v1/responses") as posted:
        asked.get_by_role("button", name="Approve").click()
    whole_answer(page)
    expect(asked).to_have_count(0)
    call = folded(page, "lure")
    expect(call).to_contain_text("done")
    call.locator("summary").click()
    expect(call.get_by_role("region", name="Result")).to_have_text(SHOWN)
    expect(page).to_have_title(re.compile("Look"))
    expect(page.locator(".answer").locator("img, script, a")).to_have_count(0)
    assert posted.value.post_data_json["tool_choice"] == "auto", "the demand was met"
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_a_server_that_is_not_reachable_says_why(visit: Visit) -> None:
    part = settings(visit.page, "MCP servers")
    gone = part.get_by_role("group", name="MCP server gone")
    gone.get_by_role("button", name="Show tools").click()
    expect(gone.get_by_role("alert")).to_contain_text("it has ended")
    expect(gone).to_contain_text("not reachable")


def test_nothing_of_it_is_drawn_where_there_are_no_servers(media_visit: Visit) -> None:
    page = media_visit.page
    settings(page, "Sampling")
    expect(page.get_by_text("MCP servers")).to_have_count(0)
    expect(page.get_by_role("button", name="MCP servers")).to_have_count(0)


@pytest.mark.slow
def test_a_tool_that_runs_goes_on_without_its_page_and_is_stopped(visit: Visit) -> None:
    page = visit.page
    demand(page, "doze")
    say(page, "Sleep.")
    runs = page.get_by_role("status").filter(has_text="Calling tools: doze")
    expect(runs).to_be_visible()
    page.reload()
    expect(runs).to_be_visible()
    with page.expect_response(lambda response: response.request.method == "DELETE") as deleted:
        page.get_by_role("button", name="Stop").click()
    expect(answers(page).last).to_contain_text("Stopped.")
    expect(folded(page, "doze")).to_contain_text("stopped")
    assert httpx.get(deleted.value.url, timeout=DEADLINE_S).status_code == 404, (
        "the server keeps nothing of it"
    )


@pytest.mark.slow
def test_a_call_that_is_denied_is_not_made_and_one_that_fails_says_why(visit: Visit) -> None:
    page = visit.page
    demand(page, "broken", ask="writes")
    say(page, "Try.")
    asked = page.get_by_role("group", name="Call of broken")
    asked.get_by_role("button", name="Deny").click()
    whole_answer(page)
    expect(asked).to_contain_text("denied")
    expect(folded(page, "broken")).to_have_count(0)
    settings(page, "MCP servers").get_by_label("Ask me").select_option("never")
    say(page, "Try again.")
    whole_answer(page)
    call = folded(page, "broken")
    expect(call).to_contain_text("failed")
    call.locator("summary").click()
    expect(call.get_by_role("region", name="Error")).to_contain_text("broken")
