"""Local attention (Yang et al. 2018): a Gaussian around a predicted centre is added to the scores of each query."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._sight import Sight, seen_keys
from .positions import positions_of

_LEAST_WIDTH = 0.01  # keys; keeps the bias finite where a sigmoid has become 0


class LocalWindows(nn.Module):
    """Each query of each head predicts a centre P_i and a window D_i among the I keys it may see::

        h_i = tanh(W q_i),   P_i = I sigmoid(u_P^T h_i),   D_i = I sigmoid(u_D^T h_i),
        score_ij = q_i k_j^T / sqrt(head features) - (j - P_i)^2 / (2 sigma_i^2),   sigma_i = D_i / 2

    j counts the real keys of a row from 0, and I is how many there are; in causal attention those up to the query's
    own, i + 1, so that nothing tells of the future and a cached step equals the whole pass. A window counts as at least
    0.01 keys wide. q_i is the query as scored, after rotary positions if the model has them.

    Parameters: ``weight`` [heads, head features, head features], ``centre`` and ``width`` [heads, head features].
    """

    def __init__(
        self,
        heads: int,
        head_features: int,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, head_features, head_features, device=device, dtype=dtype))
        self.centre = nn.Parameter(torch.empty(heads, head_features, device=device, dtype=dtype))
        self.width = nn.Parameter(torch.empty(heads, head_features, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Uniform with the variance 2 / (rows + columns), as tensor2tensor starts matrices."""
        n = self.weight.shape[-1]
        for parameter, columns in ((self.weight, n), (self.centre, 1), (self.width, 1)):
            bound = math.sqrt(6 / (n + columns))
            parameter.uniform_(-bound, bound)

    def forward(self, q: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """P and D ``[batch, heads, queries, 1]`` of q ``[batch, heads, queries, head features]``; keys: I of each
        query, ``[batch or 1, 1, queries or 1, 1]``."""
        float_type = torch.promote_types(q.dtype, torch.float32)  # half types could not tell neighbours apart
        hidden = torch.matmul(q, self.weight.transpose(1, 2)).tanh().to(float_type)

        def share(u: Tensor) -> Tensor:
            return (hidden * u.to(float_type).unsqueeze(1)).sum(-1, keepdim=True).sigmoid()

        return keys * share(self.centre), (keys * share(self.width)).clamp_min(_LEAST_WIDTH)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """Attention with these windows; arguments as for ``full_attention``."""
        queries, keys = q.shape[2], k.shape[2]
        at, count = self._places(sight, queries, keys, q)
        centre, width = self.forward(q, count)
        bias = ((at - centre) / width).square() * -2
        seen = seen_keys(sight, queries, keys, q.device)
        if seen is not None:
            bias = bias.masked_fill(~seen.unsqueeze(1), -math.inf)
        bias = bias - bias.detach().amax(-1, keepdim=True)  # the same weights, and half types hold what is left
        return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), sight.dropout)

    @staticmethod
    def _places(sight: Sight, queries: int, keys: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Where the keys stand, ``[batch or 1, 1, 1, keys]``, and I, ``[batch or 1, 1, queries or 1, 1]``."""
        float_type = torch.promote_types(q.dtype, torch.float32)
        if sight.real is None:
            at = torch.arange(keys, device=q.device, dtype=float_type).unsqueeze(0)
            count = torch.full((1, 1), keys, device=q.device, dtype=float_type)
        else:
            at = positions_of(sight.real).to(float_type)
            count = sight.real.sum(1, keepdim=True).to(float_type).clamp_min(1)
        if sight.causal:
            count = at[:, keys - queries :] + 1
        return at[:, None, None, :], count[:, None, :, None]

    def extra_repr(self) -> str:
        return f"heads={self.weight.shape[0]}, head_features={self.weight.shape[1]}"
