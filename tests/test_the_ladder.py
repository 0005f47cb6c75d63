"""Loop, product, softmax and a head with equal scores give the same mean."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.loop_mean import loop_mean
from helpers.qkv_head import Head
from helpers.softmax_mask import softmax_mean
from helpers.tril_matmul import mean_weights, tril_mean

CLOSE = {
    torch.float32: {"atol": 1e-6, "rtol": 1e-5},
    torch.float64: {"atol": 1e-7, "rtol": 1e-7},
}


def head_mean(x):
    """The mean of the past from a head whose scores are all 0 and whose values are its input."""
    C = x.shape[-1]
    head = Head(C, C, x.shape[1]).to(x)
    nn.init.zeros_(head.query.weight)
    nn.init.eye_(head.value.weight)
    return head(x).detach()


@pytest.mark.parametrize("rung", [tril_mean, softmax_mean, head_mean])
@pytest.mark.parametrize("dtype", CLOSE)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6)),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=30)
def test_every_rung_equals_the_loop(rung, dtype, shape, seed):
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(rung(x), loop_mean(x), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("row", [1, 3, 6])
def test_one_wrong_row_would_be_seen(dtype, row):
    x = torch.randn(2, 7, 3, dtype=dtype, generator=torch.Generator().manual_seed(1))
    weights = mean_weights(7).to(dtype)
    weights[row, : row + 1] += torch.linspace(-1e-4, 1e-4, row + 1, dtype=dtype)
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(weights @ x, loop_mean(x), **CLOSE[dtype])
