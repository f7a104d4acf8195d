"""Arguments: one line for each mistake, guesses, and other servers' options."""

from __future__ import annotations

import argparse
import difflib
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

import msgspec

from openai_cpu_server.errors import StartupError

_UNKNOWN = "unrecognized arguments: "


class CommandParser(argparse.ArgumentParser):
    """Parser that raises StartupError with one line instead of exiting."""

    def __init__(
        self, command: str, description: str, *, usage: str | None = None, epilog: str | None = None
    ) -> None:
        super().__init__(
            prog=f"openai-cpu-server {command}",
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
        )

    @property
    def options(self) -> list[str]:
        """Names that the help shows."""
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [name for action in shown for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            name = message.removeprefix(_UNKNOWN).split("=")[0].split()[0]
            message = unknown_option(name, self.options)
        raise StartupError(message if message.endswith("?") else f"{message} (see {self.prog} --help)")


def unknown_option(name: str, options: Iterable[str]) -> str:
    """`name`: with its dashes, or a word that no option takes."""
    if not name.startswith("-"):
        return f"unexpected argument {name!r}"
    peers, hyphenated = peer_options(), name.replace("_", "-")  # vLLM takes both
    if advice := peers.advice(hyphenated):
        return f"{name} is not an option of this server: {advice}"
    if ours := peers.same.get(hyphenated):
        return f"unknown option {name}; did you mean {ours}?"
    return f"unknown option {name}{guess(name, options)}"


def guess(name: str, valid_names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, or "" if no other is near."""
    by_letters = {each.strip("-[]").replace("_", "-"): each for each in valid_names}
    letters = name.strip("-[]").replace("_", "-").lower()
    longer = [each for each in by_letters if len(letters) > 1 and each.startswith(letters)]
    close = longer or difflib.get_close_matches(letters, by_letters, n=1, cutoff=0.7)
    return f"; did you mean {by_letters[close[0]]}?" if close else ""


class PeerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of other servers, from `peers.toml`."""

    same: dict[str, str]
    instead: dict[str, str]
    variables: dict[str, str]

    def advice(self, option: str) -> str:
        """Advice in place of an option, or ""."""
        starts = (each for each in self.instead if each[-1] == "-" and f"{option}-".startswith(each))
        return self.instead.get(option) or self.instead.get(next(starts, ""), "")


@functools.cache
def peer_options() -> PeerOptions:
    return msgspec.toml.decode(Path(__file__).with_name("peers.toml").read_bytes(), type=PeerOptions)


_OF_LLAMA_SERVER = "LLAMA_ARG_"
"""Prefix of llama-server's variables, which are named like its options."""


def peer_variables(names: Iterable[str], options: Collection[str]) -> Iterator[str]:
    """Yield advice for other servers' variables. `options`: ours."""
    peers = peer_options()
    prefixes = (_OF_LLAMA_SERVER, *(each for each in peers.variables if each.endswith("_")))
    for name in names:
        instead, advice = peers.variables.get(name), ""
        if instead is None and name.startswith(_OF_LLAMA_SERVER):
            theirs = "--" + name.removeprefix(_OF_LLAMA_SERVER).lower().replace("_", "-")
            instead = theirs if theirs in options else peers.same.get(theirs)
            if instead == "":
                continue  # this server always behaves so
            advice = peers.advice(theirs)
        if instead or name.startswith(prefixes):
            advice = f"use {instead}" if instead else advice
            yield f"the environment variable {name} has no effect here" + (f": {advice}" if advice else "")


def translated(arguments: Sequence[str]) -> list[str]:
    """Replace other servers' options by ours of the same meaning."""
    translation: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, sign, value = argument.partition("=")
        ours = peer_options().same.get(name.replace("_", "-"))
        if ours is None:
            translation.append(argument)
        elif ours.endswith(":"):
            translation.append(ours + (value or next(rest, "")))
        elif ours:
            translation.append(f"{ours}{sign}{value}")
    return translation


def words_and_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words before the first option."""
    words = list(takewhile(lambda argument: not argument.startswith("-"), arguments))
    return words, list(arguments[len(words) :])
