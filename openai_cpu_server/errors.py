"""Every failure with a name. They carry data; `api/errors.py` alone turns them into HTTP."""

from __future__ import annotations


class ServerError(Exception):
    """Base of all failures that the package raises on purpose."""


class StartupError(ServerError):
    """The server cannot start; the message is one line for the person at the terminal."""


class InvalidRequest(ServerError):
    """The client's request is wrong; `param` names the field, `code` is OpenAI's, if it has one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(ServerError):
    """Prompt and requested output can never fit into the context, however long one waits."""

    def __init__(self, *, prompt_tokens: int, max_tokens: int, limit: int, param: str) -> None:
        super().__init__(
            f"This model's context is {limit} tokens, but {prompt_tokens + max_tokens} were asked for "
            f"({prompt_tokens} in the prompt, {max_tokens} for the output)."
        )
        self.param = param


class TemplateFailed(ServerError):
    """The chat template raised or cannot render these messages."""


class ModelNotFound(ServerError):
    """The request names a model that this server does not serve."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The model '{name}' does not exist on this server.")
        self.name = name


class RequestNotFound(ServerError):
    """No live request has this id: it has ended, or never was."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no live request '{name}'.")
        self.name = name


class Unauthorized(ServerError):
    """No API key, or a wrong one."""


class BodyTooLarge(ServerError):
    """The request's body exceeds the server's limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")
        self.limit = limit


class QueueFull(ServerError):
    """Too many requests of this priority wait already."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again later.")
        self.retry_after_s = retry_after_s


class EngineUnavailable(ServerError):
    """The engine is loading, or gone for good; nothing can be accepted now."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GenerationFailed(ServerError):
    """An accepted request ended with an error of ours."""


class RequestCancelled(ServerError):
    """An accepted request was ended by somebody other than its client."""
