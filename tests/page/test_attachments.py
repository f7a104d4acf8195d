"""Attached documents and text files, by button, paste and drop."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.browser import Visit
from tests.page.talking import answers, composer, export, import_file, limit, say, whole_answer
from tests.pdfs import pdf

pytestmark = [pytest.mark.native, pytest.mark.thorough]

GIVE = """(place, [kind, name, text]) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([text], name));
  const event = kind === "paste" ? ClipboardEvent : DragEvent;
  const data = { clipboardData, dataTransfer: clipboardData };
  place.dispatchEvent(new event(kind, { ...data, bubbles: true, cancelable: true }));
}"""


def test_documents_and_texts_of_every_kind_go_with_a_message_and_the_model_reads_them(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    letter = pdf("The code word is heron.")
    files = {
        "letter.pdf": letter,
        "page.html": b"<!doctype html><p>The code word is crane.</p>",
        "note.txt": "Grüße aus Köln".encode("utf-16"),
        "old.csv": "Straße;1".encode("cp1252"),
        "code.ts": b"const a = 1;",
        "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    limit(page, 4)
    page.get_by_role("button", name="Attach documents and text files").wait_for()
    page.get_by_label("Files", exact=True).set_input_files([tmp_path / name for name in files])
    composer(page).evaluate(GIVE, ["paste", "pasted.md", "# Pasted"])
    page.get_by_role("region", name="Messages").evaluate(GIVE, ["drop", "dropped.py", "print()"])
    chips = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(chips).to_have_count(8)
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "What is the code word?")
    expect(whole_answer(page).locator(".figures")).to_be_visible()
    document, web_page, words = sent.value.post_data_json["messages"][0]["content"]
    data = f"data:application/pdf;base64,{base64.b64encode(letter).decode()}"
    assert document == {"type": "file", "file": {"filename": "letter.pdf", "file_data": data}}
    assert web_page["file"]["filename"] == "page.html"
    for text in ("Grüße aus Köln", "Straße;1", "const a = 1;", "<svg", "# Pasted", "print()"):
        assert text in words["text"]
    page.reload()
    question = page.get_by_role("article", name="You")
    expect(question.get_by_role("link", name="letter.pdf")).to_have_attribute("download", "letter.pdf")
    exported = tmp_path / "out.json"
    export(page, page.get_by_role("button", name="Export all"), exported, "JSON")
    assert data in exported.read_text()


def test_a_file_that_no_model_reads_is_refused_in_one_sentence(visit: Visit, tmp_path: Path) -> None:
    """The page refuses other types, and the server a PDF without text."""
    page = visit.page
    limit(page, 4)
    (tmp_path / "archive.zip").write_bytes(b"PK\x03\x04\x14\x00")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    (tmp_path / "scan.pdf").write_bytes(pdf(""))
    page.get_by_label("Files", exact=True).set_input_files(
        [tmp_path / name for name in ("archive.zip", "photo.png", "scan.pdf")]
    )
    expect(page.get_by_role("alert")).to_have_text(
        "archive.zip is not a text, a document, a picture or a sound. "
        "photo.png is a picture, and this model does not take pictures."
    )
    say(page, "What does it say?")
    expect(answers(page).get_by_role("alert")).to_contain_text("the PDF has no text")
    visit.complaints.clear()  # the browser reports the status 400


def test_only_a_pdf_of_an_imported_file_becomes_a_link(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    uris = "data:application/pdf;base64,JVBERi0=", "data:text/html;base64,PGI+"
    files = [{"name": f"{index}.pdf", "document": uri} for index, uri in enumerate(uris)]
    message = {"id": "m", "parent": None, "role": "user", "content": "Hi", "files": files}
    import_file(page, tmp_path / "in.json", {"conversation": {"title": "Files"}, "messages": [message]})
    page.get_by_role("button", name="Files", exact=True).click()
    expect(page.get_by_role("article", name="You").locator("a")).to_have_text("0.pdf 5 B")
