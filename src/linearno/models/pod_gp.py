"""POD-GP (Higdon et al., 2008): Gaussian processes between principal components of inputs and outputs.

Axes: S training samples, B batch, N points, X coordinates, C channels; K components of geometry and inputs,
M of the outputs.
"""

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from math import inf, sqrt
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.models.registry import model

JITTER = 1e-10  # added to the diagonal of the correlation matrix, as scikit-learn does
TUNED_OUTPUTS = 8  # leading output components that choose the kernel; those after them hold little energy
LENGTH_BOUNDS = (1e-2, 1e6)  # in deviations of a component; 1e6: the component has no effect
NOISE_BOUNDS = (1e-9, 1.0)
AMPLITUDE_BOUNDS = (1e-4, 1e8)
START_LENGTH, START_AMPLITUDE, START_NOISE = 3.0, 10.0, 1e-5
MIN_ENERGY = 1e-14  # of a component, as a share of the first: less is rounding
STATE = (
    *("coords_mean", "coords_basis", "inputs_mean", "inputs_basis", "latents"),
    *("outputs_mean", "outputs_basis", "weights", "factor", "amplitudes", "noise", "residual"),
)
NOT_FITTED = "model 'pod-gp' has not been fitted: train it with linearno.fit, or call its fit"

Fields = Float[Tensor, "B N _"]

log = logging.getLogger(__name__)


@model("pod-gp", family="classical")
class PodGP(nn.Module):
    """POD-GP: Gaussian processes between principal components (Higdon et al., 2008; Batlle et al., 2024).

    Papers: https://doi.org/10.1198/016214507000000888, https://arxiv.org/abs/2304.13202. A classical
    baseline for samples that share their points, or whose points correspond to each other in order:

        z = Bᵀ [x − x̄, a − ā]                       K components of geometry and inputs
        w_m ~ GP(0, s_m² (κ(z, z') + τ δ(z, z')))   a Gaussian process for each of M output components
        u = ū + Σ_m w_m(z) φ_m + r                  r: what M components leave out

    It is fitted in closed form on the CPU, in O(S² N + S³), without gradient steps. κ has a length scale for
    each component of z; these and the noise τ maximise the marginal likelihood of the leading output
    components and are shared by all of them, s_m² then follows from component m alone. The prediction is the
    posterior mean; `predict_with_std` adds the standard deviation, of which r is a part. Fitting needs
    scikit-learn (`pip install 'linearno[classical]'`), predicting does not.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        input_components: principal components of geometry and inputs: their number, or the share of the
            variance that they keep.
        output_components: principal components of the outputs, likewise.
        kernel: "matern" (smoothness 5/2) or "rbf".
        max_lengths: largest number of input components with a length scale each; with more there is one for
            all, and each component counts by its variance.
        noise: variance of the noise as a share of the signal's; None: chosen by the likelihood.
        restarts: further starts of the search for length scales and noise.
        tuning_samples: number of samples that the search uses, drawn from the training samples.
        max_samples: number of samples that are fitted; from more of them so many are drawn, with a notice.

    >>> model = PodGP(coords=2, inputs=1, outputs=1)
    >>> model.fit(coords, a, u)  # (S, N, 2), (S, N, 1), (S, N, 1)
    >>> mean, std = model.mean_and_std(coords, a)
    """

    coords_mean: Tensor  # N X
    coords_basis: Tensor  # N·X K; 0 K if all samples share their points
    inputs_mean: Tensor  # N C_in
    inputs_basis: Tensor  # N·C_in K
    latents: Tensor  # S K: training samples, in units of the length scales
    outputs_mean: Tensor  # N C_out
    outputs_basis: Tensor  # N·C_out M
    weights: Tensor  # S M: the correlation matrix solved with the output components
    factor: Tensor  # S S: its Cholesky factor
    amplitudes: Tensor  # M: s²
    noise: Tensor  # τ
    residual: Tensor  # N C_out: variance of r

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        input_components: int | float = 0.9999,
        output_components: int | float = 0.9999,
        kernel: Literal["matern", "rbf"] = "matern",
        max_lengths: NonNegativeInt = 32,
        noise: float | None = None,
        restarts: NonNegativeInt = 0,
        tuning_samples: PositiveInt = 256,
        max_samples: PositiveInt = 2000,
    ):
        super().__init__()
        for name, kept in (("input", input_components), ("output", output_components)):
            if not (0 < kept < 1 if isinstance(kept, float) else kept > 0):
                raise ValueError(
                    f"{name}_components={kept}: expected a number of components such as 20, or the share of "
                    "the variance that they keep, such as 0.999"
                )
        if noise is not None and not 0 <= noise < inf:
            raise ValueError(f"noise={noise}: expected a share of the variance, 0 or more, or null")
        self.channels = (coords, inputs, outputs)
        self.input_components, self.output_components = input_components, output_components
        self.kernel, self.max_lengths, self.fixed_noise, self.restarts = kernel, max_lengths, noise, restarts
        self.tuning_samples, self.max_samples = tuning_samples, max_samples
        for name in STATE:
            self.register_buffer(name, None)

    @property
    def fixed_points(self) -> int | None:
        """Number of points of every sample, in the order of the training samples; None before `fit`."""
        return None if self.coords_mean is None else len(self.coords_mean)

    def require_fittable(self, samples: int) -> None:
        """Refuse to fit without scikit-learn, or to a single sample."""
        require_extra("sklearn", "classical")
        import_module("sklearn.gaussian_process")  # takes a second, which is no part of the fit
        if samples < 2:
            raise UserError(f"model 'pod-gp' is fitted to two samples or more, there is {samples}")

    @torch.no_grad()
    def fit(self, coords: Fields, inputs: Fields | None, targets: Fields) -> None:
        """Fit components and Gaussian processes to samples on the CPU; draws from the global random state."""
        samples = len(targets)
        self.require_fittable(samples)
        if samples > self.max_samples:
            log.warning(
                "pod-gp is fitted to %d of %d samples, since its cost is cubic: model.max_samples sets it",
                *(self.max_samples, samples),
            )
            kept = torch.randperm(samples)[: self.max_samples].sort().values
            coords, targets = coords[kept], targets[kept]
            inputs = None if inputs is None else inputs[kept]
        inputs = coords[..., :0] if inputs is None else inputs
        shared = _constant(coords)
        if (shared and _constant(inputs)) or _constant(targets):
            what = "targets" if _constant(targets) else "geometry and inputs"
            raise UserError(f"{what} are the same in all training samples: there is nothing to learn")
        x, a, u = (part.double() for part in (coords, inputs, targets))
        x_mean, a_mean, u_mean = (part.mean(dim=0) for part in (x, a, u))
        parts = [part.flatten(1) for part in ((x - x_mean)[:, : 0 if shared else None], a - a_mean)]
        given, out = torch.cat(parts, dim=1), (u - u_mean).flatten(1)
        basis, deviations = _components(given, self.input_components)
        out_basis, _ = _components(out, self.output_components)
        outputs = out @ out_basis
        lengths, noise = self._tune(given @ basis, outputs, deviations)
        basis = basis / lengths
        latents = given @ basis
        factor = self._factor(latents, noise)
        weights = torch.cholesky_solve(outputs, factor)
        left_out = out.square().mean(dim=0) - out_basis.square() @ outputs.square().mean(dim=0)
        x_basis, a_basis = basis.split([part.shape[1] for part in parts])
        found = [x_mean, x_basis, a_mean, a_basis, latents, u_mean, out_basis, weights, factor]
        found += [(outputs * weights).mean(dim=0), noise, left_out.clamp(min=0).view_as(u_mean)]
        for name, value in zip(STATE, found, strict=True):
            setattr(self, name, value.contiguous())

    def _factor(self, latents: Float[Tensor, "S K"], noise: Float[Tensor, ""]) -> Float[Tensor, "S S"]:
        """Cholesky factor of the correlation of the training samples."""
        correlation = self._correlation(latents, latents)
        correlation.diagonal().add_(noise + JITTER)
        factor, failed = torch.linalg.cholesky_ex(correlation)
        if failed:
            raise UserError("training samples are too alike for so little noise: set model.noise=1e-6")
        return factor

    def _tune(
        self, latents: Float[Tensor, "S K"], outputs: Float[Tensor, "S M"], deviations: Float[Tensor, "K"]
    ) -> tuple[Float[Tensor, "K"], Float[Tensor, ""]]:
        """Length scales and noise with the largest marginal likelihood, found by scikit-learn."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor, kernels
        from threadpoolctl import threadpool_limits  # scikit-learn brings it

        kept = torch.randperm(len(latents))[: self.tuning_samples].sort().values
        one_length = latents.shape[1] > self.max_lengths
        units = deviations[:1].expand_as(deviations) if one_length else deviations
        start = START_LENGTH * (deviations[0] / units)[: 1 if one_length else None]
        form = {"rbf": kernels.RBF, "matern": partial(kernels.Matern, nu=2.5)}[self.kernel]
        kind = form(start.clamp(*LENGTH_BOUNDS).numpy(), LENGTH_BOUNDS)
        learned = self.fixed_noise is None
        noise = START_NOISE if self.fixed_noise is None else self.fixed_noise
        process = GaussianProcessRegressor(
            kernels.ConstantKernel(START_AMPLITUDE, AMPLITUDE_BOUNDS)
            * (kind + kernels.WhiteKernel(noise, NOISE_BOUNDS if learned else "fixed") if noise else kind),
            alpha=JITTER,
            n_restarts_optimizer=self.restarts,
            random_state=int(torch.randint(2**31, ())),
        )
        leading = outputs[kept, :TUNED_OUTPUTS]
        with warnings.catch_warnings(), threadpool_limits(1):  # small matrices: threads only wait
            warnings.simplefilter("ignore", ConvergenceWarning)  # lengths at a bound: without effect
            process.fit((latents[kept] / units).numpy(), (leading / leading.std()).numpy())
        tuned = process.kernel_.k2
        lengths = (tuned.k1 if noise else tuned).length_scale
        level = tuned.k2.noise_level if noise else 0.0
        return torch.as_tensor(lengths, dtype=torch.float64) * units, torch.tensor(level, dtype=torch.float64)

    def _correlation(self, z: Float[Tensor, "B K"], latents: Float[Tensor, "S K"]) -> Float[Tensor, "B S"]:
        r = torch.cdist(z, latents, compute_mode="donot_use_mm_for_euclid_dist")
        if self.kernel == "rbf":
            return torch.exp(-r.square() / 2)
        r = sqrt(5) * r
        return (1 + r + r.square() / 3) * torch.exp(-r)

    def _cross_correlation(self, coords: Fields, inputs: Fields | None) -> Float[Tensor, "B S"]:
        """Correlation of the samples with the training samples."""
        if self.fixed_points is None:
            raise UserError(NOT_FITTED)
        if coords.shape[1] != self.fixed_points:
            raise UserError(
                f"model 'pod-gp' was fitted at {self.fixed_points} points, these samples have "
                f"{coords.shape[1]}; it takes the points of its training data, in their order"
            )
        if (inputs is None) != (self.channels[1] == 0):
            raise UserError(f"model 'pod-gp' takes {self.channels[1]} input channels")
        z = coords.new_zeros(()).to(self.latents)
        if len(self.coords_basis):
            z = z + (coords.to(self.latents) - self.coords_mean).flatten(1) @ self.coords_basis
        if inputs is not None:
            z = z + (inputs.to(self.latents) - self.inputs_mean).flatten(1) @ self.inputs_basis
        return self._correlation(z, self.latents)

    def forward(
        self, coords: Float[Tensor, "B N X"], inputs: Float[Tensor, "B N C_in"] | None = None
    ) -> Float[Tensor, "B N C_out"]:
        return self._mean(self._cross_correlation(coords, inputs)).to(coords.dtype)

    def _mean(self, correlation: Float[Tensor, "B S"]) -> Fields:
        fields = correlation @ self.weights @ self.outputs_basis.T
        return self.outputs_mean + fields.unflatten(1, self.outputs_mean.shape)

    def mean_and_std(
        self, coords: Float[Tensor, "B N X"], inputs: Float[Tensor, "B N C_in"] | None = None
    ) -> tuple[Float[Tensor, "B N C_out"], Float[Tensor, "B N C_out"]]:
        """Mean and standard deviation of the posterior at each point, with noise and residual."""
        correlation = self._cross_correlation(coords, inputs)
        solved = torch.linalg.solve_triangular(self.factor, correlation.T, upper=False)
        share = (1 + self.noise - solved.square().sum(dim=0)).clamp(min=0)  # B: of the prior variance
        prior = (self.outputs_basis.square() @ self.amplitudes).view_as(self.residual)
        variance = share[:, None, None] * prior + self.residual
        return self._mean(correlation).to(coords.dtype), variance.sqrt().to(coords.dtype)

    def allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make room for a fitted state with these shapes; refuse shapes that do not fit each other."""
        if not shapes:
            return
        try:
            (points, _), (samples, k) = shapes["coords_mean"], shapes["latents"]
            rows, m = shapes["coords_basis"][0], shapes["amplitudes"][0]
        except (KeyError, ValueError, IndexError):
            raise UserError("the fitted state is incomplete") from None
        coords, inputs, outputs = self.channels
        expected = {
            "coords_mean": (points, coords),
            "coords_basis": (points * coords if rows else 0, k),
            "inputs_mean": (points, inputs),
            "inputs_basis": (points * inputs, k),
            "latents": (samples, k),
            "outputs_mean": (points, outputs),
            "outputs_basis": (points * outputs, m),
            "weights": (samples, m),
            "factor": (samples, samples),
            "amplitudes": (m,),
            "noise": (),
            "residual": (points, outputs),
        }
        if dict(shapes) != expected:
            odd = next(iter(dict(expected.items() ^ dict(shapes).items())))
            raise UserError(f"the fitted state does not fit together ({odd[:40]})")
        for name, shape in expected.items():
            setattr(self, name, torch.zeros(shape, dtype=torch.float64))

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        given = {name: state_dict[prefix + name] for name in STATE if prefix + name in state_dict}
        own = {name: part.shape for name in STATE if (part := getattr(self, name)) is not None}
        if own != {name: part.shape for name, part in given.items()}:
            device = next(iter(given.values())).device
            with device:
                self.allocate({name: tuple(part.shape) for name, part in given.items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _constant(part: Float[Tensor, "S N _"]) -> bool:
    """Whether all samples are the same."""
    return bool((part == part[:1]).all())


def _components(
    centred: Float[Tensor, "S F"], kept: int | float
) -> tuple[Float[Tensor, "F K"], Float[Tensor, "K"]]:
    """Principal components and the deviation of the samples along each, by the method of snapshots.

    Args:
        centred: samples minus their mean.
        kept: number of components, or the share of the variance that they keep; at most the rank.
    """
    energy, vectors = torch.linalg.eigh(centred @ centred.T)
    energy, vectors = energy.flip(0), vectors.flip(1)
    energy = energy[energy > MIN_ENERGY * energy[0]]
    if isinstance(kept, float):
        kept = int((energy.cumsum(0) < kept * energy.sum()).sum()) + 1
    energy = energy[:kept]
    return centred.T @ (vectors[:, : len(energy)] / energy.sqrt()), (energy / len(centred)).sqrt()
