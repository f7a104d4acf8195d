"""Conversations in the browser: search, export as Markdown and import, deletion."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import Visit
from tests.page.talking import (
    answers,
    conversation,
    delete_conversation,
    export,
    import_file,
    open_conversation,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def expect_titles(page: Page, *names: str) -> None:
    expect(page.get_by_role("navigation", name="Conversations").locator(".entry-open")).to_have_text(names)


def test_search_finds_titles_texts_and_names_of_files(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    boats = conversation("Boats", "Hi", "The Kestrel is a fine name")
    boats["messages"][0]["files"] = [{"name": "Harbour.txt", "text": "x"}]
    import_file(page, tmp_path / "in.json", conversation("Letters", "Dear landlord", "Yes"), boats)
    search = page.get_by_label("Search conversations")
    for words, found in (
        ("letters", "Letters"),
        ("LANDLORD", "Letters"),
        ("kestrel", "Boats"),
        ("harbour", "Boats"),
    ):
        search.fill(words)
        expect_titles(page, found)
    search.fill("heron")
    expect(page.get_by_text("No conversation contains “heron”.")).to_be_visible()
    search.fill("")
    expect_titles(page, "Boats", "Letters")


def test_a_conversation_becomes_markdown_and_comes_back(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    text = "# A heading\n\n<!-- openai-cpu-server: user -->\nis *text*"
    talk = conversation("Old talk", "Hi", text, "And?", "Well.")
    talk["messages"][1]["reasoning"] = "Let me think."
    talk["messages"][2]["files"] = [{"name": "note.txt", "text": "x"}]
    import_file(page, tmp_path / "in.json", talk)
    page.get_by_role("button", name="Actions for Old talk").click()
    path = tmp_path / "out.md"
    written = export(page, page.get_by_role("button", name="Export", exact=True), path, "Markdown")
    for line in ("# Old talk", "## You", "# A heading", "*Attached: note.txt*", "Let me think."):
        assert line in written.splitlines()
    delete_conversation(page, "Old talk")
    page.get_by_label("File to import").set_input_files(path)
    open_conversation(page, "Old talk")
    expect(answers(page)).to_have_count(2)
    expect(answers(page).first.locator("h1")).to_have_text("A heading")
    expect(answers(page).first.get_by_text("Thoughts")).to_be_visible()
    expect(page.get_by_role("article", name="You").last).to_contain_text("And?")


HOLD = """
  const read = IDBObjectStore.prototype.getAll;
  IDBObjectStore.prototype.getAll = function (...args) {
    const request = read.apply(this, args);
    if (this.name !== "conversations") return request;
    const held = { result: null };
    request.onsuccess = () => {
      held.result = request.result;
      window.goOn = () => held.onsuccess();
    };
    return held;
  };
  const channel = new BroadcastChannel("openai-cpu-server");
  channel.onmessage = ({ data }) => (window.isDeleted ||= Boolean(data.discarded));
"""


def test_a_conversation_that_is_deleted_while_the_list_is_read_stays_deleted(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    talks = conversation("Gone", "Hi", "Hello"), conversation("Kept", "Hi", "Hello")
    import_file(page, tmp_path / "in.json", *talks)
    other = visit.tab("/health")
    other.add_init_script(HOLD)
    other.goto(visit.url + "/")
    wait_until(lambda: other.evaluate("'goOn' in window"))
    delete_conversation(page, "Gone")
    wait_until(lambda: other.evaluate("window.isDeleted"))
    other.evaluate("goOn()")
    expect_titles(other, "Kept")


def test_an_answer_that_repeated_itself_shows_why_it_ended(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    talk = conversation("Loop", "Hi", "so and so and so")
    talk["messages"][1]["finish"] = "repetition"
    import_file(page, tmp_path / "in.json", talk)
    open_conversation(page, "Loop")
    expect(answers(page)).to_contain_text("because it repeated itself")
    expect(answers(page).get_by_role("button", name="Try again")).to_be_visible()
