"""Every combination of ContextPool's options, and the formulas they stand for, written out in float64."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from contextpool.nn import ContextPool1d, ContextPool2d

WORDS = {
    "predictor": ("conv", "mlp", "attention"),
    "weights": ("softmax", "unnormalized", "uniform", "nonlocal"),
    "locality": ("gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"),
    "size_norm": ("sigmoid", "softmax", "channels"),
    "groups": (1, 2),
    "size_range": (0.5, 0.0),
}
SMALL = {"ratio": 0.4, "initial_sigma": 2.0, "size_floor": 0.2, "hidden": 5, "window": 2.5, "seed": 7, "layer": 3}


def combinations(dims: int, causal: bool = False) -> Iterator[dict]:
    """The options that can be built, with sizes large enough to matter in short rows."""
    for values in itertools.product(*WORDS.values()):
        options = dict(zip(WORDS, values)) | SMALL
        sized = options["locality"] in ("gaussian", "adaptive_window") and options["size_norm"] == "sigmoid"
        if options["size_range"] == 0 and not sized:
            continue  # the same module
        if causal:
            options |= {"causal": True, "reference_length": 20}
        try:
            (ContextPool1d if dims == 1 else ContextPool2d)(4, **options)
        except ValueError:
            continue
        yield options


def scattered(module: torch.nn.Module, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """Parameters away from their start, so that every one of them has a say."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0, 0.4)
    return module.to(dtype)


def _hash(v: int) -> int:
    for _ in range(2):
        v = ((v ^ (v >> 16)) * 0x45D9F3B) % 2**32
    return v ^ (v >> 16)


def _drawn(o: dict, tokens: int, causal: bool) -> Tensor:
    layer = _hash((_hash(o["seed"]) + o["layer"]) % 2**32)
    sources = []  # on the host: a GPU would launch a kernel for each
    for i in range(tokens):
        among = i + 1 if causal else tokens
        sources.append([_hash((_hash((layer + i) % 2**32) + k) % 2**32) * among // 2**32 for k in range(8)])
    return torch.eye(tokens, dtype=torch.float64).scatter(1, torch.tensor(sources), 1)


def _channels(o: dict, p: dict[str, Tensor], x: Tensor, causal: bool) -> Tensor:
    """x [1, D, N] or [1, C, H, W] -> [channels, tokens]."""
    name = "fc" if o["predictor"] == "mlp" else "conv"
    for layer in "12":
        weight = p[f"predictor.{name}{layer}.weight"]
        weight = weight.reshape(*weight.shape, *(1,) * (x.dim() - weight.dim()))
        reach = weight.shape[-1] - 1
        if x.dim() == 4:
            x = F.conv2d(x, weight, p[f"predictor.{name}{layer}.bias"], padding=reach // 2)
        else:
            left = reach if causal else reach // 2
            x = F.conv1d(F.pad(x, (left, reach - left)), weight, p[f"predictor.{name}{layer}.bias"])
        x = F.gelu(x) if layer == "1" else x
    return x.flatten(2)[0]


def _pool(o: dict, p: dict[str, Tensor], x: Tensor, channels: Tensor | None, at: Tensor, n: float) -> Tensor:
    """x [tokens, D], at [tokens, 2] where they are."""
    tokens, groups, causal = len(x), o["groups"], o.get("causal", False)
    distance = torch.cdist(at, at)
    slices = []
    for group, part in enumerate(x.chunk(groups, 1)):
        if o["locality"] in ("gaussian", "adaptive_window"):
            b = channels[len(channels) - groups + group]
            s = {
                "sigmoid": lambda: torch.sigmoid(b),
                "softmax": lambda: torch.softmax(b, 0),
                "channels": lambda: torch.softmax(torch.stack((channels[group], b)), 0)[1],
            }[o["size_norm"]]()
            limit = o["ratio"] * (o.get("reference_length") or n)
            if o["size_norm"] == "sigmoid" and o["size_range"]:
                learnt = p["predictor.fc2.bias" if o["predictor"] == "mlp" else "predictor.conv2.bias"][group - groups]
                odds = torch.exp(learnt + o["size_range"] * torch.tanh((b - learnt) / o["size_range"]))
                limit = max(limit, 2 * o["initial_sigma"])
                least = o["initial_sigma"] * o["size_floor"]
                odds = odds / (odds + (limit - o["initial_sigma"]) / (o["initial_sigma"] - least))
                size = (least + (limit - least) * odds)[:, None]
            else:
                size = (s * limit)[:, None]
        if o["locality"] == "gaussian":
            g = torch.exp(-(distance**2) / (2 * size**2))
        elif o["locality"] == "adaptive_window":
            g = torch.clamp(1 + (size - distance) / 2, 0, 1)
        elif o["locality"] == "fixed_window":
            g = (distance <= o["window"]).double()
        elif o["locality"] == "random_sparse":
            g = _drawn(o, tokens, causal)
        else:
            g = torch.ones(tokens, tokens, dtype=torch.float64)
        if causal:
            g = g.tril()
        if o["predictor"] == "attention" or o["weights"] == "nonlocal":
            w = torch.exp((x @ p["theta.weight"].T) @ (x @ p["phi.weight"].T).T)
        elif o["weights"] == "unnormalized":
            slices.append((channels[group] * g) @ part / g.sum(1, keepdim=True))
            continue
        else:
            w = torch.ones(tokens, dtype=torch.float64) if o["weights"] == "uniform" else channels[group].exp()
        slices.append((w * g) @ part / (w * g).sum(1, keepdim=True))
    return torch.cat(slices, 1)


def formula_row(o: dict, p: dict[str, Tensor], x: Tensor) -> Tensor:
    """x [N, D] -> y [N, D]."""
    has = any(name.startswith("predictor") for name in p)
    channels = _channels(o, p, x.T[None], o.get("causal", False)) if has else None
    at = torch.stack((torch.zeros(len(x)), torch.arange(len(x)))).T.double()
    return _pool(o, p, x, channels, at, len(x))


def formula_map(o: dict, p: dict[str, Tensor], x: Tensor, stride: tuple[int, int]) -> Tensor:
    """x [C, H, W] -> y [C, Ho, Wo]."""
    has = any(name.startswith("predictor") for name in p)
    height, width = x.shape[1:]
    channels = _channels(o, p, x[None], False) if has else None
    at = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()
    y = _pool(o, p, x.flatten(1).T, channels, at, (height + width) / 2)
    return y.T.unflatten(1, (height, width))[:, :: stride[0], :: stride[1]]
