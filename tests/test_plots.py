"""plots: pictures that leave nothing behind, and say what they show."""

import base64
import html

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from helpers import plots
from helpers.softmax_mask import causal_mask
from helpers.tril_matmul import mean_weights

matplotlib.use("Agg")

TOKENS = ["a", " b", "\n"]
EIGHTHS = [[0.5, 0.125, 0.375], [0.25, 0.75, 0.0]]
HISTORY = {"step": [0, 50, 100], "train": [4.0, 2.5, 1.25], "held_out": [4.0, 3.0, 2.0]}


def random_weights(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)).softmax(dim=-1)


DRAWN = {
    "heatmap": lambda: plots.heatmap(mean_weights(3), TOKENS),
    "large heatmap": lambda: plots.heatmap(random_weights(12, 14)),
    "stages": lambda: plots.stages({"scores": torch.eye(3) - 1, "weights": mean_weights(3)}),
    "head_grid": lambda: plots.head_grid(random_weights(2, 1, 3, 3), TOKENS),
    "lines": lambda: plots.lines([4, 16], {"raw": [4, 16]}, xlabel="x", ylabel="y", title="Up"),
    "loss_curve": lambda: plots.loss_curve(HISTORY, levels={"guess": 3.5}),
}


@pytest.fixture
def shown(monkeypatch):
    """What a notebook is given to display, as (bundle, metadata)."""
    bundles = []
    monkeypatch.setattr(
        plots,
        "display",
        lambda bundle, raw, metadata=None: bundles.append((bundle, metadata)) if raw else None,
    )
    return bundles


def axes_of(picture):
    return picture.figure.axes[0]


def hidden_cells(picture):
    """The (row, column) of every hatched cell."""
    return {
        (round(cell.get_y() + 0.5), round(cell.get_x() + 0.5))
        for cell in axes_of(picture).patches
        if cell.get_hatch()
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", DRAWN)
def test_thirty_pictures_leave_no_figure_open(name):
    before = plt.get_fignums()
    said = {repr(DRAWN[name]()) for _ in range(30)}
    assert plt.get_fignums() == before
    assert len(said) == 1


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_a_png_whose_alt_text_stands_under_it(name, shown):
    picture = DRAWN[name]()
    picture._ipython_display_()
    (image, metadata), (caption, _) = shown
    drawn = base64.b64decode(image["image/png"])
    assert drawn.startswith(b"\x89PNG\r\n\x1a\n")
    assert drawn == DRAWN[name]().png()
    assert image["text/plain"] == repr(picture)
    assert metadata["image/png"]["alt"] == picture.sentence
    assert caption["text/plain"] == picture.sentence
    assert html.unescape(caption["text/html"]) == f"<p>{picture.sentence}</p>"
    assert repr(picture).startswith(picture.sentence)
    assert picture.sentence.endswith(".")
    width, height = (int.from_bytes(drawn[at : at + 4], "big") for at in (16, 20))
    assert metadata["image/png"]["width"] / metadata["image/png"]["height"] == pytest.approx(
        width / height, rel=0.02
    )


def test_a_sentence_with_signs_of_html_is_shown_as_it_is(shown):
    plots.heatmap(mean_weights(2), title="<s> & co")._ipython_display_()
    assert shown[1][0]["text/html"].startswith("<p>&lt;s&gt; &amp; co: 2 by 2")


def test_a_figure_of_pyplot_is_shown_once(shown):
    before = plt.get_fignums()
    figure, ax = plt.subplots()
    picture = plots.heatmap(mean_weights(3), ax=ax)
    assert picture.figure is figure
    assert len(ax.images) == 1
    picture._ipython_display_()
    assert plt.get_fignums() == before
    assert [next(iter(bundle)) for bundle, _ in shown] == ["image/png", "text/html"]


def test_axes_that_are_given_are_drawn_into():
    figure, (left, right) = plt.subplots(1, 2)
    plots.heatmap(mean_weights(3), ax=right)
    assert (len(left.images), len(right.images)) == (0, 1)
    plt.close(figure)


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor(EIGHTHS, requires_grad=True),
        torch.tensor(EIGHTHS).bfloat16(),
        torch.tensor(EIGHTHS).half(),
        torch.tensor(EIGHTHS).double().T.contiguous().T,
        np.array(EIGHTHS),
        np.array(EIGHTHS, dtype=np.float32),
        EIGHTHS,
    ],
)
def test_numbers_of_every_kind_give_the_same_picture(values):
    assert repr(plots.heatmap(values)) == (
        "Weights: 2 by 3 cells, each row sums to 1, the largest is 0.75 in row 1, column 1.\n"
        " 0.50  0.13  0.38\n"
        " 0.25  0.75  0.00"
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda kind: plots.stages({"scores": kind(EIGHTHS)}),
        lambda kind: plots.head_grid(kind([[[[1.0, 0.0], [0.25, 0.75]]]]), ["a", "b"]),
        lambda kind: plots.lines(
            kind([1.0, 2.0]), {"y": kind([3.0, 4.0])}, xlabel="x", ylabel="y", title="t"
        ),
    ],
)
def test_every_function_takes_live_tensors_arrays_and_lists(draw):
    live = draw(lambda values: torch.tensor(values, requires_grad=True).bfloat16())
    assert repr(live) == repr(draw(np.array)) == repr(draw(list))


def test_whole_numbers_and_booleans_are_drawn():
    assert repr(plots.heatmap(causal_mask(3))) == repr(plots.heatmap(causal_mask(3).long()))


def test_tick_i_reads_token_i():
    ax = axes_of(plots.heatmap(mean_weights(3), TOKENS))
    for axis in (ax.xaxis, ax.yaxis):
        assert list(axis.get_majorticklocs()) == [0, 1, 2]
        assert [tick.get_text() for tick in axis.get_majorticklabels()] == ["a", "b", "↵"]


def test_rows_and_columns_may_have_labels_of_their_own():
    picture = plots.heatmap(EIGHTHS, rows=["x", "y"], columns=["one", "two", "three"])
    ax = axes_of(picture)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["x", "y"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["one", "two", "three"]
    assert "the largest is 0.75 in row 1 (y), column 1 (two)" in picture.sentence


def test_rows_are_queries_from_the_top_and_columns_are_keys():
    ax = axes_of(plots.heatmap(EIGHTHS))
    assert "query" in ax.get_ylabel()
    assert "key" in ax.get_xlabel()
    (_, top), (_, below) = ax.transData.transform([(0, 0), (0, 1)])
    (left, _), (right, _) = ax.transData.transform([(0, 0), (1, 0)])
    assert top > below
    assert left < right
    np.testing.assert_allclose(ax.images[0].get_array(), EIGHTHS)
    numbers = {text.get_position(): text.get_text() for text in ax.texts}
    assert numbers[2, 0] == "0.38"
    assert numbers[0, 1] == "0.25"
    assert len(numbers) == 6


def test_weights_are_coloured_from_0_to_1_and_signed_numbers_around_0():
    assert axes_of(plots.heatmap(EIGHTHS)).images[0].get_clim() == (0, 1)
    assert axes_of(plots.heatmap(EIGHTHS, vmax=None)).images[0].get_clim() == (0, 0.75)
    signed = axes_of(plots.heatmap([[-2.0, 0.5], [1.0, 0.0]], signed=True)).images[0]
    assert signed.get_clim() == (-2, 2)
    assert signed.cmap != axes_of(plots.heatmap(EIGHTHS)).images[0].cmap
    assert axes_of(plots.heatmap(torch.zeros(2, 2), signed=True)).images[0].get_clim() == (-1, 1)


@pytest.mark.parametrize("values", [[[0.5, -0.25]], [[-1.0]], [[float("nan"), -0.5]]])
def test_negative_weights_are_refused_unless_signed(values):
    with pytest.raises(ValueError, match=r"-\d(\.\d+)?; pass signed=True"):
        plots.heatmap(values)
    assert "from -" in plots.heatmap(values, signed=True).sentence


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        (torch.zeros(3, 3).masked_fill(~causal_mask(3), float("-inf")), None),
        (torch.zeros(3, 3).masked_fill(~causal_mask(3), float("nan")), None),
        (torch.zeros(3, 3), causal_mask(3)),
    ],
)
def test_hidden_cells_are_drawn_and_counted(values, mask):
    picture = plots.heatmap(values, mask=mask, signed=True)
    assert hidden_cells(picture) == {(0, 1), (0, 2), (1, 2)}
    assert "3 of them hidden" in picture.sentence
    assert picture.numbers == " 0.00    --    --\n 0.00  0.00    --\n 0.00  0.00  0.00"
    assert len(axes_of(picture).texts) == 6


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (torch.ones(2, 5).tril(3), "2 by 5 cells, each 0 or 1, 4 to 5 ones in a row"),
        (torch.ones(3, 4), "3 by 4 cells, each 0 or 1, 4 ones in a row"),
        (
            causal_mask(3),
            "3 by 3 cells, each 0 or 1, 1 to 3 ones in a row, nothing lies above the diagonal",
        ),
    ],
)
def test_a_mask_says_how_many_ones_its_rows_have(values, said):
    assert plots.heatmap(values).sentence == f"Weights: {said}."


def test_ones_that_are_weights_say_what_weights_say():
    assert "each row sums to 1" in plots.heatmap(torch.eye(3)).sentence


def test_a_picture_without_a_single_visible_cell_says_so():
    picture = plots.heatmap(torch.full((2, 3), float("nan")))
    assert picture.sentence == "Weights: 2 by 3 cells, 6 of them hidden."
    assert len(hidden_cells(picture)) == 6


@pytest.mark.parametrize(
    ("mask", "error", "said"),
    [
        (torch.ones(3, 3), TypeError, r"float.*bool"),
        (causal_mask(2), ValueError, r"\(2, 2\).*\(3, 3\)"),
        (causal_mask(3)[:1], ValueError, r"\(1, 3\).*\(3, 3\)"),
    ],
)
def test_a_mask_that_is_not_boolean_or_does_not_cover_is_refused(mask, error, said):
    with pytest.raises(error, match=said):
        plots.heatmap(torch.zeros(3, 3), mask=mask)


@pytest.mark.parametrize("draw", [plots.heatmap, lambda m: plots.stages({"weights": m})])
@pytest.mark.parametrize("shape", [(3,), (1, 3, 3), (0, 3), (3, 0), ()])
def test_what_is_no_matrix_is_refused_with_its_shape(draw, shape):
    with pytest.raises(ValueError, match=str(shape).replace("(", r"\(").replace(")", r"\)")):
        draw(torch.zeros(shape))


@pytest.mark.parametrize(
    "draw",
    [
        lambda tokens: plots.heatmap(mean_weights(3), tokens),
        lambda tokens: plots.heatmap(mean_weights(3), columns=tokens),
        lambda tokens: plots.stages({"weights": mean_weights(3)}, tokens),
        lambda tokens: plots.head_grid(mean_weights(3)[None, None], tokens),
    ],
)
@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_labels_is_refused(draw, count):
    with pytest.raises(ValueError, match=f"{count} labels for 3 positions"):
        draw(["a", "b", "c", "d"][:count])


def test_maps_that_are_not_by_layer_and_head_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3, 3\).*\(n_layer, n_head, T, T\)"):
        plots.head_grid(random_weights(2, 3, 3), TOKENS)


def test_a_line_of_another_length_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'raw' has shape \(3,\) and x \(2,\)"):
        plots.lines([1, 2], {"raw": [1, 2, 3]}, xlabel="x", ylabel="y", title="t")


@pytest.mark.parametrize("T", [3, 9, 12])
def test_the_text_changes_with_a_flipped_mask_and_with_a_swapped_axis(T):
    weights = mean_weights(T)
    said = [repr(plots.heatmap(w)) for w in (weights, weights.T, weights.flip(0), weights.flip(1))]
    assert len(set(said)) == 4
    assert "nothing lies above the diagonal" in said[0]
    assert "each row sums to 1" in said[0]
    assert "each row sums to 1" not in said[1]
    scores = torch.zeros(T, T)
    masks = (causal_mask(T), ~causal_mask(T), causal_mask(T).T)
    assert len({repr(plots.heatmap(scores, mask=mask)) for mask in masks}) == 3


@pytest.mark.parametrize("signed", [False, True])
def test_the_text_of_a_small_matrix_changes_with_each_of_its_numbers(signed):
    values = random_weights(3, 4)
    said = {repr(plots.heatmap(values, signed=signed))}
    for row in range(3):
        for column in range(4):
            changed = values.clone()
            changed[row, column] += 0.02
            said.add(repr(plots.heatmap(changed, signed=signed)))
    assert len(said) == 13


def test_the_text_of_many_heads_changes_when_two_change_places_or_one_looks_elsewhere():
    maps = (random_weights(2, 3, 4, 4) * causal_mask(4)).square()
    maps /= maps.sum(dim=-1, keepdim=True)
    tokens = ["a", "b", "c", "d"]
    changed = [maps, maps.flip(0), maps.flip(1), maps.transpose(-2, -1), maps.flip(-1)]
    assert len({repr(plots.head_grid(maps, tokens)) for maps in changed}) == 5
    assert "Weights of 6 heads over 4 tokens" in repr(plots.head_grid(maps, tokens))


def test_every_head_is_drawn_in_the_row_of_its_layer():
    maps = random_weights(2, 3, 4, 4)
    figure = plots.head_grid(maps, ["a", "b", "c", "d"]).figure
    titles = [f"layer {layer}, head {head}" for layer in range(2) for head in range(3)]
    assert [ax.get_title() for ax in figure.axes] == titles
    for ax, expected in zip(figure.axes, maps.flatten(0, 1), strict=True):
        np.testing.assert_allclose(ax.images[0].get_array(), expected)
        assert ax.images[0].get_clim() == (0, 1)


def test_a_head_that_looks_one_back_is_said_to():
    maps = torch.zeros(1, 1, 4, 4)
    maps[0, 0, [0, 1, 2, 3], [0, 0, 1, 2]] = 1.0
    assert plots.head_grid(maps, ["a", "b", "c", "d"]).numbers == (
        "layer 0, head 0: on itself 0.25, on the token before 1.00, on the first 0.50"
    )


def test_stages_are_drawn_side_by_side_each_in_its_colours():
    scores, weights = torch.tensor([[-1.0, 3.0], [0.5, 2.0]]), mean_weights(2)
    picture = plots.stages({"scores": scores, "weights": weights}, ["a", "b"])
    left, right = picture.figure.axes
    assert (left.get_title(), right.get_title()) == ("scores", "weights")
    assert (left.images[0].get_clim(), right.images[0].get_clim()) == ((-3, 3), (0, 1))
    np.testing.assert_allclose(left.images[0].get_array(), scores)
    np.testing.assert_allclose(right.images[0].get_array(), weights)
    assert "scores: 2 by 2 cells" in picture.sentence
    assert "weights: 2 by 2 cells" in picture.sentence


def test_the_last_bit_of_a_number_does_not_change_the_text():
    half = [[0.125, 0.875]]
    for change in (1e-7, -1e-7):
        near = [[0.125 + change, 0.875 - change]]
        assert repr(plots.heatmap(near)) == repr(plots.heatmap(half))
        assert repr(plots.heatmap(np.negative(near), signed=True)) == repr(
            plots.heatmap(np.negative(half), signed=True)
        )
    assert "-0.00" not in repr(plots.heatmap([[-1.2e-5, 1.0]], signed=True))


def test_a_loss_curve_says_where_each_loss_begins_and_ends():
    picture = plots.loss_curve(HISTORY, levels={"guess": 3.5})
    assert picture.sentence == (
        "Loss, for step from 0 to 100: training text goes from 4 to 1.3; "
        "held-out text goes from 4 to 2; guess is 3.5."
    )
    assert picture.numbers == "training text: 4 2.5 1.3\nheld-out text: 4 3 2"
    ax = axes_of(picture)
    for line, name in zip(ax.lines, ("train", "held_out"), strict=False):
        np.testing.assert_allclose(line.get_xdata(), HISTORY["step"])
        np.testing.assert_allclose(line.get_ydata(), HISTORY[name])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss (nats per token)")


def test_every_line_is_drawn_and_named():
    given = {"xlabel": "x", "ylabel": "y", "title": "t"}
    series = {name: [1, number] for number, name in enumerate("abcd", start=1)}
    picture = plots.lines([1, 2], series, **given)
    drawn = axes_of(picture).lines
    assert [line.get_label() for line in drawn] == list("abcd")
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == 4
    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list("abcd")
    assert "d goes from 1 to 4" in picture.sentence
    with pytest.raises(ValueError, match=r"5 lines.*4 or fewer"):
        plots.lines([1, 2], {**series, "e": [1, 5]}, **given)


@pytest.mark.parametrize(
    ("log", "scales"),
    [("", ("linear", "linear")), ("x", ("log", "linear")), ("xy", ("log", "log"))],
)
def test_the_axes_that_are_named_are_logarithmic(log, scales):
    given = {"xlabel": "x", "ylabel": "y", "title": "t"}
    picture = plots.lines([4, 16, 64], {"a": [1, 4, 16]}, log=log, **given)
    ax = axes_of(picture)
    assert (ax.get_xscale(), ax.get_yscale()) == scales
    if "x" in log:
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4", "16", "64"]
    assert picture.png().startswith(b"\x89PNG")


def test_framed_cells_are_counted_with_the_share_of_their_rows():
    weights = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.2, 0.2, 0.6]]
    mark = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0]]).bool()
    picture = plots.heatmap(weights, mark=mark)
    assert "2 cells have a frame and hold 22.50 % of their rows" in picture.sentence  # 0.45 of 2
    frames = [patch for patch in picture.figure.axes[0].patches if not patch.get_fill()]
    assert [frame.get_xy() for frame in frames] == [(-0.5, 0.5), (0.5, 1.5)]
    with pytest.raises(TypeError, match=r"torch\.bool"):
        plots.heatmap(weights, mark=mark.int())


def test_ranges_say_the_mean_and_both_ends_of_each_row():
    picture = plots.ranges(
        {"whole": [0.5, 1.0], "part": [2.0, 4.0, 3.0]},
        xlabel="loss",
        title="Parts",
        levels={"floor": 0.3},
    )
    assert "whole 0.750 (0.500 to 1.000); part 3.000 (2.000 to 4.000)" in picture.sentence
    assert "floor 0.300" in picture.sentence
    ends = [line.get_xdata() for line in picture.figure.axes[0].lines]
    assert list(ends[2]) == [2.0, 4.0]


def test_a_live_curve_is_shown_once_and_then_drawn_anew_in_its_place(monkeypatch):
    shown = []

    class Handle:
        def update(self, data, **named):
            shown.append(("update", data["text/plain"]))

    def display(data, display_id=None, **named):
        shown.append(("display", data["text/plain"]))
        return Handle()

    monkeypatch.setattr(plots, "display", display)
    curve = plots.LiveCurve({"guess": 3.5})
    curve(HISTORY)
    curve({name: values * 2 for name, values in HISTORY.items()})
    assert [kind for kind, _ in shown] == ["display"] * 2 + ["update"] * 4
    assert "from 4 to 2" in shown[1][1]


def test_dollars_and_numbers_are_labels_like_any_other():
    picture = plots.heatmap(mean_weights(3), ["$a$", "$\\frac$", 7], title="cost $_$")
    assert picture.png().startswith(b"\x89PNG")
    assert "column 0 ($a$)" in picture.sentence
    plots.heatmap(mean_weights(3), np.array(["a", "b", "c"]))


def test_nothing_to_draw_is_said_in_words():
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.loss_curve({"step": [], "train": [], "held_out": []})
    for values in ([], [0.0, 1.0], [float("nan")]):
        with pytest.raises(ValueError, match=r"'a' holds .* above 0"):
            plots.ranges({"a": values}, xlabel="x", title="y")
