"""Small documents of all kinds, generated here, each with its expected text."""

from __future__ import annotations

import datetime
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from typing import Any, NamedTuple

import odfdo
import pptx
import pypdf
import xlsxwriter
from PIL import Image
from pypdf.generic import (
    ArrayObject,
    DictionaryObject,
    FloatObject,
    NameObject,
    StreamObject,
    TextStringObject,
)

from tests.pdfs import pdf


class Sample(NamedTuple):
    name: str
    data: bytes
    texts: tuple[str, ...] = ()
    """Parts of the text, in order."""
    refusal: str = ""
    pages: tuple[int, ...] = ()
    """Pages that are pictures."""
    charset: str = ""
    lacks: str = "base64,"


def picture(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (200, 0, 0)).save(file, kind)
    return file.getvalue()


def archive(members: Mapping[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


# -- PDF ---------------------------------------------------------------------------------------------------


def edited_pdf(edit: Callable[[pypdf.PdfWriter], object], *pages: str, password: str | None = None) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(*pages or ("Page text",))))
    edit(writer)
    if password is not None:
        writer.encrypt(password, "owner", algorithm="AES-256")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def named(**values: Any) -> DictionaryObject:
    return DictionaryObject({NameObject(f"/{name}"): value for name, value in values.items()})


def annotation(kind: str, **values: Any) -> DictionaryObject:
    rectangle = ArrayObject(map(FloatObject, (100, 700, 200, 720)))
    return named(Type=NameObject("/Annot"), Subtype=NameObject(f"/{kind}"), Rect=rectangle, **values)


def add(writer: pypdf.PdfWriter, *annotations: DictionaryObject) -> None:
    for one in annotations:
        if "/AP" in one:
            looks: Any = one["/AP"]["/N"]  # type: ignore[index]
            for state in looks:
                looks[NameObject(state)] = writer._add_object(StreamObject())
    references = ArrayObject(writer._add_object(one) for one in annotations)
    writer.pages[0][NameObject("/Annots")] = references
    if any(one["/Subtype"] == "/Widget" for one in annotations):
        form = named(Fields=references, DA=TextStringObject("/Helv 0 Tf 0 g"))
        writer._root_object[NameObject("/AcroForm")] = writer._add_object(form)


def text_field(name: str, value: str) -> DictionaryObject:
    texts = {"T": TextStringObject(name), "V": TextStringObject(value)}
    return annotation("Widget", FT=NameObject("/Tx"), **texts)


def check_box(name: str, state: str) -> DictionaryObject:
    looks = named(N=named(Yes=StreamObject(), Off=StreamObject()))
    states = {"V": NameObject(f"/{state}"), "AS": NameObject(f"/{state}"), "AP": looks}
    return annotation("Widget", FT=NameObject("/Btn"), T=TextStringObject(name), **states)


def scanned(*texts: str | None) -> bytes:
    """Pages with these texts; None is a picture."""
    writer = pypdf.PdfWriter()
    for text in texts:
        file = io.BytesIO()
        Image.new("RGB", (60, 80), (200, 220, 240)).save(file, "PDF")
        source = io.BytesIO(pdf(text)) if text is not None else file
        writer.append(source)
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def half_a_character() -> bytes:
    meaning = StreamObject()
    meaning.set_data(b"2 beginbfchar <41> <D800> <42> <0043> endbfchar")

    def edit(writer: pypdf.PdfWriter) -> None:
        font: Any = writer.pages[0]["/Resources"]["/Font"]["/F1"]  # type: ignore[index]
        font[NameObject("/ToUnicode")] = writer._add_object(meaning)

    return edited_pdf(edit, "AB")


# -- Office ------------------------------------------------------------------------------------------------

_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_W = f'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:r="{_OFFICE}"'
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def docx(body: str, head: str = "", **parts: str) -> bytes:
    """`parts`: further parts by kind, such as `comments`."""
    rows = "".join(
        f'<Relationship Id="r{kind}" Type="{_OFFICE}/{kind}" Target="{kind}.xml"/>' for kind in parts
    )
    types = "".join(
        f'<Override PartName="/word/{kind}.xml" ContentType="application/vnd.openxmlformats-officedocument.'
        f'wordprocessingml.{kind}+xml"/>'
        for kind in ("document.main", *parts)
    ).replace("document.main.xml", "document.xml")
    document = f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="word/document.xml"/>'
    return archive(
        {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Default Extension="xml" ContentType="application/xml"/>{types}</Types>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{document}</Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{rows}'
            "</Relationships>",
            "word/document.xml": f"{head}<w:document {_W}><w:body>{body}</w:body></w:document>",
            **{f"word/{kind}.xml": text for kind, text in parts.items()},
        }
    )


def word_paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def word_table(*rows: tuple[str, ...]) -> str:
    cells = ("".join(f"<w:tc>{word_paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def xlsx(edit: Callable[[Any, Any], object]) -> bytes:
    file = io.BytesIO()
    with xlsxwriter.Workbook(file, {"in_memory": True}) as book:
        edit(book, book.add_worksheet("Sales"))
    return file.getvalue()


def sales(book: Any, sheet: Any) -> None:
    sheet.write_row(0, 0, ["Item", "Sum", "Day", "Paid"])
    day = book.add_format({"num_format": "yyyy-mm-dd"})
    sheet.write_row(1, 0, ["Pears, green", 3])
    sheet.write_datetime(1, 2, datetime.datetime(2026, 5, 4), day)
    sheet.write_boolean(1, 3, True)
    sheet.write_formula(2, 1, "=SUM(B2:B2)", None, 3.5)


def chart(book: Any, sheet: Any) -> None:
    sales(book, sheet)
    made = book.add_chart({"type": "column"})
    made.add_series({"values": "=Sales!$B$2:$B$2", "name": "Growth"})
    made.set_title({"name": "Growth of pears"})
    sheet.insert_chart("E2", made)


def pptx_of(edit: Callable[[Any, Any], object]) -> bytes:
    made = pptx.Presentation()
    slide = made.slides.add_slide(made.slide_layouts[1])
    slide.shapes.title.text = "Plan"
    edit(made, slide)
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


def slide_table(made: Any, slide: Any) -> None:
    table = slide.shapes.add_table(1, 2, 0, 0, 99999, 99999).table
    table.cell(0, 0).text, table.cell(0, 1).text = "left", "right"


def notes(made: Any, slide: Any) -> None:
    slide.notes_slide.notes_text_frame.text = "Speak slowly"


def slide_picture(made: Any, slide: Any) -> None:
    shown = slide.shapes.add_picture(io.BytesIO(picture()), 0, 0)
    shown._element._nvXxPr.cNvPr.set("descr", "a red square")


def grouped(made: Any, slide: Any) -> None:
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "within a group"


def hidden_slide(made: Any, slide: Any) -> None:
    slide._element.set("show", "0")


def open_document(kind: str, edit: Callable[[Any], object]) -> bytes:
    made = odfdo.Document(kind)
    made.body.clear()
    edit(made.body)
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


def odf_table() -> Any:
    table = odfdo.Table("T", width=2, height=1)
    table.set_value((0, 0), "wine")
    table.set_value((1, 0), 12)
    return table


def remarks(body: Any) -> None:
    paragraph = odfdo.Paragraph("A claim.")
    paragraph.insert_note(after="claim", note_id="n1", citation="1", body="its source")
    paragraph.insert_annotation(after="claim", body="who says so?", creator="Eve")
    body.append(paragraph)


CHAPTER = "<html xmlns='http://www.w3.org/1999/xhtml'><body><h1>{}</h1><p>{}</p></body></html>"


def epub(**more: str) -> bytes:
    return archive(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": "<container><rootfiles><rootfile full-path='OPS/book.opf'/></rootfiles>"
            "</container>",
            "OPS/book.opf": "<package><manifest><item id='b' href='b.xhtml'/>"
            "<item id='a' href='a%20a.xhtml'/></manifest>"
            "<spine><itemref idref='a'/><itemref idref='b'/></spine></package>",
            "OPS/a a.xhtml": CHAPTER.format("One", "It began."),
            "OPS/b.xhtml": CHAPTER.format("Two", "It ended."),
        }
        | more
    )


# -- others ------------------------------------------------------------------------------------------------

HTML = (
    "<!DOCTYPE html><html><head><title>Price list</title><style>p{color:red}</style>"
    "<script>alert('no')</script></head><body><h1>Prices</h1><p>Straße <a href='/x'>more</a></p>"
    f"<img alt='a cat' src='data:image/png;base64,{'A' * 400}'><table><tr><td>egg<td>2</table></body></html>"
)


def notebook(**more: object) -> bytes:
    png = {"output_type": "display_data", "data": {"image/png": "A" * 400, "text/plain": ["<Figure>"]}}
    error = {"output_type": "error", "traceback": ["\x1b[31mValueError\x1b[0m: no"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Study\n", "of pears"]},
        {"cell_type": "code", "source": "print(2)", "outputs": [{"output_type": "stream", "text": ["2\n"]}]},
        {"cell_type": "code", "source": "draw()", "outputs": [png, error]},
    ]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": cells, **more}).encode()


def mail(*attached: tuple[bytes, str, str], html: bool = False) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@example.org", "bob@example.org", "Grüße"
    message.set_content("<p>Hello <b>Bob</b></p>" if html else "Hello Bob", "html" if html else "plain")
    for data, kind, name in attached:
        main, _, sub = kind.partition("/")
        message.add_attachment(data, main, sub, filename=name)
    return message.as_bytes()


def changed(data: bytes, **members: bytes) -> bytes:
    """Add members to an archive, or replace them."""
    with zipfile.ZipFile(io.BytesIO(data)) as plain:
        return archive({name: plain.read(name) for name in plain.namelist()} | members)


UNREAD_MACROS = "[The macros of this document are not read.]"


def bomb(size: int) -> bytes:
    return docx(word_paragraph("a" * size))


LAUGHS = "<!DOCTYPE d [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;'>]>"
EXTERNAL = "<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)


def compound(stream: str) -> bytes:
    return COMPOUND + stream.encode("utf-16-le") + bytes(600)


def samples() -> list[Sample]:
    letter = pdf("The parcel is", "in the cellar.")
    comments = (
        f'<w:comments {_W}><w:comment w:id="0" w:author="Ann" w:date="2026-01-01T00:00:00Z">'
        f"{word_paragraph('Really?')}</w:comment></w:comments>"
    )
    commented = (
        '<w:p><w:commentRangeStart w:id="0"/><w:r><w:t>A claim</w:t></w:r><w:commentRangeEnd w:id="0"/>'
        '<w:r><w:commentReference w:id="0"/></w:r></w:p>'
    )
    footnote = f'<w:footnote w:id="2">{word_paragraph("its source")}</w:footnote>'
    notes_part = f"<w:footnotes {_W}>{footnote}</w:footnotes>"
    noted = '<w:p><w:r><w:t>Fact</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r></w:p>'
    return [
        Sample("pdf", letter, ("[Page 1]\nThe parcel is", "[Page 2]\nin the cellar.")),
        Sample("pdf behind blank lines", b"\n\n" + letter, ("[Page 1]", "cellar")),
        Sample("pdf behind other bytes", b"HTTP/1.1 200 OK\r\n\r\n" + letter, ("[Page 1]", "cellar")),
        Sample("pdf with half of a pair", half_a_character(), ("C",)),
        Sample("pdf with an empty password", edited_pdf(lambda _: None, password=""), ("Page text",)),
        Sample("pdf with a password", edited_pdf(lambda _: None, password="s"), refusal="encrypted"),
        Sample(
            "pdf form",
            edited_pdf(lambda w: add(w, text_field("Name", "Ada"), check_box("Member", "Yes")), "Name:"),
            ("Name:", "[Field Name: Ada]", "[Field Member: Yes]"),
        ),
        Sample(
            "blank pdf form",
            edited_pdf(lambda w: add(w, text_field("Name", ""), check_box("Member", "Off")), "Name:"),
            ("Name:",),
            lacks="[Field",
        ),
        Sample(
            "pdf with remarks",
            edited_pdf(
                lambda w: add(
                    w,
                    annotation("Text", Contents=TextStringObject("Check this"), T=TextStringObject("Eve")),
                    annotation("FreeText", Contents=TextStringObject("typed onto it")),
                )
            ),
            ("Page text", "[Note of Eve: Check this]", "[Note: typed onto it]"),
        ),
        Sample(
            "pdf with an attached file",
            edited_pdf(lambda w: w.add_attachment("sums.csv", b"a,b\n1,2")),
            ("Page text", "[Attached file: sums.csv]", "a,b\n1,2"),
        ),
        Sample(
            "pdf with an attached program",
            edited_pdf(lambda w: w.add_attachment("a.bin", bytes(range(256)))),
            ("[Attached file: a.bin]", "[It cannot be read: this is neither"),
        ),
        Sample("scan", scanned(None, None), pages=(1, 2)),
        Sample("scan with a typed page", scanned(None, "Typed"), ("[Page 2]\nTyped",), pages=(1,)),
        Sample("pdf with an empty page", pdf("Text", ""), ("Text", "[Page 2 is empty.]")),
        Sample("empty pdf", pdf(""), refusal="no text"),
        Sample("half a pdf", letter[:200], refusal="damaged"),
        Sample("head of a pdf", b"%PDF-1.4\n", refusal="damaged"),
        Sample("note about PDFs", b"A file begins with %PDF-1.7, always.", ("begins with %PDF-1.7, always",)),
        Sample("docx", docx(word_paragraph("Dear Ann") + word_paragraph("Grüße")), ("Dear Ann\nGrüße",)),
        Sample("docx table", docx(word_table(("a", "b"), ("c", "d"))), ("a | b\nc | d",)),
        Sample("docx comment", docx(commented, comments=comments), ("A claim", "Ann", "Really?")),
        Sample("docx footnote", docx(noted, footnotes=notes_part), ("Fact", "its source")),
        Sample(
            "docm",
            changed(docx(word_paragraph("Sums")), **{"word/vbaProject.bin": b"\0"}),
            ("Sums", UNREAD_MACROS),
        ),
        Sample("xlsm", changed(xlsx(sales), **{"xl/vbaProject.bin": b"\0"}), ("Pears", UNREAD_MACROS)),
        Sample(
            "pptm",
            changed(pptx_of(lambda m, s: None), **{"ppt/vbaProject.bin": b"\0"}),
            ("Plan", UNREAD_MACROS),
        ),
        Sample(
            "damaged xlsx", changed(xlsx(sales), **{"xl/worksheets/sheet1.xml": b"<x"}), refusal="damaged"
        ),
        Sample(
            "damaged pptx",
            changed(pptx_of(lambda m, s: None), **{"ppt/presentation.xml": b"<x"}),
            refusal="damaged",
        ),
        Sample(
            "damaged odt",
            changed(open_document("text", lambda b: None), **{"content.xml": b"<x"}),
            refusal="damaged",
        ),
        Sample("half a docx", docx(word_paragraph("Sums"))[:300], refusal="neither a PDF nor text"),
        Sample("xml", b"<?xml version='1.0'?><price>2</price>", ("<price>2</price>",)),
        Sample("markdown", "# Größe\n\n- a\n".encode(), ("# Größe\n\n- a",)),
        Sample("docx with entities", docx(word_paragraph("&b;"), LAUGHS), refusal="declares entities"),
        Sample(
            "docx with an external entity",
            docx(word_paragraph("&x;"), EXTERNAL),
            refusal="declares entities",
        ),
        Sample("docx bomb", bomb(140_000_000), refusal="unpacks to more than"),
        Sample("damaged docx", docx("<w:p>"), refusal="damaged"),
        Sample(
            "xlsx",
            xlsx(sales),
            ('[Sheet: Sales]\nItem,Sum,Day,Paid\n"Pears, green",3,2026-05-04', "TRUE", ",3.5"),
        ),
        Sample(
            "xlsx comment",
            xlsx(lambda _, s: (s.write(0, 0, 1), s.write_comment("A1", "too low"))),
            ("[Comment at A1:", "too low"),
        ),
        Sample(
            "xlsx with a hidden sheet",
            xlsx(lambda b, s: b.add_worksheet("Old").hide()),
            ("[Sheet: Old, hidden]",),
        ),
        Sample("xlsx chart", xlsx(chart), ("Pears", "[Chart: ", "Growth of pears")),
        Sample(
            "xlsx without results",
            xlsx(lambda _, s: s.write_formula(0, 0, "=1+1", None, "")),
            ("1 formulas in sheet1.xml have no stored result",),
        ),
        Sample("pptx", pptx_of(lambda m, s: None), ("[Slide 1]\nPlan",)),
        Sample("pptx table", pptx_of(slide_table), ("left | right",)),
        Sample("pptx notes", pptx_of(notes), ("[Notes: Speak slowly]",)),
        Sample("pptx picture", pptx_of(slide_picture), ("[picture: a red square]",)),
        Sample("pptx group", pptx_of(grouped), ("within a group",)),
        Sample("pptx with a hidden slide", pptx_of(hidden_slide), ("[Slide 1, hidden]",)),
        Sample("odt", open_document("text", lambda b: b.append(odfdo.Paragraph("A poem"))), ("A poem",)),
        Sample("odt table", open_document("text", lambda b: b.append(odf_table())), ("wine | 12",)),
        Sample(
            "odp",
            open_document("presentation", lambda b: b.append(odfdo.Paragraph("A talk"))),
            ("A talk",),
        ),
        Sample("odt remarks", open_document("text", remarks), ("A claim", "its source", "who says so?")),
        Sample(
            "ods", open_document("spreadsheet", lambda b: b.append(odf_table())), ("[Sheet: T]\nwine,12",)
        ),
        Sample("epub", epub(), ("[Section 1]", "# One", "It began.", "[Section 2]", "# Two", "It ended.")),
        Sample(
            "epub without a chapter",
            epub(
                **{
                    "OPS/book.opf": "<package><manifest><item id='a' href='none'/>"
                    "</manifest><spine><itemref idref='a'/></spine></package>"
                }
            ),
            ("[It is missing.]",),
        ),
        Sample(
            "html", HTML.encode(), ("Price list", "# Prices", "Straße", "a cat", "egg", "2"), lacks="alert"
        ),
        Sample("html without inline pictures", HTML.encode(), ("Prices",)),
        Sample(
            "html in another charset",
            b"<html><meta charset=windows-1251><p>\xcf\xf0\xe8\xe2\xe5\xf2",
            ("Привет",),
        ),
        Sample(
            "notebook",
            notebook(),
            (
                "[Cell 1]\n# Study\nof pears",
                "print(2)",
                "[Output]\n2",
                "<Figure>\n[picture]",
                "ValueError: no",
            ),
            lacks="AAAA",
        ),
        Sample("json with the word", b'{"nbformat": 4, "a": [1]}', ('"nbformat": 4',)),
        Sample(
            "rtf",
            rb"{\rtf1\ansi\ansicpg1252 Gr\'fc\'dfe {\b an} alle\par Ende}",
            ("Grüße", "an", "alle", "Ende"),
        ),
        Sample(
            "eml",
            mail((b"a,b", "text/csv", "t.csv")),
            ("Subject: Grüße", "Hello Bob", "[Attached file: t.csv]", "a,b"),
        ),
        Sample("eml in html", mail(html=True), ("Hello **Bob**",)),
        Sample(
            "eml with a pdf", mail((letter, "application/pdf", "l.pdf")), ("Hello", "[Page 1]\nThe parcel is")
        ),
        Sample(
            "eml with a scan",
            mail((scanned(None), "application/pdf", "s.pdf")),
            ("Page 1 is a picture, which is not",),
        ),
        Sample("csv", b"a;b\n1;2\n", ("a;b\n1;2",)),
        Sample("text with a mark of its bytes' order", "\ufeffGrüße".encode(), ("Grüße",), lacks="\ufeff"),
        Sample("text in utf-16", "Grüße".encode("utf-16"), ("Grüße",)),
        Sample("text in windows-1252", "Grüße – “so”".encode("cp1252"), ("Grüße – “so”",)),
        Sample("text in shift_jis", "日本語".encode("shift_jis"), ("日本語",), charset="shift_jis"),
        Sample("text in gb18030", "汉字".encode("gb18030"), ("汉字",), charset="gb18030"),
        Sample("text in windows-1251", "Привет".encode("cp1251"), ("Привет",), charset="windows-1251"),
        Sample(
            "text in an unknown charset", b"a", refusal="charset 'klingon' is not known", charset="klingon"
        ),
        Sample("text of DOS", b"a line\x0b and more\x00 of it\r\n\x1a", ("a line\n and more\ufffd of it",)),
        Sample("program", bytes(range(256)), refusal="neither a PDF nor text"),
        Sample("zip", archive({"a.txt": "a"}), refusal="the files of an archive can be attached"),
        Sample("half a zip", b"PK\x03\x04\0\0", refusal="neither a PDF nor text"),
        Sample("doc", compound("WordDocument"), refusal="saved as .docx"),
        Sample("ppt", compound("PowerPoint Document"), refusal="saved as .pptx"),
        Sample("encrypted docx", compound("EncryptedPackage"), refusal="encrypted"),
    ]
