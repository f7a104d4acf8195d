"""The settings and the choice of a model: what is shown, remembered and sent."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import Visit
from tests.page.talking import composer, endless, say, settings, whole_answer

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def test_settings_are_closed_at_the_first_visit_and_then_as_they_were_left(visit: Visit) -> None:
    page = visit.page
    panel = page.get_by_role("complementary", name="Settings of this conversation")
    expect(composer(page)).to_be_visible()
    expect(panel).to_have_count(0)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.reload()
    expect(panel).to_be_visible()
    panel.get_by_role("button", name="Close the settings").click()
    page.reload()
    expect(composer(page)).to_be_visible()
    expect(panel).to_have_count(0)


def test_low_priority_is_chosen_in_the_settings_shown_and_sent(visit: Visit) -> None:
    page = visit.page
    endless(page, 6)
    settings(page, "Priority").get_by_role("radio", name="Low").check()
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "Whenever you like.")
    assert sent.value.post_data_json["priority"] == "batch"
    figures = whole_answer(page).locator(".figures")
    figures.locator("summary").click()
    expect(figures).to_contain_text(re.compile("Priority.*low"))
    expect(page.locator(".meter")).to_have_text(re.compile(r"^\d+ tokens$"))
    page.get_by_role("button", name="Close the settings").click()
    page.get_by_role("button", name="Low priority").click()
    settings(page, "Priority").get_by_role("radio", name="Normal").check()
    expect(page.get_by_role("button", name="Low priority")).to_have_count(0)


def test_a_model_shows_its_size_and_what_it_is_good_for(media_visit: Visit) -> None:
    """A model that has not been loaded shows its file only."""
    page = media_visit.page
    page.get_by_title("Model", exact=True).click()
    cards = page.locator(".picker-card")
    sizes = r"\d+ M parameters · .*[kM]B file · [\d,]+ tokens of context.*"
    expect(cards.filter(has_text="blind")).to_have_text(re.compile(sizes + r"Good for [^.]+\.$"))
    expect(cards.filter(has_text="seeing")).to_have_text(
        re.compile(sizes + r"Good for [^.]+\. Takes pictures and sounds\.$")
    )
    expect(cards.filter(has_text="resting")).to_have_text(re.compile(r"asleep: [a-z ]+f32 · .*[kM]B file$"))


def test_the_settings_begin_with_the_model_s_own_sampling(visit: Visit) -> None:
    page = visit.page
    sampling, length = settings(page, "Sampling"), settings(page, "Length")
    sliders = {
        name: sampling.get_by_role("slider", name=f"{name}, slider") for name in ("Temperature", "Min p")
    }
    expect(sliders["Temperature"]).to_have_value("1")
    expect(sliders["Min p"]).to_have_value("0.05")
    expect(sampling.get_by_role("textbox", name="Min p")).to_have_attribute("placeholder", "0.05")
    most = length.get_by_role("textbox", name="Maximum length")
    expect(most).to_have_attribute("placeholder", "4096")
    sampling.get_by_role("textbox", name="Min p").fill("0.2")
    expect(sliders["Min p"]).to_have_value("0.2")
    sampling.get_by_role("button", name="reset Min p").click()
    expect(sliders["Min p"]).to_have_value("0.05")
    body = sent_body(page)
    assert not body.keys() & {"temperature", "min_p", "max_tokens"}, "the server applies its own"


def sent_body(page: Page) -> dict[str, object]:
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, "Hello")
    page.get_by_role("button", name="Stop").or_(page.get_by_role("button", name="Send")).wait_for()
    body: dict[str, object] = request.value.post_data_json
    return body
