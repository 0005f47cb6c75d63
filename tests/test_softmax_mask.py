"""softmax_mask: who may look at whom, and the weights that follow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.softmax_mask import causal_mask, masked_softmax, softmax_mean

HALF_AND_FULL = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("T", [1, 2, 5])
def test_a_row_may_look_at_itself_and_to_its_left(T):
    allowed = [[column <= row for column in range(T)] for row in range(T)]
    assert causal_mask(T).dtype == torch.bool
    assert causal_mask(T).tolist() == allowed


@pytest.mark.parametrize("T", [0, -2, 1.5, False])
def test_a_size_that_is_none_is_refused_by_name(T):
    with pytest.raises(ValueError, match=f"T = {T!r}.*at least 1"):
        causal_mask(T)


def test_weights_are_the_softmax_of_what_may_be_seen():
    torch.manual_seed(1)
    scores, mask = torch.randn(2, 3, 4), torch.rand(3, 4) < 0.6
    mask[:, 2] = True
    expected = torch.zeros(2, 3, 4)
    for b in range(2):
        for row in range(3):
            expected[b, row, mask[row]] = scores[b, row, mask[row]].softmax(dim=0)
    torch.testing.assert_close(masked_softmax(scores, mask), expected)


def test_the_hidden_get_nothing_where_a_score_of_zero_would_get_a_fifth():
    scores, mask = torch.tensor([[2.0, 3.0, 4.0]]), torch.tensor([[True, False, False]])
    torch.testing.assert_close(masked_softmax(scores, mask), torch.tensor([[1.0, 0.0, 0.0]]))
    filled_with_zero = scores.masked_fill(~mask, 0.0).softmax(dim=-1)
    torch.testing.assert_close(filled_with_zero[0, 1:].sum(), torch.tensor(0.21), atol=5e-3, rtol=0)


@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.floats(0, 1), st.integers(0, 10**6)
)
@settings(deadline=None, max_examples=40)
def test_a_row_sums_to_1_or_may_look_at_nothing(B, T, S, share, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = 4 * torch.randn(B, T, S, generator=generator)
    mask = torch.rand(T, S, generator=generator) < share
    weights = masked_softmax(scores, mask)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), mask.any(dim=-1).float().expand(B, T))
    torch.testing.assert_close(weights * ~mask, torch.zeros(B, T, S), atol=0, rtol=0)
    torch.testing.assert_close(masked_softmax(scores + 3, mask), weights, atol=1e-5, rtol=1e-4)


def test_keys_share_the_weight_not_queries():
    scores = torch.tensor([[[0.0, 1.0, 2.0], [5.0, 0.0, 1.0], [1.0, 3.0, 0.0]]]).repeat(2, 1, 1)
    weights = masked_softmax(scores, torch.ones(3, 3, dtype=torch.bool))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3))
    assert ((weights.sum(dim=-2) - 1).abs() > 0.05).all()
    assert ((weights.sum(dim=0) - 1).abs() > 0.01).all()


@pytest.mark.parametrize("dtype", HALF_AND_FULL)
def test_a_row_that_may_look_at_nothing_is_zero_with_finite_gradients(dtype):
    torch.manual_seed(1)
    scores = torch.randn(2, 3, 4).to(dtype).requires_grad_()
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    weights = masked_softmax(scores, mask)
    torch.testing.assert_close(weights[:, 1], torch.zeros(2, 4, dtype=dtype), atol=0, rtol=0)
    (weights * torch.arange(4)).sum().backward()
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(scores.grad[:, 1], torch.zeros(2, 4, dtype=dtype), atol=0, rtol=0)
    assert (scores.grad[:, 0] != 0).any()


@pytest.mark.parametrize("dtype", HALF_AND_FULL)
def test_hidden_weights_are_exactly_zero_however_large_the_hidden_score(dtype):
    scores = torch.full((3, 3), -6e4, dtype=dtype)
    scores[0, 1:] = 6e4
    weights = masked_softmax(scores, causal_mask(3))
    assert weights.dtype == dtype
    expected = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=dtype))
    assert (weights.triu(1) == 0).all()


def test_each_example_may_have_a_mask_of_its_own():
    torch.manual_seed(1)
    scores, mask = torch.randn(2, 5, 3, 4), torch.rand(2, 1, 3, 4) < 0.5
    weights = masked_softmax(scores, mask)
    for b in range(2):
        for h in range(5):
            torch.testing.assert_close(weights[b, h], masked_softmax(scores[b, h], mask[b, 0]))


@pytest.mark.parametrize(
    ("mask", "error", "said"),
    [
        (torch.ones(3, 4), TypeError, "float32.*torch.bool.*True where a row may look"),
        (torch.ones(3, 4, dtype=torch.long), TypeError, "int64.*torch.bool"),
        ([[True] * 4] * 3, TypeError, "list.*torch.bool"),
        (torch.ones(4, 3, dtype=torch.bool), ValueError, r"\(4, 3\).*\(2, 3, 4\)"),
        (torch.ones(3, 1, dtype=torch.bool), ValueError, r"\(3, 1\).*\(2, 3, 4\)"),
        (torch.ones(5, 3, 4, dtype=torch.bool), ValueError, r"\(5, 3, 4\).*\(2, 3, 4\)"),
        (torch.ones(1, 1, 3, 4, dtype=torch.bool), ValueError, r"\(1, 1, 3, 4\).*\(2, 3, 4\)"),
    ],
)
def test_a_mask_that_is_not_boolean_or_does_not_cover_is_refused(mask, error, said):
    with pytest.raises(error, match=said):
        masked_softmax(torch.zeros(2, 3, 4), mask)


def test_whole_numbers_as_scores_are_refused_by_name():
    with pytest.raises((TypeError, ValueError), match="int64"):
        masked_softmax(torch.tensor([[2, 3, 4]]), torch.tensor([[True, True, False]]))


@pytest.mark.parametrize("dtype", [*HALF_AND_FULL, torch.float64])
def test_the_kind_of_number_stays(dtype):
    assert softmax_mean(torch.ones(2, 5, 3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (torch.zeros(5, 6), ValueError, r"\(5, 6\).*\(B, T, C\)"),
        (torch.zeros(2, 0, 6), ValueError, r"\(2, 0, 6\)"),
        (torch.zeros(2, 5, 6, dtype=torch.long), TypeError, "int64"),
    ],
)
def test_other_input_is_refused(x, error, said):
    with pytest.raises(error, match=said):
        softmax_mean(x)
