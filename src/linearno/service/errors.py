"""Errors of a request: an HTTP status and one line."""

from linearno.core.errors import UserError, shorten

MAX_REPLY_LENGTH = 400  # characters of a message


class RequestError(UserError):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: what was expected, what came, what to do.
    """

    def __init__(self, status: int, message: str):
        super().__init__(shorten(message, MAX_REPLY_LENGTH))
        self.status = status
