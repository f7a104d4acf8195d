"""How the options of `serve` are shown and refused: in users' words, not in Python's."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from openai_cpu_server.errors import StartupError

_KINDS = {"Path": "PATH", "list[Path]": "PATH", "int": "N", "float": "NUMBER"}
"""What the help shows for a value, by the type that pydantic names."""
_DEFAULTS = {
    " (default: null)": "",  # the description says what happens instead
    " (default: [])": "",
    " (default: True)": " (default: on)",
    " (default: False)": " (default: off)",
}


class OptionParser(argparse.ArgumentParser):
    """Raises StartupError with one line in place of printing a page and leaving."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, usage="%(prog)s [options]", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message} (see {self.prog} --help)")


def add_option(parser: argparse.ArgumentParser, *names: str, **kwargs: Any) -> argparse.Action:
    """Call `add_argument` with pydantic's texts turned into words for users."""
    kind = str(kwargs.get("metavar", "{"))
    if not kind.startswith("{"):  # a flag, or a choice that lists its values
        kwargs["metavar"] = _KINDS.get(kind, _last_word(names[0]))
    kwargs["help"] = _default_in_words(kwargs.get("help", ""))
    return parser.add_argument(*names, **kwargs)


def _default_in_words(text: str) -> str:
    for shown, words in _DEFAULTS.items():
        if text.endswith(shown):
            return text.removesuffix(shown) + words
    return text


def _last_word(option: str) -> str:
    """The name of an option's value: `--api-key` takes a KEY."""
    return option.rsplit("-", 1)[-1].upper()
