"""Tools of a real MCP server in the chat room: choice, approval, result, stop."""

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

VISIBLE_TEXT = HOSTILE.replace("\u202e", "\\u{202e}")


def require(page: Page, tool: str, *, approval: str = "never") -> None:
    """Let the model call this tool first. Without greedy decoding a call may have unknown arguments, and take
    long."""
    part = settings(page, "MCP servers")
    part.get_by_role("checkbox", name="tools").check()
    expect(part.get_by_role("list", name="Tools of tools")).to_contain_text("doze")
    part.get_by_label("Ask me").select_option(approval)
    part.get_by_label("When").select_option(f"tools/{tool}")
    settings(page, "Sampling").get_by_role("textbox", name="Temperature").fill("0")
    limit(page, 120)


def finished_call(page: Page, tool: str) -> Locator:
    """Return the folded call of this tool in the last answer."""
    return answers(page).last.locator("details.call", has_text=f"tools: {tool}")


def test_a_call_waits_for_its_approval_beyond_a_reload_and_is_made_once(visit: Visit) -> None:
    """Text of the MCP server is never more than text, wherever it is shown."""
    page = visit.page
    require(page, "lure", approval="always")
    tool = settings(page, "MCP servers").get_by_role("listitem").filter(has_text="lure")
    tool.get_by_text("Arguments of lure").click()
    expect(tool.get_by_text(VISIBLE_TEXT)).to_have_count(2)  # of the tool and of its argument
    say(page, "Look.")
    request = page.get_by_role("group", name="Call of lure")
    expect(request).to_contain_text('"word": "yes"')
    expect(page.get_by_text("A call is waiting for your approval.")).to_be_attached()
    page.reload()
    expect(request).to_contain_text("waiting for you")
    composer(page).fill("Well?")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    with page.expect_request("**/v1/responses") as posted:
        request.get_by_role("button", name="Approve").click()
    whole_answer(page)
    expect(request).to_have_count(0)
    call = finished_call(page, "lure")
    expect(call).to_contain_text("done")
    call.locator("summary").click()
    expect(call.get_by_role("region", name="Result")).to_have_text(VISIBLE_TEXT)
    expect(page).to_have_title(re.compile("Look"))
    expect(page.locator(".answer").locator("img, script, a")).to_have_count(0)
    assert posted.value.post_data_json["tool_choice"] == "auto", "the required call was made"
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_the_reason_for_an_unreachable_server_is_shown(visit: Visit) -> None:
    part = settings(visit.page, "MCP servers")
    gone = part.get_by_role("group", name="MCP server gone")
    gone.get_by_role("button", name="Show tools").click()
    expect(gone.get_by_role("alert")).to_contain_text("it has ended")
    expect(gone).to_contain_text("not reachable")


def test_no_mcp_settings_are_shown_without_servers(media_visit: Visit) -> None:
    page = media_visit.page
    settings(page, "Sampling")
    expect(page.get_by_text("MCP servers")).to_have_count(0)
    expect(page.get_by_role("button", name="MCP servers")).to_have_count(0)


@pytest.mark.slow
def test_a_running_tool_continues_without_its_page_and_is_stopped(visit: Visit) -> None:
    page = visit.page
    require(page, "doze")
    say(page, "Sleep.")
    running_status = page.get_by_role("status").filter(has_text="Calling tools: doze")
    expect(running_status).to_be_visible()
    page.reload()
    expect(running_status).to_be_visible()
    with page.expect_response(lambda response: response.request.method == "DELETE") as deleted:
        page.get_by_role("button", name="Stop").click()
    expect(answers(page).last).to_contain_text("Stopped.")
    expect(finished_call(page, "doze")).to_contain_text("stopped")
    assert httpx.get(deleted.value.url, timeout=DEADLINE_S).status_code == 404, (
        "the server stores nothing of it"
    )


@pytest.mark.slow
def test_a_denied_call_is_not_made_and_a_failed_one_shows_its_error(visit: Visit) -> None:
    page = visit.page
    require(page, "broken", approval="writes")
    say(page, "Try.")
    request = page.get_by_role("group", name="Call of broken")
    request.get_by_role("button", name="Deny").click()
    whole_answer(page)
    expect(request).to_contain_text("denied")
    expect(finished_call(page, "broken")).to_have_count(0)
    settings(page, "MCP servers").get_by_label("Ask me").select_option("never")
    say(page, "Try again.")
    whole_answer(page)
    call = finished_call(page, "broken")
    expect(call).to_contain_text("failed")
    call.locator("summary").click()
    expect(call.get_by_role("region", name="Error")).to_contain_text("broken")
