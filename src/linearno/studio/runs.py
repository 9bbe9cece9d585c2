"""Runs that the studio shows, and what each of them can do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from linearno.core.errors import UserError, require
from linearno.data import Splits
from linearno.data.airfrans import AirfransConfig
from linearno.inference import Bundle, load
from linearno.inference.on_meshes import MeshModel
from linearno.initialization import open_splits
from linearno.meshes import CasesConfig
from linearno.nn.protocol import Inspectable, Probabilistic, completes, model_name
from linearno.report.run_folder import Run, read_runs
from linearno.run_config import RunConfig
from linearno.run_folder import open_run
from linearno.studio.designs import (
    AirfoilDesign,
    CaseDesign,
    DarcyDesign,
    Design,
    FiveDigitDesign,
    FourDigitDesign,
    SampleDesign,
)
from linearno.training.progress import unfinished

EXPECTED_RUN = "give a run folder written by `linearno train`"


@dataclass
class StudioRun:
    """A run folder: its surrogate, unless it is still training, and its data, if they are on this machine.

    Args:
        folder: run folder.
        name: distinct name.
        device: device of the surrogate.
    """

    folder: Path
    name: str
    device: str = "cpu"
    bundle: Bundle | None = None
    config: RunConfig | None = None
    training: str | None = None  # the message that the run is not finished
    data_message: str | None = None  # why there are no data
    _splits: Splits | None = field(default=None, repr=False)
    _designs: dict[str, Design] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: Path, name: str, device: str) -> "StudioRun":
        """Open a run; errors of one line for a folder that is none, or of another version."""
        require(folder, how=EXPECTED_RUN)
        config = open_run(folder) if (folder / "config.yaml").exists() else None
        run = cls(folder, name, device, config=config, training=unfinished(folder))
        if run.training is None:
            run.bundle = load(folder, device)
        return run

    def read(self) -> Run:
        """What reports show of the folder, as it is now."""
        return read_runs([self.folder])[0]

    def splits(self) -> Splits | None:
        """The run's data; None, with `data_message`, if they cannot be read."""
        if self._splits is None and self.data_message is None:
            if self.config is None:
                self.data_message = "this run was trained on arrays from Python: its data are not on disk"
                return None
            try:
                self._splits = open_splits(self.config.data)
            except UserError as error:
                self.data_message = str(error)
        return self._splits

    @property
    def key(self) -> str:
        """Runs with the same key take the same designs."""
        assert self.bundle is not None
        return f"{self.bundle.spec.model_dump_json()} {self.bundle.task.name}"

    @property
    def parts_off(self) -> list[str]:
        """Parts of the pages that this run does not support, as sentences."""
        if self.bundle is None:
            return [self.training or ""]
        model, name, found = self.bundle.model, model_name(self.bundle.model), []
        if not isinstance(model, Inspectable) or completes(model):
            found.append(f"Inside is off: {name} has no slices to show")
        if not isinstance(model, Probabilistic):
            found.append(f"{name} predicts no standard deviation; open several runs for their spread")
        return found

    def design_kinds(self) -> dict[str, Callable[[], Design]]:
        """Designs that the run offers, by title."""
        if self.bundle is None:
            return {}
        bundle, config = self.bundle, self.config
        spec, found = bundle.spec, dict[str, Callable[[], Design]]()
        direct, data = bundle.task.name == "direct", None if config is None else config.data
        stride = getattr(data, "stride", 1)
        if direct and data is not None and data.name == "darcy":
            found[DarcyDesign.title] = lambda: DarcyDesign(spec, stride=stride)
        if direct and data is not None and data.name == "airfoil":
            found[AirfoilDesign.title] = lambda: AirfoilDesign(spec, stride=stride)
        if isinstance(data, AirfransConfig):  # its task is `covering` for some models
            split = data.split
            found[FourDigitDesign.title] = lambda: FourDigitDesign(spec, split=split)
            found[FiveDigitDesign.title] = lambda: FiveDigitDesign(spec, split=split)
        if direct and bundle.mesh_fields is not None:
            found[CaseDesign.title] = self._case_design
        if self.config is not None:
            found[SampleDesign.title] = self._sample_design
        return found

    def design(self, title: str) -> Design:
        """The design of that title, built at first use."""
        if title not in self._designs:
            kinds = self.design_kinds()
            if title not in kinds:
                raise UserError(f"this run has no design {title!r}")
            self._designs[title] = kinds[title]()
        return self._designs[title]

    def _sample_design(self) -> Design:
        assert self.bundle is not None
        if (splits := self.splits()) is None:
            raise UserError(self.data_message or "this run has no data")
        return SampleDesign(self.bundle.spec, data=splits.test)

    def _case_design(self) -> Design:
        assert self.bundle is not None
        data = None if self.config is None else self.config.data
        root = data.root if isinstance(data, CasesConfig) else None
        pattern = data.files if isinstance(data, CasesConfig) else "**/*"
        return CaseDesign(
            self.bundle.spec, model=MeshModel.of(self.bundle), root=root, pattern=pattern,
            ranges=self._number_ranges(),
        )  # fmt: skip

    def _number_ranges(self) -> dict[str, tuple[float, float]]:
        """Range of each number of a case: as stored with the surrogate, or in the data, if they are here."""
        assert self.bundle is not None
        if self.bundle.ranges is not None:
            return self.bundle.ranges.parameters
        fields, splits = self.bundle.mesh_fields, self.splits()
        if fields is None or splits is None or splits.train.inputs is None:
            return {}
        values = splits.train.inputs.reshape(-1, len(self.bundle.spec.inputs))
        low, high = np.min(values.numpy(), axis=0), np.max(values.numpy(), axis=0)
        channels = {name: self.bundle.spec.inputs.index(name) for name in fields.globals}
        return {name: (float(low[i]), float(high[i])) for name, i in channels.items()}


def open_runs(folders: Sequence[Path], device: str) -> list[StudioRun]:
    """Open the runs, with the names that reports give them."""
    for folder in folders:
        require(folder, how=EXPECTED_RUN)
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = [run.name for run in read_runs(distinct)]
    return [StudioRun.open(folder, name, device) for folder, name in zip(distinct, names, strict=True)]
