"""What ContextPool2d costs in place of nn.AvgPool2d: the training step of a small ConvNet on images of 32 x 32.

Three stages of two 3 x 3 convolutions, each followed by pooling with stride 2. Prints markdown: the whole step with
each kind of pooling, in turns, and what predictors and operators of ContextPool2d take by themselves.
"""

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait do not spin; before torch is imported

import torch
from torch import nn

import contextpool
from contextpool.nn import ContextPool2d
from measure import Call, machine, medians_ms, print_table


def network(widths: list[int], hidden: int | None) -> nn.Module:
    """With average pooling, or with ContextPool2d of that hidden width."""
    layers: list[nn.Module] = []
    before = 3
    for width in widths:
        for channels in (before, width):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.AvgPool2d(2) if hidden is None else ContextPool2d(width, stride=2, hidden=hidden))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Call:
    def call() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()

    return call


def parts(model: nn.Module, images: torch.Tensor) -> list[Call]:
    """Forward and backward of the model's ContextPool2d modules by themselves, and of their operator by itself."""
    seen: list[tuple[nn.Module, torch.Tensor]] = []
    modules = [m for m in model.modules() if isinstance(m, ContextPool2d)]
    hooks = [m.register_forward_pre_hook(lambda m, inputs: seen.append((m, inputs[0].detach()))) for m in modules]
    with torch.no_grad():
        model(images)
        for hook in hooks:
            hook.remove()
        windows = [m(x, return_windows=True)[1] for m, x in seen]
    leaves = [[t.requires_grad_() for t in (x, w.log_weight, w.sigma)] for (_, x), w in zip(seen, windows, strict=True)]

    def whole() -> None:
        for m, x in seen:
            m(x).sum().backward()

    def operator() -> None:
        for tensors in leaves:
            contextpool.pool2d(*tensors, (2, 2)).sum().backward()

    return [whole, operator]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128], help="channels of the stages")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 32, 20, 16, 8], help="of the predictor")
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    images, labels = torch.randn(args.batch, 3, 32, 32), torch.randint(10, (args.batch,))
    plain, *models = [network(args.widths, hidden) for hidden in (None, *args.hidden)]
    calls = [call for model in models for call in (step(model, images, labels), *parts(model, images))]
    base, *times = medians_ms(step(plain, images, labels), *calls, seconds=args.seconds)
    print(f"\n{machine()}; medians.\n\n{args.batch} images, stages of {args.widths} channels; milliseconds a step.\n")
    rows = [["AvgPool2d(2)", "", f"{base:.0f}", "1.0", "", ""]]
    for k, hidden in enumerate(args.hidden):
        ms, whole, operator = times[3 * k : 3 * k + 3]
        more = sum(p.numel() for p in models[k].parameters()) - sum(p.numel() for p in plain.parameters())
        rows.append([f"ContextPool2d, hidden {hidden}", f"{more}", f"{ms:.0f}", f"{ms / base:.1f}",
                     f"{whole - operator:.0f}", f"{operator:.0f}"])  # fmt: skip
    print_table(["pooling", "more parameters", "step", "times", "predictors", "pool2d"], rows)


if __name__ == "__main__":
    main()
