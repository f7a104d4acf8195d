"""Accessibility of the page: findings of axe, small windows, large text."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fuzz.sounds import tone, wav
from tests.page.browser import Visit, visiting
from tests.page.talking import composer, conversation, import_file, open_conversation, settings
from tests.page.test_build import PACKAGES, run_script
from tests.page.test_chat import PRETTY
from tests.page.watching import generating, room
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

AXE = PACKAGES.parent / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def axe() -> str:
    """Source of axe, which scripts/page installs with the tools that build the page."""
    run_script("licences")
    if not AXE.exists():
        pytest.skip("npm or its packages cannot be had")
    return AXE.read_text()


def findings(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    report: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES
    )
    return [
        f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for violation in report["violations"]
        for node in violation["nodes"]
    ]


def open_filled(visit: Visit, folder: Path) -> Page:
    page = visit.page
    pretty = conversation("Pretty", "Hi", PRETTY)
    sound = base64.b64encode(wav(tone(1))).decode()
    pretty["messages"][0]["files"] = [
        {"name": "note.txt", "text": "Hello"},
        {"name": "low.wav", "sound": f"data:audio/wav;base64,{sound}", "seconds": 1},
    ]
    import_file(page, folder / "in.json", pretty)
    open_conversation(page, "Pretty")
    expect(page.locator("math").first).to_be_attached()
    return page


@pytest.mark.parametrize("theme", ["Light", pytest.param("Dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_in_a_conversation(visit: Visit, axe: str, tmp_path: Path, theme: str) -> None:
    page = open_filled(visit, tmp_path)
    page.get_by_role("radio", name=theme).check()
    for section in ("JSON schema", "MCP servers", "Length", "Reasoning", "Other"):
        settings(page, section)
    settings(page, "Tools").get_by_role("button", name="Add a function").click()
    page.get_by_title("Model").click()
    page.get_by_role("button", name="Actions for Pretty").click()
    assert findings(page, axe) == []


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_in_the_control_room(
    browser: Browser, slow_server: ServerProcess, axe: str, theme: Literal["light", "dark"]
) -> None:
    with visiting(browser, slow_server) as visit, generating(slow_server):
        page = room(visit)
        page.emulate_media(color_scheme=theme)
        expect(page.get_by_role("region", name="Running requests")).to_contain_text("writing")
        for summary in page.locator(".control-room summary").all():
            summary.click()
        assert findings(page, axe) == []
        assert visit.complaints == []


def is_too_wide(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def check_controls(page: Page) -> None:
    """Check that nothing is cut off at the side, and that the controls can be seen."""
    assert not is_too_wide(page)
    for control in (composer(page), page.get_by_role("button", name="Send"), page.get_by_title("Model")):
        expect(control).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="Settings", exact=True).click()
    panel = page.get_by_role("complementary")
    expect(panel.get_by_label("System prompt")).to_be_in_viewport(ratio=1)
    assert not is_too_wide(page)
    panel.get_by_role("button", name="Close the settings").click()
    page.get_by_role("button", name="Conversations", exact=True).click()
    expect(page.get_by_role("button", name="Pretty", exact=True)).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="Close the list").click()


@pytest.mark.parametrize(
    ("width", "height"),
    [
        pytest.param(360, 640, id="a phone"),
        pytest.param(640, 400, id="200 % of 1280", marks=pytest.mark.slow),
    ],
)
def test_a_small_window_shows_everything(
    browser: Browser, server: ServerProcess, axe: str, tmp_path: Path, width: int, height: int
) -> None:
    """Zoom of 200 % turns a window of 1280 x 800 into one of 640 x 400."""
    with visiting(browser, server, width=width, height=height) as visit:
        page = visit.page
        page.get_by_role("button", name="Conversations", exact=True).click()
        open_filled(visit, tmp_path)
        check_controls(page)
        assert findings(page, axe) == []
        assert visit.complaints == []
