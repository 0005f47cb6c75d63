"""What 07 takes off the cost of 06, measured against it and against PyTorch's own layers."""

import copy
import statistics
import timeit

import torch
from torch import nn

from helpers import cost
from helpers.fast_heads import FastMultiHeadAttention
from helpers.pace import Pace, choose
from helpers.sample import generate, stream
from helpers.train import cross_entropy
from helpers.transformer import Transformer, TransformerConfig

V, BATCH = 65, 12  # letters and windows, as nanoGPT has for Tiny Shakespeare
SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}
LARGE = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256}


class FromTorch(nn.Module):
    """The model of 07 from PyTorch's layers, with the same weights.  (B, T) -> (B, T, V)"""

    def __init__(self, model):
        super().__init__()
        self.config = config = model.config
        C = config.n_embd
        self.tokemb = nn.Embedding(config.vocab_size, C)
        self.posemb = nn.Embedding(config.block_size, C)
        layer = nn.TransformerEncoderLayer(
            C, config.n_head, 4 * C, config.dropout, "gelu", batch_first=True, norm_first=True
        )
        layer.self_attn.in_proj_bias = None  # the course's queries, keys and values have none
        self.encoder = nn.TransformerEncoder(
            layer, config.n_layer, nn.LayerNorm(C), enable_nested_tensor=False
        )
        self.lm_head = nn.Linear(C, config.vocab_size, bias=False)
        with torch.no_grad():
            for ours, theirs in self.pairs(model):
                theirs.copy_(ours)

    def forward(self, idx):
        T = idx.shape[1]
        x = self.tokemb(idx) + self.posemb(torch.arange(T, device=idx.device))  # (B, T, C)
        mask = nn.Transformer.generate_square_subsequent_mask(T, device=idx.device)  # (T, T)
        return self.lm_head(self.encoder(x, mask=mask, is_causal=True))  # (B, T, V)

    def pairs(self, model):
        """List the weights of 07's model, each with the one that does the same here."""
        parts = [
            (model.embed.tokemb, self.tokemb),
            (model.embed.posemb, self.posemb),
            (model.ln_f, self.encoder.norm),
            (model.lm_head, self.lm_head),
        ]
        found = []
        for block, layer in zip(model.blocks, self.encoder.layers, strict=True):
            found.append((block.attention.qkv.weight, layer.self_attn.in_proj_weight))
            parts += [
                (block.ln1, layer.norm1),
                (block.attention.proj, layer.self_attn.out_proj),
                (block.ln2, layer.norm2),
                (block.feed_forward.net[0], layer.linear1),
                (block.feed_forward.net[2], layer.linear2),
            ]
        for ours, theirs in parts:
            found += zip(ours.parameters(), theirs.parameters(), strict=True)
        return found


def three_models(**sizes):
    """Make 06's model, 07's and the one from PyTorch's layers, with the same weights."""
    config = TransformerConfig(vocab_size=V, **sizes)
    torch.manual_seed(0)
    slow, fast = Transformer(config), Transformer(config, FastMultiHeadAttention)
    fast.load_state_dict(slow.state_dict())
    return {"06": slow, "07": fast, "torch.nn": FromTorch(fast)}


def three_writers(**sizes):
    """Make the same three in eval mode, as for writing."""
    return {name: model.eval() for name, model in three_models(**sizes).items()}


def a_batch(block_size):
    """Draw inputs and targets.  -> 2 times (B, T)"""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(V, (2, BATCH, block_size), generator=generator).unbind()


def require_same(models):
    """Require that the three give the same logits, loss and gradients, else AssertionError."""
    x, y = a_batch(models["06"].config.block_size)
    found = {}
    for name, model in models.items():
        logits = model(x)
        loss = cross_entropy(logits, y)
        loss.backward()
        found[name] = {"logits": logits.detach(), "loss": loss.detach()}
    pairs = models["torch.nn"].pairs(models["07"])
    for number, (ours, theirs) in enumerate(pairs):
        found["07"][number], found["torch.nn"][number] = ours.grad, theirs.grad
    slopes = {name: slopes_of(models[name]) for name in ("06", "07")}
    close = {"atol": 1e-6, "rtol": 1e-3}  # most gradients are far below 1e-3
    torch.testing.assert_close(found["07"], found["torch.nn"], **close)
    torch.testing.assert_close(found["07"]["logits"], found["06"]["logits"], **close)
    torch.testing.assert_close(slopes["07"], slopes["06"], **close)
    for model in models.values():
        model.zero_grad()


def slopes_of(model):
    """Name the gradients of a model, each head's by itself as in its state dict."""
    slopes = copy.deepcopy(model)
    for slope, weight in zip(slopes.parameters(), model.parameters(), strict=True):
        slope.data = weight.grad
    return slopes.state_dict()


def passes(model, pace=Pace()):
    """Return the passes forward and backward on one batch, as a function."""
    x, y = a_batch(model.config.block_size)
    logits_of = pace.of(model)
    return lambda: cross_entropy(logits_of(x), y).backward()


def training_step(model, pace=Pace()):
    """Return one step as a function: passes and fused AdamW, without the clipping of train."""
    forward_and_backward = passes(model, pace)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step():
        optimizer.zero_grad()
        forward_and_backward()
        optimizer.step()

    return step


def seconds_of(work, *arguments, **named):
    """Measure how long a piece of work takes, once."""
    return timeit.timeit(lambda: work(*arguments, **named), number=1)


def interleaved(works, rounds):
    """Time each work once a round, A B, then B A, and so on; returns {name: seconds by round}."""
    for work in works.values():
        work()  # the first run of each is slower, and not timed
    times = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(seconds_of(works[name]))
    return times


def repeated(works, repeat):
    """Let each work be done several times over."""
    return {name: lambda work=work: [work() for _ in range(repeat)] for name, work in works.items()}


def ratios(times, others):
    """Divide what was measured in each round by what was measured beside it."""
    return [one / other for one, other in zip(times, others, strict=True)]


def label(sizes):
    """Write sizes as the table's head names them."""
    return f"({', '.join(map(str, sizes.values()))})"


def print_row(what, figures, aim=""):
    """Print a line of the table: the median of figures, and their quartiles where they spread."""
    middle = statistics.median(figures)
    spread = ""
    if len(figures) > 1:
        low, _, high = statistics.quantiles(figures, n=4, method="inclusive")
        spread = f"{low:.2f} to {high:.2f}"
    print(f"{what:<67} {middle:7.2f}  {spread:<16} {aim}".rstrip(), flush=True)


def bench_speed(steps):
    """The whole table; `steps` rounds of each part, where given."""
    print(
        f"speed: ratios of two measured side by side, on {torch.get_num_threads()} threads, fp32; "
        "median, quartiles\nover interleaved rounds, and what is aimed at; sizes are n_layer, "
        "n_head, n_embd, block_size, batch"
    )
    bench_step(SMALL, rounds=steps or 15, repeat=10 if steps is None else 1, aims=(0.85, 0.45))
    bench_step(LARGE, rounds=steps or 7, repeat=1, aims=(0.9, 0.65))
    bench_paces(SMALL, rounds=steps or 15, repeat=10 if steps is None else 1)
    bench_paces(LARGE, rounds=steps or 7, repeat=1)
    bench_writing(rounds=steps or 3, tokens=32 if steps is None else 2)
    bench_cache(rounds=steps or 3, tokens=256 if steps is None else 2)
    bench_memory(longest=8192 if steps is None else 512)


def bench_step(sizes, rounds, repeat, aims):
    """A training step: time, share of the speed of matrix products, memory."""
    models = three_models(**sizes)
    require_same(models)
    size = label({**sizes, "batch": BATCH})
    peaks = {name: cost.peak_bytes(passes(model)) for name, model in models.items()}
    count = cost.operations(passes(models["07"]))
    steps = {name: training_step(model) for name, model in models.items()}
    works = repeated(steps, repeat)
    a, b = torch.randn(2, 2048, 2048).unbind()
    works["product"] = lambda: a @ b
    times = interleaved(works, rounds)
    products = [2 * 2048**3 / seconds for seconds in times["product"]]  # operations a second
    print_row(
        f"step {size}, time: 07 / torch.nn", ratios(times["07"], times["torch.nn"]), f"<= {aims[0]}"
    )
    print_row(f"step {size}, time: 07 / 06", ratios(times["07"], times["06"]))
    print_row(f"step {size}, time: 06 / torch.nn", ratios(times["06"], times["torch.nn"]))
    for name, aim in (("07", f">= {aims[1]}"), ("torch.nn", "")):
        speeds = [count * repeat / seconds for seconds in times[name]]
        what = f"step {size}, {count / 1e9:.2f}e9 operations: {name} / product"
        print_row(what, ratios(speeds, products), aim)
    for other in ("06", "torch.nn"):
        print_row(f"step {size}, peak memory: 07 / {other}", [peaks["07"] / peaks[other]])


def bench_paces(sizes, rounds, repeat):
    """A training step of 07 in 16 bits, and compiled where that works here."""
    model = three_models(**sizes)["07"]
    size = label({**sizes, "batch": BATCH})
    paces = {"07": Pace(), "in bf16": Pace(bf16=True)}
    paces["compiled"], said = choose(model, BATCH, compiled="on", bf16="off")
    if not paces["compiled"].compiled:
        print(f"step {size}: {said}", flush=True)
        del paces["compiled"]
    steps = {name: training_step(copy.deepcopy(model), pace) for name, pace in paces.items()}
    times = interleaved(repeated(steps, repeat), rounds)
    for name in list(paces)[1:]:
        print_row(f"step {size}, time: {name} / 07", ratios(times[name], times["07"]))


def bench_writing(rounds, tokens):
    """Writing on from short and long texts, which fit into block_size to the end."""
    for T in (64, 256, 1024):
        sizes = {**LARGE, "block_size": T + tokens}
        models = three_writers(**sizes)
        idx = torch.zeros(1, T, dtype=torch.long)
        works = {
            name: lambda model=model, idx=idx: generate(model, idx, tokens)
            for name, model in models.items()
        }
        times = interleaved(works, rounds)
        for other in ("06", "torch.nn"):
            what = f"{tokens} tokens after {T}, {label(sizes)}, time: {other} / 07"
            print_row(what, ratios(times[other], times["07"]))


def bench_cache(rounds, tokens):
    """A long text at once, and what one token costs late and early in it."""
    sizes = {**LARGE, "block_size": 512}
    models = three_writers(**sizes)
    for T, aim in ((1, ""), (64, ">= 10"), (256, ">= 10")):
        idx = torch.zeros(1, T, dtype=torch.long)
        works = {
            name: lambda model=models[name], idx=idx: generate(model, idx, tokens)
            for name in ("06", "07")
        }
        times = interleaved(works, rounds)
        what = f"{tokens} tokens after {T}, {label(sizes)}, time: 06 / 07"
        print_row(what, ratios(times["06"], times["07"]), aim)
    for name, aim in (("07", "<= 1.5"), ("06", "")):
        times = per_token(models[name], (448, 64), rounds, min(tokens, 32))
        what = f"one token at 448 / at 64, {label(sizes)}, time: {name}"
        print_row(what, ratios(times[448], times[64]), aim)


def per_token(model, contexts, rounds, tokens):
    """Time tokens after each context, without reading it; returns {context: seconds by round}."""
    times = {T: [] for T in contexts}
    for number in range(rounds + 1):
        for T in contexts[:: 1 if number % 2 == 0 else -1]:
            idx = torch.zeros(1, T, dtype=torch.long)
            written = stream(model, idx, tokens + 1)
            next(written)  # reads the context
            times[T].append(seconds_of(list, written))
    return {T: seconds[1:] for T, seconds in times.items()}  # the first round is slower


def bench_memory(longest):
    """Memory of the fused call, forward and backward, for twice as many positions each time."""
    layer = FastMultiHeadAttention(64, 4, longest)
    lengths = [longest // 2**n for n in range(5)]
    peaks = {}
    for T in lengths:
        x = torch.randn(1, T, 64)
        peaks[T] = cost.peak_bytes(lambda x=x: layer(x).sum().backward())
    growth = [peaks[T] / peaks[T // 2] for T in lengths[:-1]]
    print_row(
        f"memory of fused heads, T / half of T, {2 * lengths[-1]} to {longest}", growth, "2: linear"
    )
