"""Log training curves to TensorBoard, an optional dependency."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from linearno.core.errors import UserError
from linearno.training import EpochRecord


@contextmanager
def tensorboard(folder: Path | None) -> Iterator[Callable[[EpochRecord], None]]:
    """Yield a function that logs an epoch to `folder`, or does nothing if `folder` is None."""
    if folder is None:
        yield lambda record: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("TensorBoard is not installed; run: pip install 'linearno[track]'") from None
    with SummaryWriter(str(folder)) as writer:

        def log(record: EpochRecord) -> None:
            for name in ("loss", "lr", "grad_norm", "validation"):
                if (value := getattr(record, name)) is not None:
                    writer.add_scalar(name, value, record.epoch)

        yield log
