"""Where a call is to go: it travels as a plain name, and shows whoever sends it which replicas there are."""

from __future__ import annotations

from collections.abc import Callable


class NoSuchReplica(Exception):
    """The replica that a call was for does not run any more."""


class Addressed(str):
    """The name of a replica; "": any. `tell` is called, in any thread, with the names of all that run.

    Ray Serve makes the request router itself, in the process of the handle, and gives it nothing but the
    arguments of calls: so they carry what it is to tell.
    """

    __slots__ = ("tell",)
    tell: Callable[[frozenset[str]], None]

    def __new__(cls, replica: str, tell: Callable[[frozenset[str]], None]) -> Addressed:
        made = super().__new__(cls, replica)
        made.tell = tell
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)
