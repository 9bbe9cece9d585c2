"""Collect the warnings that a call logs, to show them where the log is not read."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _ThreadHandler(logging.Handler):
    """Collects the warnings of one thread."""

    def __init__(self, thread: int):
        super().__init__(logging.WARNING)
        self.thread, self.messages = thread, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self.thread:
            self.messages.append(record.getMessage())


@contextmanager
def captured_warnings() -> Iterator[list[str]]:
    """The warnings that this package logs in this thread, as a list that fills."""
    handler, logger = _ThreadHandler(threading.get_ident()), logging.getLogger("linearno")
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
