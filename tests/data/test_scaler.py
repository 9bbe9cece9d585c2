from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.data import Batch, FieldSpec, Scaler
from linearno.data.scaler import Standardise

SPEC = FieldSpec(coords=("x",), inputs=("a", "b"), outputs=("u",), standardised=("inputs", "outputs"))


def batch(seed: int, samples: int = 7) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    coords, inputs, targets = (torch.randn(samples, 33, c, generator=rng) for c in (1, 2, 1))
    return Batch(coords, 5 + torch.tensor([1.0, 1e-3]) * inputs, 100 * targets - 3)


@pytest.mark.parametrize("dim", ["2d", "3d"])
def test_agrees_with_the_published_unit_transformer(dim):
    with np.load(Path(__file__).parents[1] / "fixtures" / "unit_transformer.npz") as file:
        known = {name: torch.from_numpy(file[f"{dim}/{name}"]) for name in ("values", "encoded", "decoded")}
        mean, std = (torch.from_numpy(file[f"{dim}/{name}"]).reshape(-1) for name in ("mean", "std"))
    values, encoded, decoded = (v[..., None] if dim == "2d" else v for v in known.values())
    fitted = Standardise.fit(values)
    torch.testing.assert_close(fitted.mean, mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(fitted.std, std, rtol=1e-6, atol=0)
    torch.testing.assert_close(fitted.encode(values[:2]), encoded, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fitted.decode(fitted.encode(values[:2])), decoded, rtol=1e-6, atol=1e-6)


def test_training_fields_become_standard_and_unnamed_parts_stay_as_they_are():
    train = batch(0)
    scaler = Scaler.fit(SPEC, train)
    for part, values in ((scaler.inputs, train.inputs), (scaler.outputs, train.targets)):
        encoded = part.encode(values).double().flatten(0, 1)
        torch.testing.assert_close(encoded.mean(0), torch.zeros_like(encoded[0]), atol=1e-4, rtol=0)
        torch.testing.assert_close(encoded.std(0), torch.ones_like(encoded[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaler.coords.encode(train.coords), train.coords, rtol=0, atol=0)


def test_statistics_come_from_the_training_split_alone():
    train, test = batch(0), batch(1)
    scaler = Scaler.fit(SPEC, train)
    expected = (test.targets - train.targets.mean()) / train.targets.std()
    torch.testing.assert_close(scaler.outputs.encode(test.targets), expected, rtol=1e-5, atol=1e-5)
    assert scaler.outputs.encode(test.targets).mean().abs() > 1e-3


def test_decoding_undoes_encoding_to_rounding():
    train, test = batch(0), batch(1)
    outputs = Scaler.fit(SPEC, train).outputs
    back = outputs.decode(outputs.encode(test.targets))
    assert (back - test.targets).abs().max() <= 4 * torch.finfo(torch.float32).eps * test.targets.abs().max()


def test_a_constant_input_is_scaled_by_one_and_reported(caplog):
    train = batch(0)
    varying, constant = train.inputs[..., 0], torch.full((7, 33), 0.1)
    scaler = Scaler.fit(SPEC, train._replace(inputs=torch.stack([varying, constant], dim=-1)))
    assert scaler.inputs.std[1] == 1
    assert scaler.inputs.std[0] == Scaler.fit(SPEC, train).inputs.std[0]
    near = torch.stack([varying, constant + 1e-3], dim=-1)
    torch.testing.assert_close(
        scaler.encode_inputs(near)[..., 1], torch.full((7, 33), 1e-3), rtol=1e-4, atol=0
    )
    assert [record.getMessage() for record in caplog.records] == [
        "constant over the training samples, hence not scaled: b; a model cannot learn their effect"
    ]


def test_a_constant_coordinate_is_scaled_by_one_and_a_constant_output_as_before(caplog):
    spec = FieldSpec(coords=("x", "z"), outputs=("u",), standardised=("coords", "outputs"))
    coords = torch.stack([torch.rand(7, 33), torch.zeros(7, 33)], dim=-1)
    scaler = Scaler.fit(spec, Batch(coords, None, torch.full((7, 33, 1), 3.0)))
    assert scaler.coords.std[1] == 1
    torch.testing.assert_close(scaler.outputs.std, torch.tensor([1e-8]))
    assert "not scaled: z;" in caplog.text


def test_a_saved_scaler_keeps_the_scale_of_a_constant_channel():
    saved = Scaler.fit(SPEC, batch(0)).state_dict() | {"inputs.std": torch.tensor([1.0, 1e-8])}
    scaler = Scaler.blank(SPEC)
    scaler.load_state_dict(saved)
    assert scaler.inputs.std.tolist() == saved["inputs.std"].tolist()


def test_a_blank_scaler_takes_over_a_fitted_one_with_its_state():
    fitted, blank = Scaler.fit(SPEC, batch(0)), Scaler.blank(SPEC)
    blank.load_state_dict(fitted.state_dict())
    inputs = batch(1).inputs
    torch.testing.assert_close(blank.encode_inputs(inputs), fitted.encode_inputs(inputs), rtol=0, atol=0)


def test_a_dataset_without_inputs_has_nothing_to_encode():
    spec = FieldSpec(coords=("x",), outputs=("u",), standardised=("inputs", "outputs"))
    assert Scaler.fit(spec, batch(0)._replace(inputs=None)).encode_inputs(None) is None


def test_outputs_that_are_known_at_some_points_are_scaled_by_those_alone():
    spec = SPEC.model_copy(update={"masked_outputs": ("u",)})
    train = batch(0)
    known = torch.rand(train.targets.shape) > 0.3
    scaler = Scaler.fit(spec, train._replace(targets=train.targets.where(known, torch.nan)))
    values = train.targets[known].double()
    torch.testing.assert_close(scaler.outputs.mean.item(), values.mean().item(), rtol=1e-5, atol=0)
    torch.testing.assert_close(scaler.outputs.std.item(), values.std().item(), rtol=1e-5, atol=0)


def test_field_descriptions_of_earlier_run_folders_are_read():
    old = {
        "coords": ["s", "r"],
        "outputs": ["x0", "y0"],
        "scaled": ["outputs"],
        "places": ["x0", "y0"],
        "view": [[0, 1], [0, 2]],
        "partial": ["x0"],
    }
    spec = FieldSpec.make(old)
    assert (spec.standardised, spec.position_outputs) == (("outputs",), ("x0", "y0"))
    assert (spec.plot_extent, spec.masked_outputs) == (((0, 1), (0, 2)), ("x0",))
    assert FieldSpec.make(spec.model_dump(mode="json")) == spec
