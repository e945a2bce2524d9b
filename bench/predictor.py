"""Does the predictor train well? A small language model with ContextPool after attention, for each form of the sizes.

3 layers, 96 features, rows of 128 bytes, 1200 steps of 16 rows, AdamW with clipping at 1, cosine to 5 %; the text's
first 20,000,000 bytes are trained on, the 400,000 from --held-out on are scored (bits per character, the second half of
each window). Forms: plain (no mixer), control (a depthwise convolution of 15 taps), paper (size_range 0), bounded (the
default). On a GPU every run is a CUDA graph and many run at once; on a CPU one after another, about 4 minutes each.

    python bench/predictor.py --text FILE [--cells 12:4e-3 ...] [--seeds 1,2,3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contextpool.nn import ContextPool1d, Depthwise

FEATURES, LAYERS, HEADS, TOKENS, ROWS, WARMUP = 96, 3, 3, 128, 16, 50
TRAIN_BYTES, HELD_OUT_BYTES = 20_000_000, 400_000
FORMS = ("plain", "control", "paper", "bounded")
CELLS = ("1:4e-3", "4:4e-3", "12:4e-3", "12:1e-3", "12:8e-3", "12:sgd0.3")  # groups:learning rate
WATCHED = (20, 100, 300, 1000)  # steps at which --watch looks


def rotary(x: Tensor) -> Tensor:
    half = torch.arange(0, x.shape[-1], 2, device=x.device) / x.shape[-1]
    angle = torch.outer(torch.arange(x.shape[-2], device=x.device), 10000.0**-half)
    a, b, cos, sin = x[..., 0::2], x[..., 1::2], angle.cos(), angle.sin()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, mixer: nn.Module | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.qkv, self.out = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.up, self.down = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)
        for linear in (self.qkv, self.out, self.up, self.down):
            nn.init.normal_(linear.weight, 0, 0.6 / math.sqrt(linear.in_features))
            nn.init.zeros_(linear.bias)
        self.mixer = mixer

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(x)
        x = x + (y if self.mixer is None else self.mixer(y))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, form: str, groups: int) -> None:
        super().__init__()
        self.token = nn.Embedding(256, FEATURES)
        nn.init.normal_(self.token.weight, 0, 0.02)
        self.blocks = nn.ModuleList(Block(self._mixer(form, groups)) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(FEATURES)

    @staticmethod
    def _mixer(form: str, groups: int) -> nn.Module | None:
        if form == "plain":
            return None
        if form == "control":
            return Depthwise(FEATURES, 15, causal=True)
        sizes = {"size_range": 0.0} if form == "paper" else {}
        start = 4.0 if groups == 1 else 2.0
        return ContextPool1d(
            FEATURES, groups=groups, causal=True, reference_length=256, initial_sigma=start, **sizes
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.T


class Training:
    """One training; on a GPU a step is the replay of a graph on a stream of its own."""

    def __init__(self, form: str, cell: str, seed: int, text: Tensor, steps: int, device: torch.device) -> None:
        groups, rate = cell.split(":")
        self.form, self.cell, self.seed, self.text = form, cell, seed, text
        torch.manual_seed(seed)
        self.model = Model(form, int(groups)).to(device)
        lr = float(rate.removeprefix("sgd"))
        shape = [0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * s / steps)) for s in range(steps)]
        self.rates = torch.tensor([lr * min(1, (s + 1) / WARMUP) * shape[s] for s in range(steps)], device=device)
        generator = torch.Generator().manual_seed(1000 + seed)
        last = min(TRAIN_BYTES, len(text)) - TOKENS - 1
        self.starts = torch.randint(0, last, (steps, ROWS), generator=generator).to(device)
        self.step_number = torch.zeros(1, dtype=torch.long, device=device)
        self.rate = torch.zeros((), device=device)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        parts = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        fast = device.type == "cuda"
        self.optimizer: torch.optim.Optimizer
        if rate.startswith("sgd"):
            self.optimizer = torch.optim.SGD(parts, lr=self.rate, momentum=0.9, fused=fast)
        else:
            self.optimizer = torch.optim.AdamW(parts, lr=self.rate, betas=(0.9, 0.98), fused=fast, capturable=fast)
        self.graph = self._capture() if fast else None

    def _update(self) -> None:
        at = self.starts.index_select(0, self.step_number).view(-1, 1)
        rows = self.text[at + torch.arange(TOKENS + 1, device=at.device)].long()
        F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()

    def _whole_step(self) -> None:
        self.rate.copy_(self.rates.index_select(0, self.step_number).view(()))
        self._update()
        self.step_number.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(2):  # with a rate of 0: nothing moves but the optimizer's state
                self.optimizer.zero_grad()
                self._update()
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._whole_step()
        torch.cuda.synchronize()
        return graph

    def step(self) -> None:
        if self.graph is None:
            self.optimizer.zero_grad()
            self._whole_step()
        else:
            with torch.cuda.stream(self.stream):
                self.graph.replay()

    @torch.no_grad()
    def windows(self) -> list[tuple[Tensor, Tensor]]:
        """The log weights and sizes of each layer, [rows, groups, tokens], on the first bytes of the text."""
        x, found = self.model.token(self.text[: ROWS * TOKENS].view(ROWS, TOKENS).long()), []
        for block in self.model.blocks:
            if isinstance(block.mixer, ContextPool1d):
                seen = block.mixer(block.attend(x), return_windows=True)[1]
                found.append(tuple(v.view(ROWS, -1, TOKENS) for v in (seen.log_weight, seen.sigma)))
            x = block(x)
        return found

    @torch.no_grad()
    def score(self, first: int) -> float:
        stop = min(first + HELD_OUT_BYTES, len(self.text)) - TOKENS - 1
        starts = torch.arange(first, stop, TOKENS // 2, device=self.text.device)
        total = torch.zeros((), dtype=torch.float64, device=self.text.device)
        for part in starts.split(256):
            rows = self.text[part.view(-1, 1) + torch.arange(TOKENS + 1, device=part.device)].long()
            losses = F.cross_entropy(self.model(rows[:, :-1]).transpose(1, 2), rows[:, 1:], reduction="none")
            total += losses[:, TOKENS // 2 :].double().sum()
        return (total / (len(starts) * (TOKENS // 2)) / math.log(2)).item()


def shares(log_weight: Tensor, sigma: Tensor) -> Tensor:
    """p_ij of each group, for looking at."""
    at = torch.arange(TOKENS, device=sigma.device)
    distance = (at.view(-1, 1) - at).float()
    scores = log_weight.unsqueeze(-2) - distance.square() / (2 * sigma.clamp_min(1e-3).square()).unsqueeze(-1)
    return scores.masked_fill(distance < 0, -math.inf).softmax(-1)


def look(run: Training, step: int) -> list[dict]:
    """Takes a step; by layer, what the windows are and how far the step moved them."""
    before = run.windows()
    run.step()
    if run.graph is not None:
        torch.cuda.synchronize()
    rows = []
    for layer, ((l0, s0), (l1, s1)) in enumerate(zip(before, run.windows(), strict=True)):
        p = shares(l1, s1)
        mean = (p * l1.unsqueeze(-2)).sum(-1, keepdim=True)
        moved = (s1.clamp_min(1e-3).log() - s0.clamp_min(1e-3).log()).square().mean().sqrt()
        rows.append({
            "step": step, "layer": layer, "sigma": s1.mean().item(), "sigma_spread": s1.std(-1).mean().item(),
            "tokens": (1 / p.square().sum(-1)).mean().item(),
            "own_share": p.diagonal(dim1=-2, dim2=-1).mean().item(),
            "log_weight_spread": (p * (l1.unsqueeze(-2) - mean).square()).sum(-1).sqrt().mean().item(),
            "log_weight_moved": (l1 - l0).square().mean().sqrt().item(), "log_sigma_moved": moved.item(),
        })  # fmt: skip
    return rows


def train(runs: list[Training], steps: int, watch: bool) -> list[list[dict]]:
    seen: list[list[dict]] = [[] for _ in runs]
    for step in range(steps):
        if watch and step in WATCHED:
            if runs[0].graph is not None:
                torch.cuda.synchronize()
            for run, rows in zip(runs, seen, strict=True):
                rows += look(run, step)
        else:
            for run in runs:
                run.step()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="at least 20.8 million bytes")
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="GROUPS:RATE", help="RATE: 4e-3, or sgd0.3")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--held-out", type=int, default=TRAIN_BYTES + HELD_OUT_BYTES, help="first byte that is scored")
    parser.add_argument("--together", type=int, default=36, help="runs at once on a GPU")
    parser.add_argument("--watch", action="store_true", help="record windows, and how far a step moves them")
    parser.add_argument("--json", type=Path, help="file to add a line a run to")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).to(device)
    if len(text) <= args.held_out + TOKENS:
        parser.error(f"{args.text} has {len(text)} bytes, but scoring starts at byte {args.held_out}")
    wanted = [(form, cell, seed) for cell in args.cells for form in args.forms for seed in args.seeds]
    together = args.together if device.type == "cuda" else 1
    scores: dict[tuple[str, str], list[float]] = {}
    for first in range(0, len(wanted), together):
        runs = [Training(*which, text, args.steps, device) for which in wanted[first : first + together]]
        seen = train(runs, args.steps, args.watch)
        for run, watched in zip(runs, seen, strict=True):
            bits = run.score(args.held_out)
            scores.setdefault((run.cell, run.form), []).append(bits)
            if args.json:
                with args.json.open("a") as file:
                    line = {"form": run.form, "cell": run.cell, "seed": run.seed, "bpc": bits, "watched": watched}
                    file.write(json.dumps(line) + "\n")
    print("| groups:rate | form | bpc | spread | seeds |\n|---|---|---|---|---|")
    for (cell, form), bits in scores.items():
        spread = f"{statistics.stdev(bits):.3f}" if len(bits) > 1 else ""
        print(f"| {cell} | {form} | {statistics.mean(bits):.3f} | {spread} | {', '.join(f'{b:.3f}' for b in bits)} |")


if __name__ == "__main__":
    main()
