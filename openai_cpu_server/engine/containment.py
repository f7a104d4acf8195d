"""What goes wrong with one command is the failure of that command alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from openai_cpu_server.errors import ConstraintFailed, ServerError

logger = logging.getLogger(__name__)


class CommandFailed(ServerError):
    """One command could not be carried out; the message is for its client."""


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turns whatever the body raises into `CommandFailed`.

    A panic of Rust code arrives as a `BaseException` that is no `Exception`, so everything is caught but
    what ends a process or a generator.
    """
    try:
        yield
    except ConstraintFailed as error:
        raise CommandFailed(str(error)) from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.exception("a request could not be handled")
        raise CommandFailed(f"The engine could not handle this request ({type(error).__name__}).") from error
