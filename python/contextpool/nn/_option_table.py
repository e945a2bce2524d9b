"""The options of ContextPool1d and ContextPool2d.

Written by scripts/option_tables.py from src/nn/context_pool_options.toml; do not edit."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Predictor = Literal["conv", "mlp", "attention"]
Weights = Literal["softmax", "unnormalized", "uniform", "nonlocal"]
Locality = Literal["gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"]
SizeNorm = Literal["sigmoid", "softmax", "channels"]

WORDS: dict[str, tuple[str, ...]] = {
    "predictor": get_args(Predictor),
    "weights": get_args(Weights),
    "locality": get_args(Locality),
    "size_norm": get_args(SizeNorm),
}


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """What both modules have."""

    features: int
    predictor: Predictor
    weights: Weights
    locality: Locality
    size_norm: SizeNorm
    ratio: float
    reference_length: int
    usual_length: int
    initial_sigma: float
    size_range: float
    size_floor: float
    hidden: int
    kernel: int
    groups: int
    causal: bool
    window: float
    seed: int
    layer: int


@dataclass(kw_only=True)
class PoolOptions:
    """Those that a model passes on; it sets the others itself."""

    pool_predictor: Predictor = "conv"
    pool_weights: Weights = "softmax"
    pool_locality: Locality = "gaussian"
    pool_size_norm: SizeNorm = "sigmoid"
    pool_ratio: float = 0.1
    pool_reference_length: int = 0
    pool_initial_sigma: float = 4.0
    pool_size_range: float = 2.0
    pool_size_floor: float = 0.25
    pool_hidden: int = 64
    pool_kernel: int = 3
    pool_groups: int = 1
    pool_window: float = 4.0
    pool_seed: int = 0

    def pool(self) -> dict[str, Any]:
        """The options of ContextPool, by the names it knows."""
        return {field.name[len("pool_") :]: getattr(self, field.name) for field in fields(PoolOptions)}
