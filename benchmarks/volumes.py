"""Pack files into a few tar.gz volumes of limited size, and unpack them; large files are split."""

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from linearno.core.atomic_io import write_bytes
from linearno.core.errors import UserError, require

VOLUME_BYTES = 15 * 2**20  # of content; files of 16 MiB can be copied
MAX_VOLUMES = 7
PART = ".part"  # suffix of the pieces of a file, with a number


class Piece(NamedTuple):
    """Bytes of a file, under the name that they have in a volume."""

    name: str
    content: bytes


def volume_path(pack: Path, number: int) -> Path:
    """PACK.tar.gz, then PACK-2.tar.gz, …"""
    return pack if number == 1 else pack.with_name(f"{pack.name.removesuffix('.tar.gz')}-{number}.tar.gz")


def write_volumes(
    root: Path, files: Sequence[Path], pack: Path, *, size: int = VOLUME_BYTES, most: int = MAX_VOLUMES
) -> list[Path]:
    """Write the files, most important first, to as few volumes as hold them; return files left out.

    Every volume replaces its earlier version at once, and volumes that are no longer needed are removed.

    Args:
        root: folder that the names in the volumes are relative to.
        files: files in `root`.
        pack: path of the first volume.
        size: bytes of files in a volume, before compression.
        most: number of volumes.
    """
    volumes: list[list[Piece]] = [[]]
    left_out = []
    for file in files:
        pieces = list(_pieces(file, file.relative_to(root).as_posix(), size))
        planned = [list(volume) for volume in volumes]
        for piece in pieces:
            if sum(len(other.content) for other in planned[-1]) + len(piece.content) > size:
                planned.append([])
            planned[-1].append(piece)
        if len(planned) > most:
            left_out.append(file)
        else:
            volumes = planned
    for number, volume in enumerate(volumes, start=1):
        write_bytes(volume_path(pack, number), _archive(volume))
    number = len(volumes) + 1
    while (path := volume_path(pack, number)).exists():
        path.unlink()
        number += 1
    return left_out


def read_volumes(pack: Path, root: Path) -> int:
    """Unpack all volumes into `root`, join split files; return the number of files."""
    require(pack, how="give the file PACK.tar.gz of an earlier session")
    split: dict[str, list[Piece]] = {}
    count, number = 0, 1
    while (path := volume_path(pack, number)).exists():
        for piece in _read_archive(path):
            name, part, _ = piece.name.rpartition(PART)
            if part:
                split.setdefault(name, []).append(piece)
            else:
                write_bytes(_inside(root, piece.name, path), piece.content)
                count += 1
        number += 1
    for name, pieces in split.items():
        write_bytes(_inside(root, name, pack), b"".join(piece.content for piece in sorted(pieces)))
    return count + len(split)


def _pieces(path: Path, name: str, size: int) -> Iterator[Piece]:
    content = path.read_bytes()
    if len(content) <= size:
        yield Piece(name, content)
        return
    for number, start in enumerate(range(0, len(content), size)):
        yield Piece(f"{name}{PART}{number:03}", content[start : start + size])


def _archive(pieces: Sequence[Piece]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for piece in pieces:
            entry = tarfile.TarInfo(piece.name)
            entry.size = len(piece.content)
            archive.addfile(entry, io.BytesIO(piece.content))
    return buffer.getvalue()


def _read_archive(path: Path) -> Iterator[Piece]:
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                if entry.isfile() and (file := archive.extractfile(entry)) is not None:
                    yield Piece(entry.name, file.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{path} is damaged or not a tar.gz file ({error}); copy it again") from None


def _inside(root: Path, name: str, pack: Path) -> Path:
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise UserError(
            f"{pack} has a file outside of its folder: {name}; it was not written by this command"
        )
    return path
