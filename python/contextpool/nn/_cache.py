"""What causal modules remember of the tokens seen so far, for ``step``."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_ROOM = 64  # tokens a store has room for at first
_REAL = "real"  # the store of the mask; it exists once a mask was given


class TokenCache:
    """Tensors ``[batch, tokens, ...]`` by name, all of the same tokens.

    Without gradients, room is doubled when it is full, so that appending a token costs the same on average however many
    there are. Where gradients are recorded, every step makes new tensors, since the old ones are part of the graph.
    """

    def __init__(self) -> None:
        self.length = 0  #: tokens seen so far
        self._stores: dict[str, Tensor] = {}  # each [batch, room, ...]
        self._in_graph: set[str] = set()  # stores that autograd may have saved: not to be written to

    @property
    def rows(self) -> int | None:
        """The batch's size; None before the first step."""
        return next((store.shape[0] for store in self._stores.values()), None)

    def append(self, name: str, fresh: Tensor) -> Tensor:
        """Puts ``fresh [B, T, ...]`` behind the first ``length`` tokens of a store; returns all ``length + T``."""
        needed = self.length + fresh.shape[1]
        store = self._stores.get(name)
        if torch.is_grad_enabled():
            store = fresh.clone() if store is None else torch.cat((store[:, : self.length], fresh), 1)
            self._stores[name] = store
            self._in_graph.add(name)
            return store
        if store is None or store.shape[1] < needed or not self._writable(name, store):
            room = max(_FIRST_ROOM, needed) if store is None else 2 * needed
            larger = fresh.new_empty(fresh.shape[0], room, *fresh.shape[2:])
            if store is not None:
                larger[:, : self.length] = store[:, : self.length]
            self._stores[name] = store = larger
            self._in_graph.discard(name)
        store[:, self.length : needed] = fresh
        return store[:, :needed]

    def read(self, name: str) -> Tensor:
        """The first ``length`` tokens of a store."""
        return self._stores[name][:, : self.length]

    def _writable(self, name: str, store: Tensor) -> bool:
        return name not in self._in_graph and (torch.is_inference_mode_enabled() or not store.is_inference())

    def append_mask(self, mask: Tensor | None, fresh: Tensor) -> Tensor | None:
        """The mask of real tokens among all, ``[B, length + T]``, given that of the new ones ``fresh [B, T, ...]``;
        None where no token was ever masked."""
        if mask is None and _REAL not in self._stores:
            return None
        if _REAL not in self._stores and self.length > 0:
            self._stores[_REAL] = torch.ones(fresh.shape[0], self.length, dtype=torch.bool, device=fresh.device)
        if mask is None:
            mask = torch.ones(fresh.shape[:2], dtype=torch.bool, device=fresh.device)
        return self.append(_REAL, mask)

    def check_rows(self, who: str, fresh: Tensor) -> None:
        """A step must be of as many rows as those before it."""
        if self.rows not in (None, fresh.shape[0]):
            raise ValueError(
                f"{who}: the cache has {self.rows} rows, but the new tokens have {fresh.shape[0]}; select or repeat "
                "the cache's rows, or begin a new one"
            )

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens, for speculative decoding."""
        if not 0 <= length <= self.length:
            raise ValueError(
                f"{type(self).__name__}: crop keeps the first tokens, from 0 to all {self.length}, but was asked for "
                f"{length}"
            )
        self.length = length

    def select(self, rows: Tensor) -> None:
        """Row b becomes what row ``rows[b]`` was (int64 ``[B']``), or the rows that are true stay (bool ``[B]``)."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero().squeeze(1)
        self._stores = {name: store.index_select(0, rows) for name, store in self._stores.items()}

    def reorder(self, rows: Tensor) -> None:
        """:meth:`select` under the name that beam search knows."""
        self.select(rows)

    def repeat(self, times: int) -> None:
        """Each row becomes ``times`` equal ones that lie together, as ``torch.repeat_interleave`` orders them."""
        if times < 1:
            raise ValueError(f"{type(self).__name__}: repeat needs 1 or more times, but was asked for {times}")
        self._stores = {name: store.repeat_interleave(times, 0) for name, store in self._stores.items()}
