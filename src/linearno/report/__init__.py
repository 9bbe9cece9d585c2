"""Run folders to one HTML page that is whole in itself, and rollouts to animations."""

from linearno.report.animate import write_animation
from linearno.report.page import write_report

__all__ = ["write_animation", "write_report"]
