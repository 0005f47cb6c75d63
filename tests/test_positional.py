"""positional: which token it is, and where it stands."""

import math

import pytest
import torch

from helpers.positional import TokenAndPosition, sinusoidal_positions
from helpers.qkv_head import Head, attention
from helpers.softmax_mask import causal_mask

V, BLOCK, C = 7, 8, 6


def test_token_and_position_are_added():
    torch.manual_seed(1)
    embed = TokenAndPosition(V, BLOCK, C)
    idx = torch.tensor([[3, 1, 3, 0, 6], [2, 2, 5, 4, 1]])
    out = embed(idx)
    assert out.shape == (2, 5, C)
    for b in range(2):
        for t in range(5):
            expected = embed.tokemb.weight[idx[b, t]] + embed.posemb.weight[t]
            torch.testing.assert_close(out[b, t], expected)


def test_the_same_token_differs_by_where_it_stands():
    torch.manual_seed(1)
    out = TokenAndPosition(V, BLOCK, C)(torch.tensor([[4, 4, 4]]))[0]
    assert (out[0] - out[1]).abs().max() > 0.1
    assert (out[1] - out[2]).abs().max() > 0.1


def test_all_of_block_size_fits_and_one_more_is_refused():
    embed = TokenAndPosition(V, BLOCK, C)
    assert embed(torch.zeros(2, BLOCK, dtype=torch.long)).shape == (2, BLOCK, C)
    with pytest.raises(ValueError, match=r"T = 9 .*block_size = 8.*last 8"):
        embed(torch.zeros(2, BLOCK + 1, dtype=torch.long))


@pytest.mark.parametrize(
    ("idx", "error", "said"),
    [
        (torch.tensor([[0, 7]]), ValueError, "token id 7 .*0 to 6"),
        (torch.tensor([[0, -1]]), ValueError, "token id -1 .*0 to 6"),
        (torch.tensor([[0.0, 1.0]]), TypeError, "float32.*integer"),
        (torch.tensor([0, 1]), ValueError, r"\(2,\).*\(B, T\)"),
        (torch.zeros(2, 3, 4, dtype=torch.long), ValueError, r"\(2, 3, 4\).*\(B, T\)"),
        (torch.zeros(2, 0, dtype=torch.long), ValueError, r"\(2, 0\).*\(B, T\)"),
    ],
)
def test_other_ids_are_refused(idx, error, said):
    with pytest.raises(error, match=said):
        TokenAndPosition(V, BLOCK, C)(idx)


@pytest.mark.parametrize("sizes", [(0, 8, 6), (7, -1, 6), (7, 8, 1.5)])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        TokenAndPosition(*sizes)


def test_positions_follow_the_ids_to_their_device():
    embed = TokenAndPosition(V, BLOCK, C).to("meta")
    assert embed(torch.zeros(2, 5, dtype=torch.long, device="meta")).is_meta


def test_permuting_tokens_permutes_outputs_when_nothing_marks_order():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 2, 5, 6)
    order = torch.tensor([3, 0, 4, 1, 2])
    everyone = torch.ones(5, 5, dtype=torch.bool)
    out, weights = attention(q, k, v, everyone)
    moved, moved_weights = attention(q[:, order], k[:, order], v[:, order], everyone)
    torch.testing.assert_close(moved, out[:, order])
    torch.testing.assert_close(moved_weights, weights[:, order][:, :, order])


def test_shuffling_the_past_leaves_only_the_last_row_under_the_causal_mask():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 2, 5, 6)
    order = torch.tensor([3, 0, 2, 1, 4])
    out, _ = attention(q, k, v, causal_mask(5))
    moved, _ = attention(q[:, order], k[:, order], v[:, order], causal_mask(5))
    torch.testing.assert_close(moved[:, -1], out[:, -1])
    assert (moved[:, :-1] - out[:, order][:, :-1]).abs().amax(dim=(0, 2)).max() > 0.1


def test_positions_let_the_last_row_see_the_order_of_its_past():
    torch.manual_seed(1)
    embed, head = TokenAndPosition(V, BLOCK, C), Head(C, 3, BLOCK)
    idx, moved = torch.tensor([[5, 1, 3, 2]]), torch.tensor([[3, 5, 1, 2]])
    assert (head(embed(idx))[:, -1] - head(embed(moved))[:, -1]).abs().max() > 1e-3
    embed.posemb.weight.data.zero_()
    torch.testing.assert_close(head(embed(idx))[:, -1], head(embed(moved))[:, -1])


@pytest.mark.parametrize("n_embd", [1, 2, 3, 5, 6, 127])
@pytest.mark.parametrize("base", [10000.0, 100])
def test_every_wave_is_the_one_in_the_paper(n_embd, base):
    expected = torch.zeros(9, n_embd)
    for pos in range(9):
        for i in range((n_embd + 1) // 2):
            angle = pos / base ** (2 * i / n_embd)
            expected[pos, 2 * i] = math.sin(angle)
            if 2 * i + 1 < n_embd:
                expected[pos, 2 * i + 1] = math.cos(angle)
    out = sinusoidal_positions(9, n_embd, base)
    assert out.shape == (9, n_embd)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def test_how_alike_two_places_are_depends_only_on_their_distance():
    rows = sinusoidal_positions(12, 6)
    alike = rows @ rows.T
    for distance in range(12):
        diagonal = alike.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=0)
    torch.testing.assert_close(alike[0, 0], torch.tensor(3.0))
    assert alike[0, 1] > alike[0, 2] > alike[0, 3]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"block_size": 0, "n_embd": 6}, "block_size = 0.*at least 1"),
        ({"block_size": 8, "n_embd": 2.5}, "n_embd = 2.5.*at least 1"),
        ({"block_size": 8, "n_embd": 6, "base": 0}, "base = 0 .*above 0"),
        ({"block_size": 8, "n_embd": 6, "base": -10.0}, "base = -10.0 .*above 0"),
    ],
)
def test_sizes_below_1_and_bases_up_to_0_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        sinusoidal_positions(**settings)
