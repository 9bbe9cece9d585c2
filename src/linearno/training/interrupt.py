"""Ctrl-C and SIGTERM as a polite request: the current step ends, a checkpoint is written, then it stops."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A signal stopped the run; all its work is in the checkpoint."""

    def __init__(self, number: int, epoch: int, step: int):
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name} in epoch {epoch} after step {step}; the same command resumes")
        self.signal, self.epoch, self.step = number, epoch, step


@dataclass
class StopRequest:
    """`number` of the signal that came, None while none has."""

    number: int | None = None
    heard: bool = False  # by handlers of ours

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: now, from the last checkpoint
        self.number = number

    def listen(self) -> None:
        """Install the handlers again: ten microseconds. A compiler of kernels puts its own in their place,
        and under those a signal that comes right after another ends the process. `timeout` sends two."""
        if self.heard:
            self._install()

    def _install(self) -> None:
        """System calls that a signal meets go on: it can wait, and no library has to cope with it."""
        for number in SIGNALS:
            signal.signal(number, self._handle)
            if os.name == "posix":
                signal.siginterrupt(number, False)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Collect SIGINT and SIGTERM inside the block. Other threads than the main one cannot, and need not."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    request._install()
    request.heard = True
    try:
        yield request
    finally:
        request.heard = False
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
