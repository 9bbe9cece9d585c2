"""Predictions as means over random draws of points that cover a mesh."""

import pytest
import torch

from linearno.data import Batch, FieldData, FieldSpec
from linearno.data.point_sampling import separate
from linearno.data.scaler import Scaler
from linearno.training import TASKS
from linearno.training.predict import predict

SPEC = FieldSpec(coords=("x",), inputs=("a",), outputs=("u",), aux={"speed": "sample", "edges": "edge"})


def packed(sizes: tuple[int, ...]) -> FieldData:
    generator = torch.Generator().manual_seed(0)
    samples = [
        Batch(
            *(torch.rand(size, 1, generator=generator) for _ in range(3)),
            aux={"speed": torch.tensor([float(size)]), "edges": torch.zeros(2, 3, dtype=torch.int64)},
        )
        for size in sizes
    ]
    return FieldData.pack(SPEC, samples, [torch.arange(size) < 2 for size in sizes])


class Recorded:
    """Predicts input plus speed at each point, plus `mean` of the inputs that it sees."""

    def __init__(self, mean: float = 0.0):
        self.calls: list[Batch] = []
        self.mean = mean

    def __call__(self, batch: Batch) -> torch.Tensor:
        self.calls.append(batch)
        return batch.inputs + batch.aux["speed"][:, None] + self.mean * batch.inputs.mean()


def covered(data: FieldData, predictor: Recorded, points: int, batch: int = 1) -> torch.Tensor:
    task, scaler = TASKS["covering"].make({"points": points}), Scaler.blank(SPEC)
    model = torch.nn.Identity()
    return predict(
        model, scaler, data, batch=batch, device=torch.device("cpu"), task=task, predictor=predictor
    )


@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_that_sees_each_point_alone_gives_the_result_of_one_call(batch):
    data, predictor = packed((30, 17)), Recorded()
    found = covered(data, predictor, 8, batch)
    speed = torch.cat([torch.full((size, 1), float(size)) for size in (30, 17)])
    torch.testing.assert_close(found, data.inputs + speed)
    assert {call.coords.shape for call in predictor.calls} == {(1, 8, 1)}
    assert all(call.segments.tolist() == [0, 8] and "edges" not in call.aux for call in predictor.calls)
    assert all(call.surface.shape == (1, 8) for call in predictor.calls)


def test_draws_are_repeated_until_all_points_are_covered_and_then_averaged():
    data, predictor = packed((40,)), Recorded(mean=1.0)
    found = covered(data, predictor, 10)
    assert len(predictor.calls) > 4  # draws overlap
    total, visits = torch.zeros(40), torch.zeros(40)
    position = {value: index for index, value in enumerate(data.coords[:, 0].tolist())}
    for call in predictor.calls:
        index = [position[value] for value in call.coords[0, :, 0].tolist()]
        assert len(set(index)) == 10
        total[index] += call.inputs[0, :, 0] + 40 + call.inputs.mean()
        visits[index] += 1
    assert (visits > 0).all()
    torch.testing.assert_close(found[:, 0], total / visits)


def test_draws_are_repeatable_and_small_meshes_need_one_call():
    data = packed((20, 9))
    torch.testing.assert_close(
        covered(data, Recorded(1.0), 6), covered(data, Recorded(1.0), 6), rtol=0, atol=0
    )
    predictor = Recorded(1.0)
    covered(data, predictor, 100)
    assert [call.coords.shape[1] for call in predictor.calls] == [20, 9]


def test_samples_of_a_stacked_batch_are_separated():
    batch = Batch(
        torch.rand(2, 5, 1), torch.rand(2, 5, 1), torch.rand(2, 5, 1), aux={"speed": torch.rand(2, 1)}
    )
    parts = separate(batch)
    assert [part.coords.shape for part in parts] == [(1, 5, 1)] * 2
    assert torch.equal(parts[1].aux["speed"], batch.aux["speed"][1:])
