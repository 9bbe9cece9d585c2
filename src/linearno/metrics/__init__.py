"""How good a prediction is: one value for each sample, so that no batch size can bias a mean."""

from linearno.metrics.norms import relative_l2, relative_mae

__all__ = ["relative_l2", "relative_mae"]
