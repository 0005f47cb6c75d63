"""loop_mean: numbers worked out by hand, and input that is refused."""

import pytest
import torch

from helpers.loop_mean import loop_mean


def test_two_channels_by_hand():
    x = torch.tensor([[[2.0, 0.0], [4.0, 3.0], [9.0, 3.0]], [[1.0, 8.0], [3.0, 0.0], [2.0, 1.0]]])
    expected = [[[2.0, 0.0], [3.0, 1.5], [5.0, 2.0]], [[1.0, 8.0], [2.0, 4.0], [2.0, 3.0]]]
    torch.testing.assert_close(loop_mean(x), torch.tensor(expected))


def test_it_equals_the_running_sum_over_the_count():
    torch.manual_seed(1)
    x = torch.randn(2, 5, 6)
    counts = torch.arange(1.0, 6.0)[:, None]
    torch.testing.assert_close(loop_mean(x), x.cumsum(1) / counts, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_kind_of_number_stays(dtype):
    assert loop_mean(torch.ones(2, 5, 3, dtype=dtype)).dtype == dtype


def test_the_input_is_left_alone_and_gets_gradients():
    x = torch.randn(2, 3, 4, requires_grad=True)
    given = x.detach().clone()
    loop_mean(x).sum().backward()
    torch.testing.assert_close(x.detach(), given, atol=0, rtol=0)
    slopes = torch.tensor([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3])
    torch.testing.assert_close(x.grad, slopes[:, None].expand(2, 3, 4))


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (torch.zeros(5, 6), ValueError, r"\(5, 6\).*\(B, T, C\)"),
        (torch.zeros(2, 3, 5, 6), ValueError, r"\(2, 3, 5, 6\).*\(B, T, C\)"),
        (torch.zeros(2, 0, 6), ValueError, r"\(2, 0, 6\)"),
        (torch.zeros(2, 5, 6, dtype=torch.long), TypeError, "int64"),
        ([[[1.0]]], TypeError, "list"),
    ],
)
def test_other_input_is_refused(x, error, said):
    with pytest.raises(error, match=said):
        loop_mean(x)
