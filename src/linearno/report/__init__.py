"""Run folders to one HTML page that is whole in itself, and rollouts to animations."""

from linearno.report.animate import write_animation
from linearno.report.gallery import Shown, write_gallery, write_strips
from linearno.report.page import write_report

__all__ = ["Shown", "write_animation", "write_gallery", "write_report", "write_strips"]
