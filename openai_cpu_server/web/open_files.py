"""Finds how many connections there can be among the files that the system lets this process open."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

_RESERVE = 128
"""Files for the process itself (a few dozen:
libraries, sockets, databases, uploads on their way to disk), and for connections that are refused."""


def room_for_connections(wanted: int) -> int:
    """How many connections there may be, at most `wanted`. The soft limit is raised as far as they need it.

    Beyond the limit of open files no connection is accepted, not even to be refused.
    """
    files = _raised(wanted + _RESERVE)
    possible = max(1, files - _RESERVE)
    if possible >= wanted:
        return wanted
    logger.warning(
        "%d connections at once, not the %d of --max-connections: the system lets this process open %d files "
        "(see ulimit -Hn)",
        possible,
        wanted,
        files,
    )
    return possible


def _raised(needed: int) -> int:
    """The limit of open files, which is raised towards `needed` if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # macOS has a limit below the hard one
        return soft
    return raised
