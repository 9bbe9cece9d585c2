"""Error metrics: one value per sample, so that the batch size does not bias a mean."""

from linearno.metrics.norms import relative_l2, relative_mae

__all__ = ["relative_l2", "relative_mae"]
