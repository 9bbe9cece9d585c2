"""Run folders to one HTML page that is whole in itself."""

from linearno.report.page import write_report

__all__ = ["write_report"]
