"""What goes wrong with one request is the failure of that request alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from openai_cpu_server.errors import ConstraintFailed, ServerError

logger = logging.getLogger(__name__)


class RequestFailed(ServerError):
    """One request could not be served; the message is for its client.

    `is_own_fault`: its grammar is to blame, and it fails again wherever it is sent.
    """

    def __init__(self, message: str, *, is_own_fault: bool = False) -> None:
        super().__init__(message)
        self.is_own_fault = is_own_fault


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turns whatever the body raises into `RequestFailed`.

    A panic of Rust code arrives as a `BaseException` that is no `Exception`, so everything is caught but
    what ends a process or a generator.
    """
    try:
        yield
    except ConstraintFailed as error:
        raise RequestFailed(str(error), is_own_fault=True) from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.exception("a request could not be handled")
        raise RequestFailed(f"The engine could not handle this request ({type(error).__name__}).") from error
