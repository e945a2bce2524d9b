"""The fixed random places that "random_sparse" looks at.

The token itself and 8 drawn from (seed, layer, i, k), for the i-th real token of a row and k < 8, uniformly over the
row's real tokens (causal: over those up to i). A place drawn twice counts once.

``j = floor(n h(h(h(h(seed) + layer) + i) + k) / 2**32)``, n tokens to choose from, h a mixing of 32 bits.
"""

import torch
from torch import Tensor

from ._options import Options

SOURCES = 8
LOW = 0xFFFFFFFF
FACTOR = 0x45D9F3B


def _mix(v: Tensor) -> Tensor:
    """A one-to-one mixing of 32 bits; products stay below 2**63."""
    v = v & LOW
    for _ in range(2):
        v = ((v ^ (v >> 16)) * FACTOR) & LOW
    return v ^ (v >> 16)


def random_sources(options: Options, targets: Tensor, tokens: int, padded: Tensor | None) -> Tensor:
    """Where each target looks: bool ``[B, 1, M, N]`` (``[1, 1, M, N]`` where nothing is padded).

    targets: their places in the row, int64 ``[M]``; padded ``[B, N]``.
    """
    places = torch.arange(tokens, device=targets.device)
    # The real tokens of each row, counted: a row looks the same however it is padded.
    if padded is None:
        order = rank = places.unsqueeze(0)
        count = torch.full((1, 1, 1), tokens, device=targets.device)
    else:
        order = padded.to(torch.uint8).argsort(dim=1, stable=True)
        rank = ((~padded).cumsum(1) - 1).clamp_min(0)
        count = (~padded).sum(1).view(-1, 1, 1)
    rank = rank.index_select(1, targets).unsqueeze(2)
    if options.causal:
        count = rank + 1
    k = torch.arange(SOURCES, device=targets.device)
    layer = _mix(_mix(torch.full((), options.seed, device=targets.device)) + options.layer)
    chosen = ((_mix(_mix(layer + rank) + k) * count) >> 32).flatten(1)
    sources = order.gather(1, chosen).view(-1, targets.shape[0], SOURCES)
    none = torch.zeros(sources.shape[0], targets.shape[0], tokens, dtype=torch.bool, device=targets.device)
    return (none.scatter(2, sources, True) | (targets.unsqueeze(1) == places)).unsqueeze(1)
