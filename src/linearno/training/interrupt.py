"""Ctrl-C and SIGTERM as a request: the current step ends, a checkpoint is written, then training stops."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A signal stopped the run; all its work is in the checkpoint.

    Args:
        number: of the signal.
        epoch: in which it stopped, counted from one.
        step: after which it stopped.
    """

    def __init__(self, number: int, epoch: int, step: int):
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name} in epoch {epoch} after step {step}; the same command resumes")
        self.signal, self.epoch, self.step = number, epoch, step


@dataclass
class StopRequest:
    """The number of the signal received; None until then.

    Args:
        number: of the signal; SIGTERM after the deadline.
        deadline: `time.monotonic()` at which to stop, as after SIGTERM.
        installed: whether our handlers are.
    """

    number: int | None = None
    deadline: float = inf
    installed: bool = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second Ctrl-C: stop at once, at the last checkpoint
        self.number = number

    def listen(self) -> None:
        """Install the handlers again, which takes ten microseconds; look at the clock.

        A kernel compiler replaces them, and its own end the process if two signals come at once. `timeout`
        sends two.
        """
        if self.number is None and time.monotonic() > self.deadline:
            self.number = signal.SIGTERM
        if self.installed:
            self._install()

    def _install(self) -> None:
        """Interrupted system calls are restarted: the signal can wait, and libraries need not handle it."""
        for number in SIGNALS:
            signal.signal(number, self._handle)
            if os.name == "posix":
                signal.siginterrupt(number, False)


@contextmanager
def stop_on_signals(deadline: float = inf) -> Iterator[StopRequest]:
    """Collect SIGINT and SIGTERM inside the block; only the main thread receives signals.

    The deadline, a `time.monotonic()`, is a request to stop in any thread.
    """
    request = StopRequest(deadline=deadline)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    request._install()
    request.installed = True
    try:
        yield request
    finally:
        request.installed = False
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
