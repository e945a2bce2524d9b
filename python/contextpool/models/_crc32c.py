"""CRC-32C (Castagnoli) of large files with torch's own operations: a second or less for 100 MB.

A checksum is linear in the bits, so a block is cut into lanes that are computed side by side, four bytes at a time, and
then joined: ``crc(a b) = crc(a 0...0) ^ crc(b)``, with as many zero bytes as b has. ``_advance`` appends zero bytes to a
checksum: a product with a 32 x 32 matrix of bits, here its columns.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41, bits reversed
_ALL = 0xFFFFFFFF
_WORD = 4  # bytes
_LANES = 1 << 13  # as many as torch works on without waking other threads
_BLOCK = 1 << 26  # bytes taken at a time


def crc32c(data: Tensor) -> int:
    """Of uint8 ``data [n]`` on the CPU."""
    state = torch.tensor(_ALL)
    for start in range(0, data.numel(), _BLOCK):
        block = data[start : start + _BLOCK]
        state = _advance(state, block.numel()) ^ _remainder(block)
    return int(state) ^ _ALL


def crc32c_of_file(path: str | os.PathLike[str]) -> int:
    """Of a file's bytes, read through a mapping."""
    size = Path(path).stat().st_size
    empty = torch.empty(0, dtype=torch.uint8)  # an empty file cannot be mapped
    return crc32c(torch.from_file(str(path), size=size, dtype=torch.uint8) if size else empty)


def _remainder(block: Tensor) -> Tensor:
    """Of the bytes alone, from a state of 0: in lanes, filled up in front with zeros, which change nothing."""
    each = -(-block.numel() // (_LANES * _WORD))  # words of a lane
    filled = torch.zeros(_LANES * each * _WORD, dtype=torch.uint8)
    filled[filled.numel() - block.numel() :] = block
    tables, state = _word_tables(), torch.zeros(_LANES, dtype=torch.int32)
    which = torch.arange(0, 256 * _WORD, 256, dtype=torch.int32).repeat(_LANES)
    for column in filled.view(torch.int32).view(_LANES, each).t().contiguous():
        places = (state ^ column).view(torch.uint8).to(torch.int32).add_(which)
        parts = tables.index_select(0, places).view(_LANES, _WORD)
        state = parts[:, 0] ^ parts[:, 1] ^ parts[:, 2] ^ parts[:, 3]
    states, length = state.to(torch.int64) & _ALL, each * _WORD
    while states.numel() > 1:
        pairs = states.view(-1, 2)
        states = _advance(pairs[:, 0], length) ^ pairs[:, 1]
        length *= 2
    return states[0]


def _advance(state: Tensor, zeros: int) -> Tensor:
    """A state after that many zero bytes."""
    power = _one_zero_byte()
    while zeros:
        if zeros & 1:
            state = _multiply(power, state)
        power, zeros = _multiply(power, power), zeros >> 1
    return state


def _multiply(columns: Tensor, states: Tensor) -> Tensor:
    result = torch.zeros_like(states)
    for bit in range(32):
        result = result ^ (columns[bit] * ((states >> bit) & 1))
    return result


@lru_cache(maxsize=1)
def _table() -> Tensor:
    crc = torch.arange(256)
    for _ in range(8):
        crc = (crc >> 1) ^ ((crc & 1) * _POLYNOMIAL)
    return crc


@lru_cache(maxsize=1)
def _word_tables() -> Tensor:
    """Of each byte of a word, the remainder of the byte and the zeros after it: [4 * 256], signed as int32 is."""
    tables = [_table()]
    for _ in range(_WORD - 1):
        tables.append(_table()[tables[-1] & 255] ^ (tables[-1] >> 8))
    return torch.cat(tables[::-1]).to(torch.int32)


@lru_cache(maxsize=1)
def _one_zero_byte() -> Tensor:
    bits = 1 << torch.arange(32)
    return _table()[bits & 255] ^ (bits >> 8)
