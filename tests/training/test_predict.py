import torch
from tiny_run import CPU, SPEC, Tiny, tiny_data

from linearno.data.field_data import FieldData
from linearno.data.scaler import Scaler
from linearno.training import predict


def made():
    data = tiny_data()
    return Tiny(), Scaler.fit(SPEC, data.everything()), data


def test_a_prediction_is_decoded_to_physical_units():
    model, scaler, data = made()
    coords = data.coords.expand(13, -1, -1)
    encoded = model.eval()(coords, (data.inputs - data.inputs.mean()) / data.inputs.std())
    expected = encoded * data.targets.std() + data.targets.mean()
    torch.testing.assert_close(predict(model, scaler, data, batch=13, device=CPU), expected.detach())


def test_the_batch_size_does_not_change_a_prediction():
    model, scaler, data = made()
    one, many = (predict(model, scaler, data, batch=batch, device=CPU) for batch in (1, 5))
    torch.testing.assert_close(one, many)
    assert one.shape == data.targets.shape


def test_a_prediction_has_no_dropout_and_leaves_the_mode_as_it_was():
    model, scaler, data = made()
    for training in (True, False):
        model.train(training)
        first, second = (predict(model, scaler, data, batch=4, device=CPU) for _ in range(2))
        assert torch.equal(first, second)
        assert model.training is training
    assert not first.requires_grad


def test_coordinates_are_encoded_and_may_differ_between_samples_and_inputs_be_absent():
    spec = SPEC.model_copy(update={"inputs": (), "standardised": ("coords",), "grid": None})
    coords = 5 + torch.rand(3, 6, 2)
    data = FieldData(spec, coords, None, torch.rand(3, 6, 1))

    class SumOfCoords(torch.nn.Module):
        def forward(self, coords, inputs=None):
            assert inputs is None
            return coords.sum(dim=-1, keepdim=True)

    scaler = Scaler.fit(spec, data.everything())
    expected = scaler.coords.encode(coords).sum(dim=-1, keepdim=True)
    torch.testing.assert_close(predict(SumOfCoords(), scaler, data, batch=2, device=CPU), expected)


def test_bf16_gives_fp32_fields_near_the_fp32_ones():
    model, scaler, data = made()
    exact = predict(model, scaler, data, batch=4, device=CPU)
    rough = predict(model, scaler, data, batch=4, device=CPU, precision="bf16")
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.01, atol=0.01)
