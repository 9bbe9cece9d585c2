"""Reports on run folders: self-contained HTML pages, and animations of rollouts."""

from linearno.report.animate import write_animation
from linearno.report.benchmark_figures import BENCHMARK_FIGURES
from linearno.report.gallery import GalleryCard, write_gallery, write_strips
from linearno.report.page import write_report

__all__ = [
    "BENCHMARK_FIGURES",
    "GalleryCard",
    "write_animation",
    "write_gallery",
    "write_report",
    "write_strips",
]
