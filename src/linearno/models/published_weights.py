"""Models rebuilt from weights that the published implementations saved."""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linearno.core.errors import UserError, require
from linearno.models.cross_linearno import CrossLinearNO
from linearno.models.linearno import LinearNO
from linearno.models.transolver import Transolver
from linearno.nn import PointTransformer, Transformer

AIRFRANS_BOX = ((-2.0, 4.0), (-1.5, 1.5))  # where AirfRANS puts its reference points

# Published name → ours. What stands in UNUSED is carried by the published models and never read by them.
NAMES = [
    (r"preprocess\.linear_pre\.0\.", "lift.0."),
    (r"preprocess\.linear_post\.", "lift.2."),
    (r"time_fc\.", "time.network."),
    (r"blocks\.\d+\.ln_3\.", "norm."),
    (r"blocks\.\d+\.mlp2\.", "head."),
    (r"\.ln_1\.", ".norm_attention."),
    (r"\.ln_2\.", ".norm_mlp."),
    (r"\.mlp\.linear_pre\.0\.", ".mlp.0."),
    (r"\.mlp\.linear_post\.", ".mlp.2."),
    (r"\.Attn\.", ".attention."),
    (r"\.in_project_x\.", ".stem."),
    (r"\.in_project_fx\.", ".value_stem."),
    (r"\.to_out\.", ".merge."),
    (r"\.temp(?:er|re)ature_q$", ".temperature_query.value"),
    (r"\.temp(?:er|re)ature_k$", ".temperature_key.value"),
]
LINEARNO_NAMES = [(r"\.to_q\.", ".query."), (r"\.to_k\.", ".key."), (r"\.to_v\.", ".value.")]
CROSS_NAMES = [
    *LINEARNO_NAMES,
    (r"^query_MLP\.linear_pre\.0\.", "place.0."),
    (r"^query_MLP\.linear_post\.", "place.2."),
    (r"^cross_block\.", "cross."),
    (r"\.in_project_y\.", ".key_stem."),
    (r"^ln\.", "norm."),
    (r"^mlp2\.", "head."),
]
TRANSOLVER_NAMES = [
    (r"\.in_project_slice\.", ".query."),
    (r"\.temperature$", ".temperature_query.value"),
    (r"\.to_q\.", ".mix.query."),
    (r"\.to_k\.", ".mix.key."),
    (r"\.to_v\.", ".mix.value."),
]
MODEL = {"linearno": LinearNO, "transolver": Transolver, "cross-linearno": CrossLinearNO}
OWN_NAMES = {"linearno": LINEARNO_NAMES, "transolver": TRANSOLVER_NAMES, "cross-linearno": CROSS_NAMES}
UNUSED = {"linearno": r"\.Attn\.temperature$", "transolver": r"\.mlp_new\.", "cross-linearno": r"(?!)"}


def from_published(
    state_dict: Mapping[str, Tensor] | str | Path,
    *,
    heads: int,
    grid: tuple[int, ...] | None = None,
    unified_pos: int | None = None,
    coords: int | None = None,
) -> Transformer:
    """A LinearNO, Transolver or Cross-LinearNO with published weights (a state dict, or its file).

    Shapes tell the variant, its sizes and depth. They do not tell
    grid         the mesh of a model with convolutions or with a unified position on a mesh: (rows, columns)
    unified_pos  reference points an axis (`ref`), for models trained with `unified_pos=1`
    coords       how many of the input features are coordinates; all, when it is not given
    """
    if unified_pos is True:
        raise UserError("unified_pos is the number of reference points an axis (`ref`), such as 8; got True")
    weights = state_dict if isinstance(state_dict, Mapping) else read_weights(Path(state_dict))
    settings = shapes_tell(weights)
    name = settings.pop("name")
    if settings["heads"] != heads:
        raise UserError(f"heads={heads} was given, but the weights have {settings['heads']} heads")
    if name == "cross-linearno":
        if grid or unified_pos or coords:
            raise UserError("a Cross-LinearNO takes no grid, unified_pos or coords: its shapes tell all")
        with _complete(name):
            sizes = _cross_sizes(weights)
    else:
        settings |= _place(weights, name, grid, unified_pos or None)
        with _complete(name):
            sizes = _sizes(weights, settings["unified"], 2 if grid is None else len(grid), coords)
    model = MODEL[name](**sizes, **settings)
    _load(model, weights, name)
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict that `torch.save` wrote. A name that is no part of plain weights is not looked up, and
    nothing in the file runs."""
    require(path, how="give the file that torch.save wrote the state dict to")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old pickles
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # broken bytes raise anything
        if asked := re.search(r"GLOBAL (\S+)", str(error)):
            what = f"asks for {asked[1]!r}, which is no part of plain weights, and was not opened"
            raise UserError(f"{path} {what}; save model.state_dict(), not the model") from None
        raise UserError(f"{path} is truncated or no file that torch.save wrote") from None
    named = isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded)
    if not named or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UserError(f"{path} holds no state dict; save model.state_dict(), not the model")
    return loaded


def shapes_tell(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The name and the settings of the model that published weights belong to, so far as shapes tell."""
    if "preprocess.linear_pre.0.weight" not in weights or "blocks.0.Attn.to_q.weight" not in weights:
        some = ", ".join(list(weights)[:3])
        raise UserError(f"these are not weights of a published LinearNO or Transolver (found {some} …)")
    if "blocks.0.Attn.proj_temperature.0.weight" in weights:
        raise UserError("these are weights of Transolver++, which is another model")
    name = "transolver" if "blocks.0.Attn.in_project_slice.weight" in weights else "linearno"
    if "cross_block.ln_1.weight" in weights:
        name = "cross-linearno"
    with _complete(name):
        own = {} if name == "cross-linearno" else _point_settings(weights, name)
        return {"name": name} | _settings(weights, name) | own


@contextmanager
def _complete(name: str) -> Iterator[None]:
    """Weights that lack something, or have it in another shape, are the user's to mend."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"these weights of a {name} lack {error}; save all of model.state_dict()") from None
    except (IndexError, ValueError, ZeroDivisionError):
        raise UserError(f"these weights of a {name} do not have the published shapes") from None


def _sizes(
    weights: Mapping[str, Tensor], unified: dict[str, Any] | None, axes: int, coords: int | None
) -> dict[str, int]:
    """Channels in and out. The first layer sees coordinates and inputs side by side, and tells their sum."""
    features = weights["preprocess.linear_pre.0.weight"].shape[1]
    outputs = max(len(weights[key]) for key in weights if key.endswith(".mlp2.bias"))
    if unified is not None:
        features -= unified["ref"] ** axes
    if features < 0:
        raise UserError(
            f"unified_pos={unified['ref'] if unified else None} asks for more features than there are"
        )
    if unified is not None and unified["place"] != "positions":
        return {"coords": axes, "inputs": features, "outputs": outputs}
    coords = features if coords is None else coords
    return {"coords": coords, "inputs": features - coords, "outputs": outputs}


def _cross_sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Here coordinates and inputs have a layer each."""
    coords, inputs = (weights[f"{lift}.linear_pre.0.weight"].shape[1] for lift in ("query_MLP", "preprocess"))
    return {"coords": coords, "inputs": inputs, "outputs": len(weights["mlp2.bias"])}


def _settings(weights: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """What the shapes tell of any model."""
    width = weights["preprocess.linear_post.bias"].shape[0]
    head_width = weights["blocks.0.Attn.to_v.weight"].shape[0]
    scores = "in_project_slice" if name == "transolver" else "to_q"
    return {
        "width": width,
        "depth": 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("blocks.")),
        "heads": width // head_width,
        "slices": weights[f"blocks.0.Attn.{scores}.weight"].shape[0],
        "mlp_ratio": weights["blocks.0.mlp.linear_pre.0.bias"].shape[0] // width,
    }


def _point_settings(weights: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """And of one that answers where its inputs are."""
    settings: dict[str, Any] = {
        "stem": "conv" if weights["blocks.0.Attn.in_project_x.weight"].dim() > 2 else "linear",
        "time": "time_fc.0.weight" in weights,
    }
    if name == "linearno":
        settings["merge_layers"] = 2 if "blocks.0.Attn.to_out.2.weight" in weights else 1
        standard, car = (f"blocks.0.Attn.{word}_q" in weights for word in ("temperature", "tempreature"))
        settings["temperature"] = (0.01, 1.0) if standard else (0.1, 2.0) if car else None
    return settings


def _place(
    weights: Mapping[str, Tensor], name: str, grid: tuple[int, ...] | None, ref: int | None
) -> dict[str, Any]:
    """What the shapes do not tell: the mesh, and what the positions are."""
    stem = weights["blocks.0.Attn.in_project_x.weight"]
    if stem.dim() > 2 and (grid is None or len(grid) != stem.dim() - 2):
        axes = "(rows, columns)" if stem.dim() == 4 else "(rows, columns, layers)"
        raise UserError(f"this model has convolutions: give its mesh as grid={axes}, got {grid}")
    if ref is None:
        return {"grid": grid, "unified": None}
    if any(re.search(UNUSED[name], key) for key in weights):  # only the AirfRANS models carry unused weights
        return {"grid": None, "unified": {"ref": ref, "place": "positions", "box": AIRFRANS_BOX}}
    if grid is not None:
        return {"grid": grid, "unified": {"ref": ref, "place": "grid"}}
    if name == "linearno":
        raise UserError(
            "a LinearNO with a unified position measures it on its mesh: give grid=(rows, columns)"
        )
    return {"grid": None, "unified": {"ref": ref, "place": "coords"}}


def _load(model: Transformer, weights: Mapping[str, Tensor], name: str) -> None:
    """Fill the model under our names; what the published model never reads is kept, so that counts agree."""
    names = NAMES + OWN_NAMES[name]
    if isinstance(model, PointTransformer) and model.config.stem == "conv":
        names = [*names, (r"(stem)\.", r"\1.conv.")]
    ours, unused = {}, {}
    for key, tensor in weights.items():
        if re.search(UNUSED[name], key):
            unused[key.replace(".", "_")] = nn.Parameter(tensor.clone())
            continue
        for pattern, word in names:
            key = re.sub(pattern, word, key)
        ours[key] = tensor.flatten() if ".temperature_" in key else tensor
    known = model.state_dict()
    if ours.keys() != known.keys():
        odd = sorted(ours.keys() ^ known.keys())
        raise UserError(f"the weights do not fit any published variant: {', '.join(odd[:4])}")
    for key, tensor in ours.items():
        if tensor.shape != known[key].shape:
            shapes = f"{tuple(tensor.shape)}, expected {tuple(known[key].shape)}"
            raise UserError(f"the weights do not fit any published variant: {key} is {shapes}")
    model.load_state_dict(ours)
    if unused:
        model.unused = nn.ParameterDict(unused)
