"""expect: good input passes, and bad input learns what was given and what is allowed."""

import pytest
import torch
from torch import nn

from helpers import expect

SCORES = torch.zeros(2, 3, 4)
MASK = torch.ones(3, 4, dtype=torch.bool)
Q, K, V = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5), torch.zeros(2, 4, 6)
IDS = torch.tensor([[0, 6]])


@pytest.mark.parametrize(
    "check",
    [
        lambda: expect.sizes(T=1, block_size=32),
        lambda: expect.positive(base=0.5),
        lambda: expect.seeds(seed=-3, other=10**18 - 1),
        lambda: expect.rate(dropout=0.0),
        lambda: expect.rate(dropout=0.999),
        lambda: expect.vectors(torch.zeros(2, 5, 6)),
        lambda: expect.vectors(torch.zeros(2, 1, 6, dtype=torch.bfloat16), C=6),
        lambda: expect.bool_mask(MASK, SCORES),
        lambda: expect.bool_mask(MASK.expand(2, 3, 4), SCORES),
        lambda: expect.bool_mask(MASK[None], SCORES),
        lambda: expect.queries_keys_values(Q, K, V),
        lambda: expect.fits(8, 8),
        lambda: expect.token_ids(IDS, 7),
        lambda: expect.token_ids(IDS.int(), 7),
        lambda: expect.token_ids(IDS.to("meta"), 7),
        lambda: expect.heads_share(6, 3),
        lambda: expect.processes_share(6, 3),
        lambda: expect.device_for_each(torch.device("cpu"), 3),
        lambda: expect.room(IDS, 2, 1, 4),
        lambda: expect.eval_mode(nn.Linear(2, 3).eval()),
        lambda: expect.matrix(torch.zeros(1, 4)),
        lambda: expect.labels(["a", "b"], 2),
    ],
)
def test_good_input_passes(check):
    assert check() is None


@pytest.mark.parametrize(
    ("check", "error", "said"),
    [
        (lambda: expect.sizes(T=0), ValueError, ["T = 0", "at least 1"]),
        (lambda: expect.sizes(n_layer=2, T=-3), ValueError, ["T = -3", "at least 1"]),
        (lambda: expect.sizes(T=2.0), ValueError, ["T = 2.0", "whole number"]),
        (lambda: expect.sizes(T=True), ValueError, ["T = True", "whole number"]),
        (lambda: expect.positive(base=0), ValueError, ["base = 0", "above 0"]),
        (lambda: expect.positive(base=-2.5), ValueError, ["base = -2.5", "above 0"]),
        (lambda: expect.positive(base=float("nan")), ValueError, ["base = nan"]),
        (lambda: expect.positive(base=float("inf")), ValueError, ["base = inf", "finite"]),
        (lambda: expect.seeds(seed=10**18), ValueError, [f"seed = {10**18}", "18 digits"]),
        (lambda: expect.seeds(seed=0.5), ValueError, ["seed = 0.5", "whole number"]),
        (lambda: expect.rate(dropout=1.0), ValueError, ["dropout = 1.0", "from 0 up to"]),
        (lambda: expect.rate(dropout=-0.1), ValueError, ["dropout = -0.1"]),
        (lambda: expect.rate(dropout=float("nan")), ValueError, ["dropout = nan"]),
        (lambda: expect.vectors([[[1.0]]]), TypeError, ["list", "(B, T, C)"]),
        (lambda: expect.vectors(torch.zeros(5, 6)), ValueError, ["(5, 6)", "(B, T, C)", "x[None]"]),
        (lambda: expect.vectors(torch.zeros(2, 0, 6)), ValueError, ["(2, 0, 6)", "(B, T, C)"]),
        (lambda: expect.vectors(torch.zeros(2, 5, 6).int()), TypeError, ["int32", "x.float()"]),
        (lambda: expect.vectors(torch.zeros(2, 5, 6), C=7), ValueError, ["6", "n_embd = 7"]),
        (lambda: expect.bool_mask(MASK.float(), SCORES), TypeError, ["float32", "torch.bool"]),
        (lambda: expect.bool_mask(MASK.byte(), SCORES), TypeError, ["uint8", "torch.bool"]),
        (lambda: expect.bool_mask(MASK.tolist(), SCORES), TypeError, ["list", "torch.bool"]),
        (lambda: expect.bool_mask(MASK.T, SCORES), ValueError, ["(4, 3)", "(2, 3, 4)"]),
        (lambda: expect.bool_mask(MASK[:1], SCORES), ValueError, ["(1, 4)", "(2, 3, 4)"]),
        (lambda: expect.bool_mask(MASK[0], SCORES), ValueError, ["(4,)", "(2, 3, 4)"]),
        (
            lambda: expect.bool_mask(MASK.expand(5, 3, 4), SCORES),
            ValueError,
            ["(5, 3, 4)", "(2, 3, 4)"],
        ),
        (lambda: expect.bool_mask(MASK[None], SCORES[0]), ValueError, ["(1, 3, 4)", "(3, 4)"]),
        (
            lambda: expect.queries_keys_values(Q, K[..., :2], V),
            ValueError,
            ["(2, 3, 5)", "(2, 4, 2)", "(2, 4, 6)", "head_size"],
        ),
        (
            lambda: expect.queries_keys_values(Q, K, V[:, :1]),
            ValueError,
            ["(2, 4, 5)", "(2, 1, 6)", "positions"],
        ),
        (lambda: expect.queries_keys_values(Q[0, 0], K, V), ValueError, ["(5,)"]),
        (
            lambda: expect.fits(40, 32),
            ValueError,
            ["T = 40 is longer than block_size = 32; pass at most the last 32 tokens"],
        ),
        (lambda: expect.token_ids(IDS.float(), 7), TypeError, ["float32", "integer"]),
        (lambda: expect.token_ids(IDS == 0, 7), TypeError, ["bool", "integer"]),
        (lambda: expect.token_ids([[0, 6]], 7), TypeError, ["list", "integer"]),
        (lambda: expect.token_ids(IDS[0], 7), ValueError, ["(2,)", "(B, T)", "idx[None]"]),
        (lambda: expect.token_ids(IDS[:, :0], 7), ValueError, ["(1, 0)", "(B, T)"]),
        (lambda: expect.token_ids(IDS, 6), ValueError, ["token id 6", "0 to 5"]),
        (lambda: expect.token_ids(-IDS, 7), ValueError, ["token id -6", "0 to 6"]),
        (
            lambda: expect.heads_share(32, 5),
            ValueError,
            ["n_embd = 32", "n_head = 5", "2 channels"],
        ),
        (lambda: expect.heads_share(6, 0), ValueError, ["n_head = 0", "at least 1"]),
        (lambda: expect.heads_share(4, 6), ValueError, ["n_embd = 4", "n_head = 6"]),
        (lambda: expect.processes_share(8, 3), ValueError, ["batch of 8", "3 processes"]),
        (lambda: expect.device_for_each(torch.device("mps"), 2), ValueError, ["mps", "cpu"]),
        (lambda: expect.device_for_each(torch.device("cuda"), 99), ValueError, ["99", "GPU"]),
        (
            lambda: expect.room(IDS, 3, 1, 4),
            ValueError,
            ["holds 3 of block_size = 4", "T = 2 more", "last 4 tokens"],
        ),
        (lambda: expect.room(IDS, 0, 5, 4), ValueError, ["1 rows", "cache 5", "batch_size = 1"]),
        (lambda: expect.eval_mode(nn.Linear(2, 3)), ValueError, ["training", "model.eval()"]),
        (lambda: expect.matrix(torch.zeros(2, 3, 4).numpy()), ValueError, ["(2, 3, 4)", "matrix"]),
        (lambda: expect.matrix(torch.zeros(0, 4).numpy()), ValueError, ["(0, 4)", "matrix"]),
        (lambda: expect.labels(["a", "b"], 3), ValueError, ["2 labels", "3 positions"]),
    ],
)
def test_bad_input_learns_what_was_given_and_what_is_allowed(check, error, said):
    with pytest.raises(error) as caught:
        check()
    missing = [words for words in said if words not in str(caught.value)]
    assert not missing, f"{caught.value} does not say {missing}"
