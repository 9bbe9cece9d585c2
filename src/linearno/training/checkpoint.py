"""Checkpoints: tensors and JSON in a folder of their own, made the latest by one atomic write.

    checkpoint/step-00001250/state.safetensors, state.json      complete before anything points to it
    checkpoint/latest                                           the name of that folder

A kill at any moment leaves `latest` pointing to a complete checkpoint, the old or the new.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from linearno.core.atomic_io import read_json, read_tensors, sha256, write_json, write_tensors, write_text
from linearno.core.config import first_difference
from linearno.core.errors import UserError

FORMAT = 1
DAMAGED = "it is damaged: remove the folder to train from the start"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run: `fingerprint` identifies its whole configuration, `settings` the part
    of it that is known here and can be named when it differs."""

    folder: Path
    fingerprint: str
    settings: Mapping[str, Any]

    def write(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        name = f"step-{step:08d}"
        state = self.folder / name / "state.safetensors"
        write_tensors(state, tensors)
        head = {"format": FORMAT, "fingerprint": self.fingerprint, "settings": self.settings}
        write_json(self.folder / name / "state.json", head | {"sha256": sha256(state), "values": values})
        write_text(self.folder / "latest", name + "\n")
        for old in self.folder.glob("step-*"):
            if old.name != name:
                shutil.rmtree(old, ignore_errors=True)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The latest checkpoint, checked; None where there is none."""
        pointer = self.folder / "latest"
        if not pointer.exists():
            return None
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        if not re.fullmatch(r"step-\d{8,}", name):
            raise UserError(f"{pointer} names no checkpoint; {DAMAGED}")
        document = read_json(self.folder / name / "state.json", how=DAMAGED)
        if not isinstance(document, dict) or "format" not in document:
            raise UserError(f"{self.folder / name / 'state.json'} is not a checkpoint; {DAMAGED}")
        self._refuse_another_run(document)
        state = self.folder / name / "state.safetensors"
        tensors = read_tensors(state, how=DAMAGED)
        if sha256(state) != document.get("sha256"):
            raise UserError(f"{state} is not what was written there; {DAMAGED}")
        return tensors, document.get("values", {})

    def extend(self, fingerprint: str, settings: Mapping[str, Any]) -> None:
        """Let the latest checkpoint be continued under a configuration with more epochs.

        The schedule continues at the same step of the longer one.
        """
        pointer = self.folder / "latest"
        if not pointer.exists():
            raise UserError(f"{self.folder} holds no checkpoint to continue from")
        path = self.folder / pointer.read_text(encoding="utf-8").strip() / "state.json"
        document = read_json(path, how=DAMAGED)
        if document.get("fingerprint") == fingerprint:
            return  # an earlier call got as far as here
        self._refuse_another_run(document)
        values = document["values"]
        done = values["schedule"].get("last_epoch")
        schedule = {} if done is None else {"moved_to": done}
        head = {"fingerprint": fingerprint, "settings": settings, "values": values | {"schedule": schedule}}
        write_json(path, document | head)

    def _refuse_another_run(self, document: Mapping[str, Any]) -> None:
        if document["format"] != FORMAT:
            raise UserError(
                f"{self.folder} has checkpoint format {document['format']!r}, this version reads {FORMAT}; "
                "resume it with the version that wrote it, or remove it"
            )
        if document.get("fingerprint") != self.fingerprint:
            what = first_difference(document.get("settings", {}), self.settings)
            raise UserError(
                f"{self.folder.parent} holds a run of another configuration: "
                f"{what or 'its data or its model differs'}; choose another --out or remove it"
            )
