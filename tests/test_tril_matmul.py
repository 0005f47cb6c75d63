"""tril_matmul: the weights of the mean, and the product that uses them."""

import pytest
import torch

from helpers.tril_matmul import mean_weights, tril_mean


def test_four_rows_by_hand():
    expected = [[12, 0, 0, 0], [6, 6, 0, 0], [4, 4, 4, 0], [3, 3, 3, 3]]
    torch.testing.assert_close(mean_weights(4), torch.tensor(expected) / 12)


@pytest.mark.parametrize("T", [1, 2, 7, 32])
def test_each_row_shares_1_among_itself_and_its_past(T):
    weights = mean_weights(T)
    assert weights.shape == (T, T)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(T))
    torch.testing.assert_close(weights.triu(1), torch.zeros(T, T), atol=0, rtol=0)
    torch.testing.assert_close(weights[:, 0], 1 / torch.arange(1, T + 1))
    torch.testing.assert_close(weights[-1], torch.full((T,), 1 / T))


def test_the_product_sums_down_the_positions_of_each_example():
    x = torch.tensor([[[2.0, 0.0], [4.0, 3.0], [9.0, 3.0]], [[1.0, 8.0], [3.0, 0.0], [2.0, 1.0]]])
    expected = [[[2.0, 0.0], [3.0, 1.5], [5.0, 2.0]], [[1.0, 8.0], [2.0, 4.0], [2.0, 3.0]]]
    torch.testing.assert_close(tril_mean(x), torch.tensor(expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_kind_of_number_stays(dtype):
    assert tril_mean(torch.ones(2, 5, 3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("T", [0, -1, 2.0, True, "3"])
def test_a_size_that_is_none_is_refused_by_name(T):
    with pytest.raises(ValueError, match=f"T = {T!r}.*at least 1"):
        mean_weights(T)


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
        tril_mean(x)
