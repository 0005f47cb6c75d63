"""06: markers for what stands around a head."""

import math
from functools import cache
from types import SimpleNamespace

import torch
from torch import nn

from helpers.checks.marker import Prediction, exercise
from helpers.transformer import FeedForward, MultiHeadAttention

HIDDEN = float("-inf")

predict_loss = Prediction(
    "predict_loss",
    math.log(50) / 2,
    {
        math.log(50): "that is for a model that knows nothing anywhere",
        math.log(50) * 2: "that is the sum of the four surprises; the loss is their mean",
        -math.log(0.51): "take the logarithm of each probability first, and the mean last",
        math.log2(50) / 2: "that is in bits; for nats take the natural logarithm",
        0.51: "that is the mean probability; the loss is a mean of surprises",
        0.0: "only a model that is sure and right everywhere has a loss of 0",
    },
)


def tokens(generator, B, T, C):
    """Draw T + 1 ids for each row and the logits of a model that has read them."""
    logits = torch.randn(B, T + 1, C + 1, generator=generator)
    return logits, torch.randint(C + 1, (B, T + 1), generator=generator)


def picked(logp, targets):
    """Pick the numbers that belong to the targets.  (B, T, V), (B, T) -> (B, T)"""
    return logp.gather(-1, targets[..., None])[..., 0]


def shifted(logits, idx):
    """Pick the log probabilities of the tokens that come next.  -> (B, T - 1)"""
    return picked(logits.log_softmax(dim=-1)[:, :-1], idx[:, 1:])


@exercise(
    draw=tokens,
    not_allowed=["cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"],
    mistakes={
        "position t has to say token t + 1, not token t, which it has read": lambda logits, idx: (
            -picked(logits.log_softmax(dim=-1), idx).mean()
        ),
        "the last position is left out, as it should be, but the targets are not shifted": (
            lambda logits, idx: -picked(logits.log_softmax(dim=-1), idx)[:, :-1].mean()
        ),
        "shifted the other way: that asks for the token before": lambda logits, idx: (
            -picked(logits[:, 1:].log_softmax(dim=-1), idx[:, :-1]).mean()
        ),
        "nothing is known of what follows the last token; leave the last position out": (
            lambda logits, idx: -picked(logits.log_softmax(dim=-1), idx.roll(-1, dims=1)).mean()
        ),
        "that softmax compares positions; it has to compare the tokens of the vocabulary": (
            lambda logits, idx: -picked(logits[:, :-1].log_softmax(dim=1), idx[:, 1:]).mean()
        ),
        "one softmax too many: logits go in, not probabilities": lambda logits, idx: (
            -shifted(logits.softmax(dim=-1), idx).mean()
        ),
        "that is the sum over positions, not the mean": lambda logits, idx: (
            -shifted(logits, idx).sum()
        ),
        "only the token that came counts; the mean is over positions, not over the vocabulary": (
            lambda logits, idx: -shifted(logits, idx).mean() / logits.shape[-1]
        ),
        "the minus is missing; a loss is never below 0": lambda logits, idx: shifted(
            logits, idx
        ).mean(),
        "take the logarithm of each probability first, and the mean last": lambda logits, idx: (
            -shifted(logits, idx).exp().mean().log()
        ),
    },
)
def next_token_loss(logits, idx):
    logp = logits[:, :-1].log_softmax(dim=-1)  # (B, T, V) -> (B, T - 1, V)
    targets = idx[:, 1:, None]  # (B, T) -> (B, T - 1, 1)
    return -logp.gather(-1, targets).mean()  # (B, T - 1, 1) -> ()


def counted(*shape):
    """Count 0, 1, 2, ... through a tensor, so that one sees where each number went."""
    return torch.arange(math.prod(shape), dtype=torch.float).view(shape)


def split(x, n_head):
    """Give heads an axis of their own.  (B, T, C) -> (B, T, n_head, hs)"""
    B, T, C = x.shape
    return x.view(B, T, n_head, C // n_head)


@exercise(
    draw=lambda generator, B, T, C: (counted(B, T, 2 * C), [2, C, C // 2][(B + T) % 3]),
    mistakes={
        "view does not move anything: that mixes positions into heads; split C first": (
            lambda x, n_head: x.view(len(x), n_head, x.shape[1], -1)
        ),
        "the heads come before the positions; swap these two axes": split,
        "the wrong two axes are swapped": lambda x, n_head: split(x, n_head).transpose(2, 3),
        "neighbouring channels belong to one head; here they go to different ones": (
            lambda x, n_head: x.view(*x.shape[:2], -1, n_head).permute(0, 3, 1, 2)
        ),
        "n_head is the number of heads, not their size": lambda x, n_head: split(
            x, x.shape[-1] // n_head
        ).transpose(1, 2),
        "the batch stays the first axis, the heads are the second": lambda x, n_head: split(
            x, n_head
        ).permute(2, 0, 1, 3),
        "batch and heads stay two axes": lambda x, n_head: (
            split(x, n_head).transpose(1, 2).flatten(0, 1)
        ),
    },
)
def split_heads(x, n_head):
    B, T, C = x.shape
    x = x.view(B, T, n_head, C // n_head)  # (B, T, C) -> (B, T, nh, hs)
    return x.transpose(1, 2)  # (B, T, nh, hs) -> (B, nh, T, hs)


def merged(x, *order):
    """Order the axes of x, and make three of them.  -> (B, T, C)"""
    B, n_head, T, hs = x.shape
    return x.permute(order).reshape(B, T, n_head * hs)


@exercise(
    draw=lambda generator, B, T, C: (counted(B, 1 + (B + T) % 4, T, C),),
    mistakes={
        "positions and heads are mixed; bring the positions before the heads, then merge": (
            lambda x: merged(x, 0, 1, 2, 3)
        ),
        "the wrong two axes are swapped": lambda x: merged(x, 0, 1, 3, 2),
        "the channels of one head belong next to each other; here the heads take turns": (
            lambda x: merged(x, 0, 2, 3, 1)
        ),
        "heads stand side by side; they are not added up": lambda x: x.sum(1),
        "heads stand side by side; that is their mean": lambda x: x.mean(1),
        "there are four axes still; the last two become one": lambda x: x.transpose(1, 2),
        "heads go side by side, along the channels; here they follow each other as positions": (
            lambda x: x.flatten(1, 2)
        ),
        "view cannot merge axes that were swapped; reshape can": lambda x: x.transpose(1, 2).view(
            len(x), x.shape[2], -1
        ),
    },
)
def merge_heads(x):
    B, n_head, T, hs = x.shape
    x = x.transpose(1, 2)  # (B, nh, T, hs) -> (B, T, nh, hs)
    return x.reshape(B, T, n_head * hs)  # (B, T, nh, hs) -> (B, T, C)


def normed(x, dim, eps, spread_dim=None):
    """Subtract the mean over an axis, and divide by the spread over it or another."""
    x = x - x.mean(dim, keepdim=True)
    spread = x.square().mean(dim if spread_dim is None else spread_dim, keepdim=True)
    return x / (spread + eps).sqrt()


def deviations(x):
    return x - x.mean(-1, keepdim=True)


def variance(x):
    return deviations(x).square().mean(-1, keepdim=True)


@exercise(
    draw=lambda generator, B, T, C: (
        1 + torch.randn(B, T, C, generator=generator),
        [1e-5, 0.1, 0.01][(T + C) % 3],
    ),
    not_allowed=["layer_norm", "LayerNorm", "native_layer_norm"],
    mistakes={
        "mean and variance are over the positions; take each position by itself": (
            lambda x, eps: normed(x, 1, eps)
        ),
        "mean and variance are over the batch; take each position by itself": (
            lambda x, eps: normed(x, 0, eps)
        ),
        "mean and variance are over positions and channels at once": (
            lambda x, eps: normed(x, (1, 2), eps)
        ),
        "the squares are divided by C - 1, as var and std do unless told correction=0": (
            lambda x, eps: deviations(x) / (x.var(-1, keepdim=True) + eps).sqrt()
        ),
        "eps is not used": lambda x, eps: normed(x, -1, 0),
        "eps is added to the variance, before the root": lambda x, eps: (
            deviations(x) / (variance(x).sqrt() + eps)
        ),
        "the mean is not subtracted from what is divided": lambda x, eps: (
            x / (variance(x) + eps).sqrt()
        ),
        "that divides by the variance; the root is missing": lambda x, eps: (
            deviations(x) / (variance(x) + eps)
        ),
    },
)
def layer_norm_by_hand(x, eps):
    mean = x.mean(dim=-1, keepdim=True)  # (B, T, C) -> (B, T, 1)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)  # (B, T, C) -> (B, T, 1)
    return (x - mean) / (variance + eps).sqrt()  # (B, T, C)


def kept(logits, top_k):
    """Tell which tokens are among the top_k of their row.  (B, V) -> (B, V)"""
    return logits >= logits.topk(top_k).values[:, -1:]


@exercise(
    draw=lambda generator, B, V, temperature, top_k: (
        torch.randn(B, V, generator=generator),
        temperature,
        top_k,
    ),
    sizes=[  # (B, V, temperature, top_k)
        *[(1, 3, 2.0, 2), (1, 4, 0.5, 2), (1, 3, 1.0, 1), (2, 3, 1.0, 2), (2, 4, 0.5, 3)],
        *[(1, 2, 0.7, 2), (3, 5, 1.5, 2), (2, 6, 0.8, 4), (4, 3, 2.0, 3), (3, 8, 0.6, 1)],
        *[(5, 6, 1.2, 5), (2, 12, 3.0, 7), (6, 4, 0.4, 2), (1, 20, 0.9, 10)],
    ],
    not_allowed=["probabilities"],
    mistakes={
        "below 1 the temperature must make likely tokens likelier; it divides": (
            lambda logits, temperature, top_k: (
                (logits * temperature).masked_fill(~kept(logits, top_k), HIDDEN).softmax(dim=-1)
            )
        ),
        "the temperature has no effect; it divides the logits, before the softmax": (
            lambda logits, temperature, top_k: logits.masked_fill(
                ~kept(logits, top_k), HIDDEN
            ).softmax(dim=-1)
        ),
        "one softmax too many: temperature and top_k work on the logits": (
            lambda logits, temperature, top_k: (
                (logits.softmax(dim=-1) / temperature)
                .masked_fill(~kept(logits, top_k), HIDDEN)
                .softmax(dim=-1)
            )
        ),
        "top_k is not used": lambda logits, temperature, top_k: (logits / temperature).softmax(
            dim=-1
        ),
        "those are the least likely tokens": lambda logits, temperature, top_k: (
            (logits / temperature).masked_fill(~kept(-logits, top_k), HIDDEN).softmax(dim=-1)
        ),
        "drop tokens before the softmax, so that those kept share everything": (
            lambda logits, temperature, top_k: (
                (logits / temperature).softmax(dim=-1) * kept(logits, top_k)
            )
        ),
        "a logit of 0 is not a probability of 0; what does the softmax make 0?": (
            lambda logits, temperature, top_k: (
                (logits / temperature).masked_fill(~kept(logits, top_k), 0).softmax(dim=-1)
            )
        ),
        "one token too few is kept": lambda logits, temperature, top_k: (
            (logits / temperature)
            .masked_fill(logits <= logits.topk(top_k).values[:, -1:], HIDDEN)
            .softmax(dim=-1)
        ),
        "each row keeps top_k tokens of its own": lambda logits, temperature, top_k: (
            (logits / temperature)
            .masked_fill(logits < logits.flatten().topk(top_k).values[-1], HIDDEN)
            .softmax(dim=-1)
        ),
    },
)
def draw_probs(logits, temperature, top_k):
    logits = logits / temperature
    least = logits.topk(top_k).values[:, -1:]  # (B, V) -> (B, 1), the smallest logit that stays
    return logits.masked_fill(logits < least, float("-inf")).softmax(dim=-1)  # (B, V)


class Teller(nn.Module):
    """A model whose every token has a say in what comes next.  (B, T) -> (B, T, V)

    It does not refuse more than block_size tokens; it only says something else then.
    """

    def __init__(self, says, block_size):
        super().__init__()
        self.says = says  # (how far back, V, V): what each token votes for
        self.config = SimpleNamespace(block_size=block_size, vocab_size=says.shape[-1])

    def forward(self, idx):
        T = idx.shape[1]
        place = torch.arange(T, device=idx.device)
        back = place[:, None] - place  # (T, T)
        votes = self.says[back.clamp(min=0), idx[:, None]]  # (B, T, T, V)
        return (votes * (back >= 0)[..., None]).sum(dim=2)  # (B, T, T, V) -> (B, T, V)


def some_model(generator, B, T, C):
    """Draw a model, a prompt of T tokens, how many tokens to add, and where to stop."""
    V, count = C + 2, 2 + C
    model = Teller(torch.randn(T + 2 * count, V, V, generator=generator), 1 + (T + B) % 4)
    idx, stop = (
        torch.randint(V, (1, T), generator=generator),
        torch.randint(V, (), generator=generator),
    )
    return model, idx, count, stop.item()


def writing(
    see=lambda idx, new, size: torch.cat([idx, *new], dim=1)[:, -size:],
    choose=lambda logits: logits[:, -1].argmax(-1, keepdim=True),
    stops=lambda new, stop: new == stop,
    give=lambda idx, new, stop, size: torch.cat([idx, *new], dim=1),
):
    """Make a wrong greedy: one that differs in what it sees, chooses, stops at or gives back."""

    def answer(model, idx, count, stop):
        new, size = [], model.config.block_size
        while len(new) < count and not (new and stops(new[-1], stop)):
            new.append(choose(model(see(idx, new, size))))
        return give(idx, new, stop, size)

    return answer


@exercise(
    draw=some_model,
    not_allowed=["generate", "stream"],
    mistakes={
        "the model sees more than its block_size": writing(
            see=lambda idx, new, size: torch.cat([idx, *new], dim=1)
        ),
        "the model sees the first tokens; it needs the latest": writing(
            see=lambda idx, new, size: torch.cat([idx, *new], dim=1)[:, :size]
        ),
        "the model never sees what it has written": writing(
            see=lambda idx, new, size: idx[:, -size:]
        ),
        "the model sees the last token alone": writing(
            see=lambda idx, new, size: torch.cat([idx, *new], dim=1)[:, -1:]
        ),
        "what follows the text is said at the last position, not at the first": writing(
            choose=lambda logits: logits[:, 0].argmax(-1, keepdim=True)
        ),
        "that is the least likely token": writing(
            choose=lambda logits: logits[:, -1].argmin(-1, keepdim=True)
        ),
        "it does not end at stop": writing(stops=lambda new, stop: False),
        "stop itself belongs to the text": writing(
            give=lambda idx, new, stop, size: torch.cat(
                [idx, *(token for token in new if token != stop)], dim=1
            )
        ),
        "a prompt may end with stop; only an appended stop ends the text": (
            lambda model, idx, count, stop: (
                idx if idx[0, -1] == stop else writing()(model, idx, count, stop)
            )
        ),
        "the prompt is missing in what it returns": writing(
            give=lambda idx, new, stop, size: torch.cat(new, dim=1)
        ),
        "crop what the model sees, not the text that is returned": writing(
            give=lambda idx, new, stop, size: torch.cat(
                [torch.cat([idx, *new[:-1]], dim=1)[:, -size:], new[-1]], dim=1
            )
        ),
    },
)
def greedy(model, idx, count, stop):
    for _ in range(count):
        seen = idx[:, -model.config.block_size :]  # (1, at most block_size)
        logits = model(seen)[:, -1]  # (1, T, V) -> (1, V)
        new = logits.argmax(dim=-1, keepdim=True)  # (1, V) -> (1, 1)
        idx = torch.cat([idx, new], dim=1)  # (1, T) and (1, 1) -> (1, T + 1)
        if new == stop:
            break
    return idx


class Halves(nn.Module):
    """The two halves of a block, for wrong answers to put together."""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.attention = MultiHeadAttention(n_embd, n_head, block_size)
        self.feed_forward = FeedForward(n_embd)

    def both(self, x):
        return self.attention(x) + self.feed_forward(x)


def halves(forward):
    """Make a wrong answer from forward(layer, x)."""
    return type("Wrong", (Halves,), {"forward": forward})


def one_after_the_other(layer, x):
    x = x + layer.attention(normed(x, -1, 1e-5))
    return x + layer.feed_forward(normed(x, -1, 1e-5))


@cache
def shapes_of(C, n_head):
    """List the weights of the two halves of a block, {name: shape}."""
    with torch.random.fork_rng(devices=[]):  # a new layer draws weights of its own
        weights = Halves(C, n_head, block_size=1).state_dict()
    return {name: weight.shape for name, weight in weights.items()}


def weights_and_input(generator, B, T, C):
    """Draw weights for a layer, as a function that hands them over, and its input and n_head."""
    n_head, scale = C // 2, 0.02 if B == 3 else 1  # small numbers show the 1e-5
    x = scale * torch.randn(B, T, C, generator=generator)
    weights = {
        name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes_of(C, n_head).items()
    }

    def hand_over(layer):
        keys = layer.load_state_dict(weights, strict=False)
        if keys.unexpected_keys:  # new ones are welcome: a norm may bring its own
            raise ValueError(f"keep the names of the parts; {keys.unexpected_keys[0]} is not there")
        return layer.eval()

    return hand_over, x, n_head


@exercise(
    draw=weights_and_input,
    sizes=[
        *[(1, 2, 4), (1, 3, 2), (2, 3, 4), (2, 1, 4), (3, 2, 6)],
        *[(3, 4, 2), (2, 4, 6), (4, 5, 2), (2, 5, 8)],
    ],
    run=lambda answer, hand_over, x, n_head: hand_over(answer(x.shape[-1], n_head, x.shape[1]))(x),
    mistakes={
        "as it was, and the future still leaks": halves(
            lambda layer, x: x + layer.both(normed(x, 1, 1e-5))
        ),
        "the mean is mended; the variance still sees the future": halves(
            lambda layer, x: x + layer.both(normed(x, -1, 1e-5, spread_dim=1))
        ),
        "the variance is mended; the mean still sees the future": halves(
            lambda layer, x: x + layer.both(normed(x, 1, 1e-5, spread_dim=-1))
        ),
        "the positions are still normed together, now with all their channels": halves(
            lambda layer, x: x + layer.both(normed(x, (1, 2), 1e-5))
        ),
        "nothing leaks from later positions, but between the sequences of the batch": halves(
            lambda layer, x: x + layer.both(normed(x, 0, 1e-5))
        ),
        "nothing leaks, but nothing is normed either": halves(lambda layer, x: x + layer.both(x)),
        "the norm comes before the two halves, not after them": halves(
            lambda layer, x: normed(x + layer.both(x), -1, 1e-5)
        ),
        "the two stand side by side: both read the same normed input": halves(one_after_the_other),
        "the residual is lost; both are added to x": halves(
            lambda layer, x: layer.both(normed(x, -1, 1e-5))
        ),
        "both are added to x as it came in, not to the normed one": halves(
            lambda layer, x: normed(x, -1, 1e-5) + layer.both(normed(x, -1, 1e-5))
        ),
    },
)
class ParallelBlock(nn.Module):
    """Look around and think, side by side.  (B, T, C) -> (B, T, C)"""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.attention = MultiHeadAttention(n_embd, n_head, block_size)
        self.feed_forward = FeedForward(n_embd)

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)  # (B, T, C) -> (B, T, 1)
        variance = (x - mean).square().mean(dim=-1, keepdim=True)  # (B, T, C) -> (B, T, 1)
        normed = (x - mean) / (variance + 1e-5).sqrt()
        return x + self.attention(normed) + self.feed_forward(normed)
