"""Parse and format sizes in bytes; free memory and disk space."""

import os
import re
import shutil
from pathlib import Path

import torch

from linearno.core.errors import UserError

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SIZE_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", flags=re.IGNORECASE)


def parse_bytes(size: int | str) -> int:
    """Number of bytes in a size such as 2000000000, "2GB", "512 MB" or "8GiB"."""
    if isinstance(size, int):
        count = size
    else:
        match = SIZE_PATTERN.fullmatch(size)
        if match is None:
            raise UserError(
                f"memory={size!r}: expected a number of bytes, or a size such as 512MB, 2GB or 8GiB"
            )
        count = round(float(match[1]) * UNITS[(match[2] or "").lower()])
    if count <= 0:
        raise UserError(f"memory={size!r}: expected a positive size, such as 512MB or 2GB")
    return count


def format_bytes(size: int | float) -> str:
    """A size as text, such as 512 B, 1.5 MB or 51 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1e3
    return f"{size:.3g} TB"


def free_memory(device: torch.device) -> int:
    """Free bytes on the device (host memory for a CPU); total memory, or 4 PiB, if unknown."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]  # first, since this call initialises CUDA
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        reserved, allocated = (stats[f"{kind}_bytes"]["all"]["current"] for kind in ("reserved", "allocated"))
        return int(free + reserved - allocated)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        names = os.sysconf_names if hasattr(os, "sysconf") else {}
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in names else 2**40
        return pages * (os.sysconf("SC_PAGE_SIZE") if "SC_PAGE_SIZE" in names else 1)


def free_disk(folder: Path) -> int:
    """Free bytes on the file system of `folder`."""
    return shutil.disk_usage(folder).free
