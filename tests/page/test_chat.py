"""The chat room in a real browser, in front of a real server with the demo model."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.fuzz.sounds import RATE, tone, wav
from tests.page.browser import Visit
from tests.page.talking import (
    answers,
    composer,
    conversation,
    delete_conversation,
    endless,
    export,
    import_file,
    limit,
    open_conversation,
    say,
    settings,
    whole_answer,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

HOSTILE = """
<img src=x onerror="document.title='caught'"> <script>document.title='caught'</script>
<svg onload="document.title='caught'"></svg> <iframe src="javascript:alert(1)"></iframe>

[click](javascript:document.title='caught') [data](data:text/html,<script>1</script>) [ok](https://example.com/a)
[quote](https://example.com/"onmouseover="document.title='caught')

![spy](http://192.0.2.1/spy.png) ![x](javascript:1) $\\href{javascript:alert(1)}{x}$

$$\\htmlStyle{background:url(http://192.0.2.1/m)}{y}$$

```html"><img src=x onerror=alert(1)>
</code></pre><script>document.title='caught'</script><form action="http://192.0.2.1/"><input></form>
```
"""
PRETTY = """
# A title

| a | b |
|---|--:|
| 1 | 2 |

- [x] Done[^1]
- [ ] To do
  1. Nested

[^1]: The *note*.

```python
def f(x):
    return x
```

Then $x^2$ costs $5 and \\(y\\):

$$\\int_0^1 x\\,dx = \\frac12$$
"""


def test_an_answer_has_figures_and_edits_and_other_answers_are_branches(visit: Visit) -> None:
    page = visit.page
    endless(page, 6)
    say(page, "One")
    figures = whole_answer(page).locator(".figures")
    expect(figures.locator("summary")).to_contain_text("6 tokens")
    figures.locator("summary").click()
    expect(figures).to_contain_text("Queue")
    expect(figures).to_contain_text("Cached")
    page.get_by_role("button", name="Another answer").click()
    expect(answers(page).last.get_by_role("group", name="Versions")).to_have_text("2 / 2")
    whole_answer(page)
    page.get_by_role("article", name="You").hover()
    page.get_by_role("button", name="Edit and ask again").click()
    page.get_by_label("Your message").fill("Two")
    page.get_by_role("button", name="Ask again").click()
    question = page.get_by_role("article", name="You")
    expect(question).to_contain_text("Two")
    whole_answer(page)
    question.hover()
    question.get_by_role("button", name="Previous version").click()
    expect(question).to_contain_text("One")
    expect(answers(page).last.get_by_role("group", name="Versions")).to_have_text("2 / 2")


def test_an_answer_obeys_its_schema_and_a_wrong_schema_is_reported(visit: Visit) -> None:
    page = visit.page
    settings(page, "JSON schema").get_by_role("button", name="Person").click()
    say(page, "Ann is 31 and likes tea.")
    answer = whole_answer(page)
    expect(answer).to_contain_text("Matches its schema")
    expect(answer.locator(".json-form dt")).to_have_text(["name", "age", "likes"])
    answer.get_by_role("radio", name="JSON").check()
    assert set(json.loads(answer.locator("pre").inner_text())) == {"name", "age", "likes"}
    part = settings(page, "JSON schema")
    part.get_by_label("Schema", exact=True).fill("{")
    expect(part.get_by_role("alert")).to_be_visible()
    part.get_by_label("Schema", exact=True).fill('{"type": "object", "contentEncoding": 3, "$ref": "x"}')
    say(page, "x")
    expect(whole_answer(page).get_by_role("alert")).to_contain_text("response_format")
    visit.complaints.clear()  # the browser reports the status 400


def test_the_result_of_a_tool_call_is_answered(visit: Visit) -> None:
    page = visit.page
    part = settings(page, "Tools")
    part.get_by_role("button", name="Add a function").click()
    settings(page, "Tools").get_by_label("When").select_option("required")
    say(page, "What is the weather in Paris?")
    call = whole_answer(page).get_by_role("group", name="Call of get_weather")
    expect(call).to_contain_text("Arguments are valid")
    assert "city" in json.loads(call.locator("pre").inner_text())
    settings(page, "Tools").get_by_label("When").select_option("auto")
    limit(page, 30)
    call.get_by_label("Result").fill('{"sky": "clear"}')
    page.get_by_role("button", name="Send result").click()
    expect(page.get_by_role("article", name="Result of get_weather")).to_be_visible()
    expect(answers(page)).to_have_count(2)
    expect(whole_answer(page).locator(".figures")).to_be_visible()


def test_a_conversation_survives_a_reload(visit: Visit) -> None:
    page = visit.page
    limit(page, 8)
    settings(page, "System prompt").get_by_label("System prompt").fill("Be brief.")
    say(page, "Remember me.")
    text = whole_answer(page).locator(".prose").inner_text()
    page.reload()
    expect(page.get_by_role("article", name="You")).to_contain_text("Remember me.")
    expect(answers(page).last.locator(".prose")).to_have_text(text)
    expect(settings(page, "System prompt").get_by_label("System prompt")).to_have_value("Be brief.")


def test_a_second_tab_keeps_in_step(visit: Visit) -> None:
    first = visit.page
    limit(first, 8)
    say(first, "Hello from the first tab.")
    whole_answer(first)
    second = visit.tab("/" + first.evaluate("location.hash"))
    expect(second.get_by_role("article", name="You")).to_contain_text("Hello from the first tab.")
    say(second, "And from the second.")
    expect(first.get_by_role("article", name="You").last).to_contain_text("And from the second.")
    text = whole_answer(second).locator(".prose").inner_text()
    expect(answers(first).last.locator(".prose")).to_have_text(text)


def test_conversations_go_into_a_file_and_come_back(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    import_file(page, tmp_path / "in.json", conversation("Old talk", "Hi", "Hello **there**"))
    open_conversation(page, "Old talk")
    expect(answers(page).locator("strong")).to_have_text("there")
    exported = tmp_path / "out.json"
    export(page, page.get_by_role("button", name="Export all"), exported, "JSON")
    delete_conversation(page, "Old talk")
    expect(page.get_by_role("button", name="Old talk", exact=True)).to_have_count(0)
    page.get_by_label("File to import").set_input_files(exported)
    open_conversation(page, "Old talk")
    expect(answers(page).locator("strong")).to_have_text("there")
    page.get_by_label("File to import").set_input_files(Path(__file__))
    expect(page.get_by_text("This file is neither JSON nor Markdown from this page.")).to_be_visible()


def test_a_conversation_that_is_deleted_while_it_is_written_does_not_return(visit: Visit) -> None:
    page = visit.page
    endless(page)
    say(page, "A secret.")
    expect(answers(page).last.locator(".prose")).not_to_be_empty()
    delete_conversation(page, "A secret.")
    limit(page, 4)
    say(page, "Another matter.")
    whole_answer(page)
    stored = page.evaluate(
        """new Promise((resolve) => {
            indexedDB.open("openai-cpu-server").onsuccess = ({ target: { result } }) => {
                const request = result.transaction("messages").objectStore("messages").getAll();
                request.onsuccess = () => resolve(request.result.map(({ role }) => role));
            };
        })"""
    )
    assert sorted(stored) == ["assistant", "user"]


class HeldSocket:
    """Socket of a page without locks, as over HTTP from another machine. Messages behind the first one about
    half a prompt are held back until `release`, so that the test sees that progress on the page."""

    def __init__(self, page: Page) -> None:
        self._held: list[str | bytes] = []
        self._holds, self._is_released = False, False
        page.add_init_script("delete Navigator.prototype.locks")
        page.route_web_socket(re.compile("/v1/chat/completions"), self._opened)

    def _opened(self, ours: WebSocketRoute) -> None:
        self._send = ours.send
        ours.connect_to_server().on_message(self._forward)

    def _forward(self, message: str | bytes) -> None:
        if self._holds:
            self._held.append(message)
            return
        self._send(message)
        progress = json.loads(message).get("prompt_progress")
        is_half = progress is not None and progress["cache"] < progress["processed"] < progress["total"]
        self._holds = is_half and not self._is_released

    def release(self) -> None:
        self._holds, self._is_released = False, True
        for message in self._held:
            self._send(message)


def test_the_progress_of_a_prompt_is_shown(visit: Visit) -> None:
    page = visit.tab()
    socket = HeldSocket(page)
    page.reload()
    limit(page, 4)
    say(page, "Once upon a time. " * 60)
    waiting = answers(page).last.locator(".waiting")
    expect(waiting).to_have_text(re.compile(r"Reading your message2\d\d of 4\d\d tokens, .*about \d"))
    assert 0 < waiting.get_by_role("progressbar").evaluate("bar => bar.value") < 1
    socket.release()
    expect(whole_answer(page).locator(".figures")).to_be_visible()
    expect(waiting).to_have_count(0)


def test_pictures_are_picked_pasted_dropped_and_sent(media_visit: Visit, tmp_path: Path) -> None:
    """Pictures are in the message, also after a reload. A large one is sent smaller."""
    page = media_visit.page
    picture(tmp_path / "large.png", (3000, 1000))
    limit(page, 4)
    wait_for_attach_button(page)
    page.get_by_label("Files", exact=True).set_input_files(tmp_path / "large.png")
    for event in ("paste", "drop"):
        composer(page).evaluate(GIVE, [event, f"{event}.png"])
    chips = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(chips.locator("img.thumb")).to_have_count(3)
    page.get_by_role("button", name="Remove drop.png").click()
    expect(chips).to_have_count(2)
    say(page, "What are they?")
    expect(whole_answer(page).locator(".prose")).not_to_be_empty()
    images = page.get_by_role("article", name="You").locator("summary img")
    wait_until(lambda: images.evaluate_all(SIZES) == [[2048, 683], [8, 6]])
    page.reload()
    expect(page.get_by_role("article", name="You").locator("summary img")).to_have_count(2)


@pytest.mark.slow
def test_pictures_of_a_conversation_are_bounded_and_never_left_behind(
    media_visit: Visit, tmp_path: Path
) -> None:
    """Enter sends a picture that is still being read. A model without vision gets none. Each turn can send
    all pictures of the conversation again."""
    page = media_visit.page
    Image.effect_noise((1500, 1500), 90).save(tmp_path / "large.png")
    limit(page, 4)
    wait_for_attach_button(page)
    composer(page).fill("What is it?")
    page.get_by_label("Files", exact=True).set_input_files(tmp_path / "large.png")
    questions = page.get_by_role("article", name="You")
    wait_until(lambda: composer(page).press("Enter") or questions.count())  # also while it is read
    expect(questions.locator("summary img")).to_have_count(1)
    expect(whole_answer(page).locator(".prose")).not_to_be_empty()
    composer(page).evaluate(GIVE, ["drop", *(f"{index}.png" for index in range(30))])
    thumbs = page.get_by_role("list", name="Attached files").locator("img.thumb")
    expect(page.get_by_role("alert")).to_contain_text("27.png does not fit into this conversation")
    expect(thumbs).to_have_count(27)
    choose(page, "blind")
    expect(page.get_by_role("alert").last).to_contain_text("This model does not take pictures")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    choose(page, "seeing")
    say(page, "And these?")
    expect(questions).to_have_count(2)
    expect(whole_answer(page).locator(".prose")).not_to_be_empty()


def test_sounds_are_given_with_pictures_played_recorded_and_sent_in_their_order(
    media_visit: Visit, tmp_path: Path
) -> None:
    """Large sounds and recordings, whose format the server cannot read, are sent as models hear them."""
    page = media_visit.page
    (tmp_path / "low.wav").write_bytes(wav(tone(1)))
    (tmp_path / "long.wav").write_bytes(wav(tone(12, rate=48_000), rate=48_000))
    (tmp_path / "none.mp3").write_bytes(b"no sound at all")
    picture(tmp_path / "red.png", (40, 30))
    limit(page, 4)
    wait_for_attach_button(page)
    names = "low.wav", "red.png", "long.wav", "none.mp3"
    page.get_by_label("Files", exact=True).set_input_files([tmp_path / name for name in names])
    chips = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(page.get_by_role("alert")).to_have_text("none.mp3 is a sound that this browser cannot read.")
    expect(chips).to_have_text([re.compile(name) for name in ("low.wav 0:01", "red.png", "long.wav 0:12")])
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator(".composer-foot")).to_contain_text("0:01")
    page.get_by_role("button", name="Stop recording").click()
    expect(chips.last).to_contain_text("Recording at")
    choose(page, "blind")
    expect(page.get_by_role("alert").last).to_contain_text("This model does not take pictures")
    page.get_by_role("button", name="Remove red.png").click()
    expect(page.get_by_role("alert").last).to_contain_text("This model does not take sounds")
    choose(page, "seeing")
    composer(page).evaluate(GIVE, ["paste", "paste.png"])
    expect(chips).to_have_count(4)
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "What do they say?")
    figures = whole_answer(page).locator(".figures")
    figures.locator("summary").click()
    expect(figures).to_contain_text("Sounds in it")
    parts = sent.value.post_data_json["messages"][0]["content"]
    assert [part["type"] for part in parts] == [*["input_audio"] * 3, "image_url", "text"]
    sounds = [base64.b64decode(part["input_audio"]["data"]) for part in parts[:3]]
    assert sounds[0] == wav(tone(1))
    assert len(sounds[1]) == 44 + 12 * 2 * RATE
    assert sounds[2].startswith(b"RIFF")
    page.reload()
    players = page.get_by_role("article", name="You").locator("audio")
    expect(players).to_have_count(3)
    wait_until(lambda: players.first.evaluate("player => player.duration") == 1)


def test_answer_now_ends_the_thoughts_of_a_model(media_visit: Visit) -> None:
    page = media_visit.page
    choose(page, "blind")
    endless(page, 4000)
    say(page, "Tell me about the river and the bridge.")
    answer = answers(page).last
    answer.get_by_role("button", name="Answer now").click()
    expect(answer.locator(":scope > .prose")).not_to_be_empty()
    expect(answer.get_by_text("Thoughts")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")


def wait_for_attach_button(page: Page) -> None:
    name = "Attach pictures, sounds, documents and text files"
    expect(page.get_by_role("button", name=name)).to_be_visible()


def choose(page: Page, model: str) -> None:
    page.get_by_title("Model", exact=True).click()
    page.locator(".picker-card", has_text=model).click()
    page.keyboard.press("Escape")


GIVE = """async (field, [kind, ...names]) => {
  const canvas = new OffscreenCanvas(8, 6);
  const pen = canvas.getContext("2d");
  const clipboardData = new DataTransfer();
  for (const [index, name] of names.entries()) {
    pen.fillStyle = `rgb(${8 * index}, 0, 0)`;
    pen.fillRect(0, 0, 8, 6);
    clipboardData.items.add(new File([await canvas.convertToBlob()], name, { type: "image/png" }));
  }
  const event = kind === "paste" ? ClipboardEvent : DragEvent;
  const data = { clipboardData, dataTransfer: clipboardData };
  field.dispatchEvent(new event(kind, { ...data, bubbles: true, cancelable: true }));
}"""
SIZES = "all => all.map(image => [image.naturalWidth, image.naturalHeight])"


def picture(path: Path, size: tuple[int, int]) -> None:
    Image.new("RGB", size, (220, 10, 10)).save(path)


def test_the_text_of_a_model_is_never_more_than_text(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    import_file(page, tmp_path / "in.json", conversation("Hostile", HOSTILE, HOSTILE))
    open_conversation(page, "Hostile")
    prose = answers(page).locator(".prose")
    expect(prose.locator("a", has_text="ok")).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(prose.locator("script, img, iframe, svg, form, input, style, object, [style]")).to_have_count(0)
    targets = prose.locator("a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(targets) <= {"http:", "https:"}
    attributes = prose.locator("*").evaluate_all("all => all.flatMap(one => one.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert "caught" not in page.title()


def test_an_imported_file_with_odd_values_does_no_harm(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    odd = conversation("Odd", "Hi", "Hello", "And?", "Well.")
    odd["messages"][0]["parent"] = "m3"  # a cycle
    odd["messages"][1] |= {"usage": {"prompt_tokens": "x"}, "timings": {"queue_ms": []}, "toolCalls": [3, {}]}
    uris = "javascript:1", "data:audio/wav;base64,"
    sounds = [{"name": "x", "sound": uri, "seconds": "y"} for uri in uris]
    odd["messages"][2] |= {"files": [*sounds, {"picture": "data:text/html,x"}, None, 7]}
    odd["messages"][3] |= {"files": 7, "status": "streaming", "reasoning": "Let me think.", "schema": "{"}
    odd["conversation"] |= {"settings": {"tools": [None, {}], "options": {"stop": 3, "logit_bias": {}}}}
    import_file(page, tmp_path / "in.json", odd)
    open_conversation(page, "Odd")
    last = answers(page).last
    expect(last).to_contain_text("Well.")
    question = page.get_by_role("article", name="You").last
    expect(question.locator("audio, img")).to_have_count(1)
    last.get_by_text("Thoughts").click()
    expect(last).to_contain_text("Let me think.")
    last.get_by_role("button", name="Delete from here on").click()
    expect(answers(page)).to_have_count(1)


def test_markdown_is_rendered(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    import_file(page, tmp_path / "in.json", conversation("Pretty", "Hi", PRETTY))
    open_conversation(page, "Pretty")
    prose = answers(page).locator(".prose")
    expect(prose.locator("h1")).to_have_text("A title")
    expect(prose.locator("td").last).to_have_attribute("align", "right")
    expect(prose.get_by_role("img", name="done")).to_have_count(1)
    expect(prose.locator("li.task").last).to_have_text(re.compile(r"^To do\s+Nested\s*$"))
    note = prose.locator("ol.notes li")
    expect(note).to_have_text("The note.")
    prose.get_by_role("button", name="Footnote 1").click()
    expect(note).to_be_focused()
    expect(prose.locator(".hljs-keyword").first).to_have_text("def")
    expect(prose.locator("math")).to_have_count(3)
    expect(prose).to_contain_text("costs $5 and")
    prose.get_by_role("button", name="Copy").click()
    expect(prose.get_by_role("button", name="Copied")).to_be_visible()


def test_a_wide_table_wraps_its_headings_and_shows_where_it_continues(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    words = "A heading of several words"
    tables = "\n\n".join(
        f"{f'| {words} ' * columns}|\n{'|---' * columns}|\n{'| 1 ' * columns}|" for columns in (4, 20)
    )
    import_file(page, tmp_path / "in.json", conversation("Wide", "Hi", tables))
    open_conversation(page, "Wide")
    narrow, wide = answers(page).locator(".table").all()
    assert [narrow.evaluate(IS_SCROLLED), wide.evaluate(IS_SCROLLED)] == [False, True]
    for table in (narrow, wide):
        expect(table).to_have_css("border-right-width", "1px")
        expect(table).to_have_css("background-image", re.compile("linear-gradient.*rgba"))


IS_SCROLLED = "table => table.scrollWidth > table.clientWidth"


def test_the_page_has_keyboard_shortcuts(visit: Visit) -> None:
    page = visit.page
    expect(composer(page)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Shortcuts")
    expect(shortcuts).to_contain_text("New conversation")
    page.keyboard.press("Escape")
    expect(shortcuts).to_have_count(0)
    page.keyboard.press("/")
    expect(composer(page)).to_be_focused()
    page.keyboard.press("Alt+s")
    expect(page.get_by_role("complementary")).to_be_visible()
    page.keyboard.press("Alt+s")
    expect(page.get_by_role("complementary")).to_have_count(0)
    page.keyboard.press("Alt+2")
    expect(page.get_by_role("link", name="Control room")).to_have_attribute("aria-current", "page")
