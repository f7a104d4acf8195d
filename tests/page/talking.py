"""Steps of a user in the chat room."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect


def composer(page: Page) -> Locator:
    return page.get_by_label("Message", exact=True)


def say(page: Page, text: str) -> None:
    composer(page).fill(text)
    composer(page).press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def whole_answer(page: Page) -> Locator:
    """Return the last answer when it is complete."""
    last = answers(page).last
    expect(last).to_have_attribute("aria-busy", "false")
    return last


def settings(page: Page, section: str) -> Locator:
    """Open the part of the settings with this title, and return it."""
    panel = page.get_by_role("complementary", name="Settings of this conversation")
    if not panel.is_visible():
        page.get_by_role("button", name="Settings", exact=True).click()
    part = panel.locator("details.section", has=page.locator("summary", has_text=section))
    if part.get_attribute("open") is None:
        part.locator("> summary").click()
    return part


def limit(page: Page, tokens: int) -> None:
    settings(page, "Length").get_by_role("textbox", name="Maximum length (tokens)").fill(str(tokens))


def endless(page: Page, tokens: int = 900) -> None:
    """Let the next answers run until they are stopped, or have so many tokens."""
    limit(page, tokens)
    settings(page, "Length").get_by_label("Ignore the end mark").check()


def import_file(page: Page, path: Path, *conversations: dict[str, Any]) -> None:
    file = {"format": "openai-cpu-server.conversations", "version": 1, "conversations": list(conversations)}
    path.write_text(json.dumps(file))
    page.get_by_label("File to import").set_input_files(path)
    expect(page.get_by_text(re.compile(rf"^{len(conversations)} conversations? imported"))).to_be_visible()


def conversation(title: str, *texts: str) -> dict[str, Any]:
    """Return a conversation of user and assistant by turns."""
    messages = [
        {
            "id": f"m{index}",
            "parent": f"m{index - 1}" if index else None,
            "role": "assistant" if index % 2 else "user",
            "content": text,
            "created": index + 1,
            "status": "done",
        }
        for index, text in enumerate(texts)
    ]
    return {"conversation": {"title": title, "leaf": f"m{len(texts) - 1}"}, "messages": messages}


def export(page: Page, button: Locator, path: Path, kind: str) -> str:
    """Return the text of the exported file. `kind` is `JSON` or `Markdown`."""
    button.click()
    with page.expect_download() as download:
        page.get_by_role("dialog").get_by_role("button", name=kind).click()
    download.value.save_as(path)
    return path.read_text()


def delete_conversation(page: Page, title: str) -> None:
    page.get_by_role("button", name=f"Actions for {title}").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def open_conversation(page: Page, title: str) -> None:
    page.get_by_role("navigation", name="Conversations").get_by_role("button", name=title, exact=True).click()
