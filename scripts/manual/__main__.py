"""Write the pages into docs/. `scripts/docs` calls this before each build."""

from manual.pages import DOCS, pages

for name, text in pages().items():
    (DOCS / name).write_text(text, encoding="utf-8")
