"""Operations, seconds and bytes are those that a computation really takes."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import cost
from helpers.transformer import MultiHeadAttention


def twice(x):
    return (x + 1) + 1


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_matrix_product_has_two_operations_for_each_number_that_meets_another():
    a, b = torch.rand(2, 3), torch.rand(3, 5)
    assert cost.operations(torch.matmul, a, b) == 2 * 2 * 3 * 5
    assert cost.operations(twice, a) == 0


def test_attention_takes_what_its_products_take_by_hand():
    B, T, C, n_head = 2, 7, 12, 3
    layer = MultiHeadAttention(C, n_head, block_size=9).eval()
    counted = cost.operations(layer, torch.rand(B, T, C))
    assert counted == B * (2 * T * C * 3 * C + 2 * T * T * C + 2 * T * T * C + 2 * T * C * C)


def test_fused_attention_is_counted_as_if_it_were_written_out():
    q, k, v = torch.rand(3, 2, 4, 11, 5).unbind()
    assert cost.operations(fused, q, k, v) == 2 * (2 * 2 * 4 * 11 * 11 * 5)


def test_a_backward_pass_takes_twice_the_products_of_the_forward():
    layer, x = nn.Linear(6, 10, bias=False), torch.rand(3, 6, requires_grad=True)
    forward = cost.operations(layer, x)
    assert cost.operations(lambda: layer(x).sum().backward()) == 3 * forward


def test_seconds_runs_once_to_warm_up_and_gives_the_shortest_of_the_rest():
    waits = iter([0.0, 0.05, 0.02, 0.08])

    def work(result):
        time.sleep(next(waits))
        return result

    assert 0.02 <= cost.seconds(work, "any", repeat=3) < 0.05
    assert list(waits) == []


@pytest.mark.parametrize("repeat", [0, -1])
def test_seconds_needs_a_run(repeat):
    with pytest.raises(ValueError, match=f"repeat = {repeat}"):
        cost.seconds(twice, torch.rand(2), repeat=repeat)


def test_what_is_freed_is_not_held():
    x = torch.rand(1000)
    assert cost.peak_bytes(twice, x) == 2 * x.nbytes  # x + 1 until it is used, and the result

    def many(x):
        for _ in range(10):
            x = x + 1

    assert cost.peak_bytes(many, x) == 2 * x.nbytes


def test_what_goes_in_and_views_of_it_are_not_counted():
    x = torch.rand(10, 20)
    assert cost.peak_bytes(lambda x: x[2:5].T.reshape(60)[:4], x) == 3 * 20 * 4
    assert cost.peak_bytes(lambda x: x.view(200)[5:], x) == 0
    assert cost.peak_bytes(lambda x: torch.add(x, 1, out=x), x) == 0
    assert cost.peak_bytes(lambda: None) == 0


def test_what_a_backward_pass_needs_is_held_until_then():
    x = torch.rand(1000, requires_grad=True)

    def three_roots(x):
        return x.sqrt().sqrt().sqrt()  # each keeps its result

    assert cost.peak_bytes(three_roots, x) == 3 * x.nbytes
    with torch.no_grad():
        assert cost.peak_bytes(three_roots, x) == 2 * x.nbytes


@pytest.mark.parametrize("T", [64, 128, 256])
def test_written_out_attention_holds_a_square_and_fused_attention_holds_lines(T):
    q, k, v = torch.rand(3, 1, 2, T, 8).unbind()
    square, line = 2 * T * T * 4, 2 * T * 8 * 4

    def written_out(q, k, v):
        return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v

    assert cost.peak_bytes(written_out, q, k, v) == max(2 * square, square + line)
    assert cost.peak_bytes(fused, q, k, v) <= 2 * line
