from dataclasses import replace
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from linearno.viz import RolloutCase, frame_figure, gif_bytes, png_bytes, rollout_figure, rollout_frames


def make_case(
    dimensions: int = 2, frames: int = 7, grid=None, factor: float = 1.1, side: int = 6
) -> RolloutCase:
    rng = np.random.default_rng(0)
    axes = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side), indexing="ij")
    coords = np.stack(axes, axis=-1).reshape(-1, 2) if grid else rng.uniform(size=(40, dimensions))
    waves = np.sin(5 * coords[:, :1] - 0.2 * np.arange(frames + 1))
    names = tuple(f"u{t + 2}" for t in range(frames))
    return RolloutCase(
        coords, waves[:, 0], waves[:, 1:], factor * waves[:, 1:], "u1", names, label="u (m/s)", grid=grid
    )


def fields(figure):
    """The values drawn in each panel that holds a field, in the order of drawing."""
    return [
        np.ravel(axes.collections[0].get_array())
        for axes in figure.axes
        if "QuadMesh" in str(axes.collections[:1])
    ]


def test_the_known_frame_comes_first_then_three_steps_of_truth_prediction_and_error():
    case = make_case(grid=(6, 6))
    known, *rest = [values for values in fields(rollout_figure(case)) if len(values) == 36]
    np.testing.assert_array_equal(known, case.known)
    expected = [
        values[:, step]
        for values in (case.truth, case.prediction, np.abs(case.prediction - case.truth))
        for step in (0, 3, 6)
    ]
    np.testing.assert_allclose(rest, expected)
    titles = [axes.get_title() for axes in rollout_figure(case).axes if axes.get_title()]
    assert titles == ["input: u1", "u2", "u5", "u8"]


def test_flat_panels_have_a_row_for_each_step_so_that_names_leave_no_empty_paper():
    case = make_case(grid=(6, 6))
    flat = replace(case, coords=case.coords * (1.0, 0.2))
    figure = rollout_figure(flat)
    assert figure.get_figheight() < 0.6 * rollout_figure(case).get_figheight()
    # what stands left above an axis is the name of a colour bar
    rest = [axes for axes in figure.axes[1:] if not axes.get_title(loc="left")]
    titles = [axes.get_title() for axes in rest if axes.get_title()]
    assert titles == ["truth", "prediction", "absolute error"]
    rows = sorted(rest, key=lambda axes: (-axes.get_position().y0, axes.get_position().x0))
    assert [axes.get_ylabel() for axes in rows[::3]] == ["u2", "u5", "u8"]
    for axes, step in zip(rows[1::3], (0, 3, 6), strict=True):
        np.testing.assert_array_equal(np.ravel(axes.collections[0].get_array()), case.prediction[:, step])


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_short_rollout_shows_each_frame_once(frames):
    figure = rollout_figure(make_case(grid=(6, 6), frames=frames))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[1:] == [f"u{t + 2}" for t in range(frames)]


def test_every_frame_has_the_same_scales():
    case = make_case(grid=(6, 6))
    scales = [
        [axes.collections[0].get_clim() for axes in frame_figure(case, step).axes[:3]]
        for step in range(case.steps)
    ]
    assert all(each == scales[0] for each in scales)
    truth, prediction, error = scales[0]
    assert truth == prediction
    assert error[0] == 0


@pytest.mark.parametrize(("factor", "ends"), [(1.0, "neither"), (50.0, "both"), (np.nan, "neither")])
def test_a_prediction_that_runs_away_does_not_hide_the_truth(factor, ends):
    case = make_case(grid=(6, 6), factor=factor)
    figure = frame_figure(case, 2)
    largest = max(np.abs(case.known).max(), np.abs(case.truth).max())
    assert figure.axes[0].collections[0].get_clim() == (-largest, largest)
    assert figure.axes[2].collections[0].get_clim()[1] <= 2 * largest
    bar = figure.axes[3]._colorbar
    assert bar.extend == ends


def test_there_are_as_many_frames_as_steps_and_all_have_one_size():
    case = make_case(grid=(6, 6), frames=4)
    frames = list(rollout_frames(case, dpi=40))
    assert len(frames) == 4
    assert len({frame.shape for frame in frames}) == 1
    assert all(not np.array_equal(a, b) for a, b in pairwise(frames))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_any_number_of_coordinates_is_drawn(dimensions):
    case = make_case(dimensions)
    assert png_bytes(rollout_figure(case), dpi=40)
    assert png_bytes(frame_figure(case, 1), dpi=40)


def test_a_gif_keeps_its_frames_its_time_and_its_colours():
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 255, (100, 3)).astype(np.uint8)
    frames = [colours[rng.integers(0, 100, (20, 30))] for _ in range(5)]
    for frame in frames:
        frame[:5] = 255
    with Image.open(BytesIO(gif_bytes(frames, fps=4.0))) as image:
        assert image.n_frames == 5
        for place, frame in enumerate(frames):
            image.seek(place)
            assert image.info["duration"] == (250 if place < 4 else 1250)
            np.testing.assert_array_equal(np.array(image.convert("RGB")), frame)


def test_paper_stays_white_among_many_colours():
    rng = np.random.default_rng(0)
    frame = rng.integers(200, 256, (60, 60, 3)).astype(np.uint8)
    frame[:20] = 255
    with Image.open(BytesIO(gif_bytes([frame, frame[::-1]], fps=4.0))) as image:
        shown = np.array(image.convert("RGB")).astype(int)
    assert (shown[:20] == 255).all()
    assert np.abs(shown - frame).max() < 40


def test_the_same_rollout_gives_the_same_bytes_and_a_page_can_hold_them():
    """64×64 points and ten frames without any order, the hardest to pack, stay below 1.1 MB."""
    rng = np.random.default_rng(0)
    axes = np.meshgrid(np.linspace(0, 1, 64), np.linspace(0, 1, 64), indexing="ij")
    coords = np.stack(axes, axis=-1).reshape(-1, 2)
    truth, prediction = rng.standard_normal((2, 4096, 10))
    case = RolloutCase(coords, truth[:, 0], truth, prediction, grid=(64, 64))
    first, second = (gif_bytes(list(rollout_frames(case)), fps=4.0) for _ in range(2))
    assert first == second
    assert len(first) < 1_100_000


def test_points_that_move_are_drawn_where_they_are_within_one_frame_for_all_steps():
    still = make_case(grid=(6, 6), frames=3)
    moves = still.coords[:, None] * np.array([1.0, 2.0, 4.0])[:, None]  # N T 2
    case = replace(
        still,
        positions=moves,
        predicted_positions=moves + 0.5,
        known_label="die (mm)",
        known=10 + still.known,
    )
    for step, size in enumerate((1.0, 2.0, 4.0)):
        truth, prediction, error = frame_figure(case, step).axes[:3]
        for axes, shift in ((truth, 0.0), (prediction, 0.5), (error, 0.0)):
            drawn = axes.collections[0].get_coordinates().reshape(-1, 2)
            middle = (drawn.min(axis=0) + drawn.max(axis=0)) / 2
            np.testing.assert_allclose(middle, size / 2 + shift, atol=1e-9)
            assert axes.get_xlim()[1] == pytest.approx(4.0, rel=0.05)
    known, truth = rollout_figure(case).axes[0], fields(rollout_figure(case))[1]
    assert known.collections[0].get_clim() == (case.known.min(), case.known.max())  # on a scale of its own
    np.testing.assert_array_equal(truth, case.truth[:, 0])
    labels = [axes.get_title(loc="left") for axes in rollout_figure(case).axes]
    assert "die (mm)" in labels


def test_a_body_that_begins_straight_and_bends_is_drawn_from_node_to_node_in_all_frames():
    """Cells around the nodes of the straight frame alone would make it larger by an element."""
    still = make_case(grid=(6, 6), frames=2)
    moves = np.stack([still.coords, still.coords + 0.1 * np.sin(5 * still.coords[:, ::-1])], axis=1)
    case = replace(still, positions=moves, predicted_positions=moves, known_label="die (mm)")
    for step in (0, 1):
        for axes in frame_figure(case, step).axes[:3]:
            drawn = axes.collections[0].get_coordinates().reshape(-1, 2)
            np.testing.assert_allclose(drawn, moves[:, step])
    known = rollout_figure(case).axes[0].collections[0]
    np.testing.assert_allclose(known.get_coordinates().reshape(-1, 2), moves[:, 0])


def test_places_that_are_no_numbers_leave_the_other_points_to_be_seen():
    still = make_case(grid=(6, 6), frames=1)
    broken = still.coords[:, None].copy()
    broken[3] = np.nan
    case = replace(still, positions=still.coords[:, None], predicted_positions=broken)
    dots = frame_figure(case, 0).axes[1].collections[0].get_offsets()
    np.testing.assert_array_equal(np.ma.filled(dots, np.nan), broken[:, 0])
    assert png_bytes(rollout_figure(case), dpi=40)
