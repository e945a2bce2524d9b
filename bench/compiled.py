"""Training steps of the Python models, eager and under torch.compile, with ContextPool and without, in turns.

A step is forward, loss and backward (under autocast with --bfloat16), and AdamW's update; compiled, forward and loss are
one graph or an error. Prints markdown: medians in milliseconds.

    python bench/compiled.py [--length 512] [--batch 2] [--layers 6] [--features 512] [--bfloat16] [--device cuda]
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contextpool.models import LanguageModel
from contextpool.nn import TransformerBlock
from measure import machine, medians_ms, print_table

VOCABULARY = 256
MIXERS = ("none", "context_pool")


def make(name: str, mixer: str, options: argparse.Namespace) -> nn.Module:
    d, heads = options.features, max(1, options.features // 64)
    if name == "TransformerBlock":
        pool = {"reference_length": options.length}
        return TransformerBlock(d, heads, 4 * d, causal=True, mixer=mixer, pool=pool)
    sizes = {"features": d, "heads": heads, "feedforward": 4 * d, "layers": options.layers, "vocabulary": VOCABULARY}
    return LanguageModel.from_options({**sizes, "mixer": mixer})


def step_of(model: nn.Module, compiled: bool, options: argparse.Namespace) -> Callable[[], None]:
    device = torch.device(options.device)
    shape = (options.batch, options.length)
    model = model.to(device)
    tokens = torch.randint(0, VOCABULARY, shape, device=device)
    x = torch.randn(*shape, options.features, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bfloat16):
            if isinstance(model, TransformerBlock):
                return model(x).float().square().mean()
            logits = model(tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())

    loss_of_step = torch.compile(loss, fullgraph=True) if compiled else loss

    def step() -> None:
        optimizer.zero_grad()
        loss_of_step().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=10, help="of each kind of step")
    parser.add_argument("--models", nargs="+", default=("TransformerBlock", "LanguageModel"))
    options = parser.parse_args()
    torch.manual_seed(1)
    print(f"{machine()}; {options.device}{', bfloat16' if options.bfloat16 else ''}", end="\n\n")
    rows = []
    for name in options.models:
        steps = [step_of(make(name, m, options), compiled, options) for compiled in (False, True) for m in MIXERS]
        plain, pooled, compiled_plain, compiled_pooled = medians_ms(*steps, seconds=options.seconds, rounds=7)
        eager = [f"{plain:.1f}", f"{pooled:.1f}", f"{pooled / plain:.2f}"]
        compiled = [f"{compiled_plain:.1f}", f"{compiled_pooled:.1f}", f"{compiled_pooled / compiled_plain:.2f}"]
        rows.append([name, *eager, *compiled])
    head = ["", "eager, plain", "with ContextPool", "times", "compiled, plain", "with ContextPool", "times"]
    print_table(head, rows)


if __name__ == "__main__":
    main()
