"""Error metrics: one value per sample, so that the batch size does not bias a mean."""

from linearno.metrics.forces import Force, lift_and_drag, wall_force
from linearno.metrics.norms import relative_l2, relative_mae

__all__ = ["Force", "lift_and_drag", "relative_l2", "relative_mae", "wall_force"]
