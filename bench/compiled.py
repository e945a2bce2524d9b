"""Training steps of the Python models, eager and under torch.compile, with ContextPool and without, in turns.

A step is forward, loss and backward (under autocast with --bfloat16), and AdamW's update; compiled, forward and loss are
one graph or an error. Prints markdown: medians in milliseconds.

    python bench/compiled.py [--length 512] [--batch 2] [--layers 6] [--features 512] [--bfloat16] [--device cuda]
    python bench/compiled.py --models VisionTransformer [--image 224] [--batch 2] [--layers 6] [--features 512]

--groups G gives ContextPool G windows a token; --compiled leaves the eager steps out.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contextpool.models import LanguageModel, VisionTransformer
from contextpool.nn import TransformerBlock
from measure import machine, medians_ms, print_table

VOCABULARY, CLASSES, PATCH = 256, 1000, 16
MIXERS = ("none", "context_pool")


def make(name: str, mixer: str, options: argparse.Namespace) -> nn.Module:
    d, heads = options.features, max(1, options.features // 64)
    if name == "TransformerBlock":
        pool = {"reference_length": options.length, "groups": options.groups}
        return TransformerBlock(d, heads, 4 * d, causal=True, mixer=mixer, pool=pool)
    sizes = {"features": d, "heads": heads, "feedforward": 4 * d, "layers": options.layers}
    mixing = {"mixer": mixer, "pool_groups": options.groups}
    if name == "VisionTransformer":
        picture = {"image_size": options.image, "patch": PATCH, "classes": CLASSES}
        return VisionTransformer.from_options({**sizes, **mixing, **picture})
    return LanguageModel.from_options({**sizes, **mixing, "vocabulary": VOCABULARY})


def inputs_of(name: str, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """What goes into a model, and what should come out (of a block nothing in particular)."""
    kind = {"device": options.device}
    if name == "VisionTransformer":
        pictures = torch.randn(options.batch, 3, options.image, options.image, **kind)
        return pictures, torch.randint(0, CLASSES, (options.batch,), **kind)
    tokens = torch.randint(0, VOCABULARY, (options.batch, options.length), **kind)
    if name == "TransformerBlock":
        return torch.randn(*tokens.shape, options.features, **kind), tokens
    return tokens, tokens


def step_of(name: str, mixer: str, compiled: bool, options: argparse.Namespace) -> Callable[[], None]:
    model = make(name, mixer, options).to(options.device)
    x, target = inputs_of(name, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss() -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=options.bfloat16):
            y = model(x)
        if isinstance(model, TransformerBlock):
            return y.float().square().mean()
        return F.cross_entropy(y.float().flatten(0, -2), target.flatten())

    loss_of_step = torch.compile(loss, fullgraph=True) if compiled else loss

    def step() -> None:
        optimizer.zero_grad()
        loss_of_step().backward()
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--image", type=int, default=224, help="side of VisionTransformer's pictures")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=10, help="of each kind of step")
    parser.add_argument("--models", nargs="+", default=("TransformerBlock", "LanguageModel"))
    parser.add_argument("--compiled", action="store_true", help="no eager steps")
    options = parser.parse_args()
    torch.manual_seed(1)
    print(f"{machine()}; {options.device}{', bfloat16' if options.bfloat16 else ''}", end="\n\n")
    modes = (True,) if options.compiled else (False, True)
    rows = []
    for name in options.models:
        steps = [step_of(name, mixer, compiled, options) for compiled in modes for mixer in MIXERS]
        times = medians_ms(*steps, seconds=options.seconds, rounds=7)
        row = [name]
        for plain, pooled in zip(times[::2], times[1::2], strict=True):
            row += [f"{plain:.1f}", f"{pooled:.1f}", f"{pooled / plain:.2f}"]
        rows.append(row)
    head = [""]
    for compiled in modes:
        head += [f"{'compiled' if compiled else 'eager'}, plain", "with ContextPool", "times"]
    print_table(head, rows)


if __name__ == "__main__":
    main()
