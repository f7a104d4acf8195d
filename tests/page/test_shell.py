"""The page around its rooms, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.browser import Visit

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def test_the_page_opens_and_has_two_rooms(visit: Visit) -> None:
    rooms = visit.page.get_by_role("navigation", name="Rooms")
    rooms.get_by_role("link", name="Control room").click()
    expect(rooms.get_by_role("link", name="Control room")).to_have_attribute("aria-current", "page")
    rooms.get_by_role("link", name="Chat").click()
    expect(rooms.get_by_role("link", name="Chat")).to_have_attribute("aria-current", "page")
