"""Look: who looks at whom, measured from outside on any layer."""

from contextlib import contextmanager

import torch
from torch import nn

from helpers import expect


def weights_of(layer, T):
    """Read the weights of a layer that only averages, by feeding it the identity matrix.

    Position s of the identity holds a 1 in channel s and 0 elsewhere, so what arrives in channel s
    of output t is the weight that t gives to s.

    Shape:
        layer   (1, T, T) -> (1, T, T), a function or a module
        return  (T, T)     row = output position, column = input position
    """
    expect.sizes(T=T)
    with calm(layer), torch.no_grad():
        return layer(torch.eye(T)[None])[0]


def influence(layer, x):
    """Measure how strongly each input position moves each output position, from gradients.

    Entry (t, s) is the Frobenius norm of the derivative of output t by input s, over all channels
    and examples.

    Shape:
        x       (B, T, C), or (B, T) ids
        return  (T, T)  row = output position, column = input position

    A model of ids needs an `.embed`, and is probed behind it.
    Raises ValueError or TypeError for an x of another shape or kind.
    """
    layer, x = at_vectors(layer, x)
    with calm(layer):
        slopes = torch.autograd.functional.jacobian(layer, x)  # (B, T, C_out, B, T, C)
    return slopes.square().sum(dim=(0, 2, 3, 5)).sqrt()  # -> (T, T)


def leaks(layer, x):
    """Change the future, and return the largest change that this makes in the past.

    For every t from 1 on, the inputs from t on are changed and the outputs before t compared.

    Shape:
        x       (B, T, C), or (B, T) ids
        return  a float, 0.0 where nothing leaks

    A model of ids needs an `.embed`, and is probed behind it.
    Raises ValueError or TypeError for an x of another shape or kind.
    """
    layer, x = at_vectors(layer, x)
    T = x.shape[1]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    changes = [torch.tensor(0.0)]
    with calm(layer), torch.no_grad():
        before = layer(x)
        for t in range(1, T):
            changed = torch.cat([x[:, :t], (x + noise)[:, t:]], dim=1)  # (B, t + T - t, C)
            changes.append((layer(changed)[:, :t] - before[:, :t]).abs().max().cpu())
    return torch.stack(changes).max().item()


def attention_maps(model, idx):
    """Collect the weights of every head of a model that reads one sequence.

    Shape:
        idx     (1, T)  integer ids, T at most block_size
        return  (n_layer, n_head, T, T)  row = query, column = key; each row sums to 1

    Raises ValueError for more than one sequence, or as the model does.
    """
    if torch.is_tensor(idx) and len(idx) != 1:
        raise ValueError(
            f"idx has shape {tuple(idx.shape)}; pass one sequence, (1, T), such as idx[:1]"
        )
    maps = []
    with calm(model), torch.no_grad():
        x = model.embed(idx)  # (1, T) -> (1, T, C)
        for block in model.blocks:
            maps.append(weights_in(block.attention, block.ln1(x))[0])
            x = block(x)
    return torch.stack(maps)


def weights_in(attention, x):
    """Return the weights of every head of a layer, in eval mode.  (B, T, C) -> (B, nh, T, T)"""
    if hasattr(attention, "weights_of"):
        return attention.weights_of(x)
    attention(x)
    return torch.stack([head.weights for head in attention.heads], dim=1)


@contextmanager
def calm(layer):
    """Put a module into eval mode, and give it back as it was."""
    modules = list(layer.modules()) if isinstance(layer, nn.Module) else []
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def at_vectors(layer, x):
    """Return layer and input as they are, or for token ids what follows the embeddings."""
    if not torch.is_tensor(x) or x.is_floating_point():
        expect.vectors(x)
        return layer, x
    if not hasattr(layer, "embed"):
        raise TypeError(f"x holds {x.dtype}, but the layer has no .embed to probe at; pass vectors")
    with calm(layer), torch.no_grad():
        return AfterEmbedding(layer), layer.embed(x)


class AfterEmbedding(nn.Module):
    """A model of token ids, entered behind its embeddings.  (B, T, C) -> (B, T, V)"""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, vectors):
        ids = torch.zeros(
            vectors.shape[:2], dtype=torch.long, device=vectors.device
        )  # any ids: they are replaced
        hook = self.model.embed.register_forward_hook(lambda layer, given, made: vectors)
        try:
            return self.model(ids)
        finally:
            hook.remove()
