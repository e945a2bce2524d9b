"""Does the predictor train well in vision models? A ViT and a ResNet-44 on CIFAR-10, for each form of the sizes.

vit: 6 layers, 192 features, 3 heads, patches of 2 x 2 pixels (a grid of 16 x 16), the mean of the tokens classified; 20
epochs of 50,000 images in batches of 256, AdamW 1e-3 with clipping at 1. The mixer stands after each attention.
resnet: ResNet-44, 24 epochs of the first 30,000 images in batches of 512, SGD 0.4 with Nesterov's momentum. The mixer
stands at the end of each of the three stages. Both: random crops and flips, one epoch of warm-up, cosine to 0; on a GPU
in bfloat16, the whole step a CUDA graph.

Forms: plain (no mixer), control (a depthwise 3 x 3 convolution), paper (size_range 0), bounded (the default). Printed is
the accuracy on the test images after the last step: nothing is chosen on them. Runs with the same seed see the same
images in the same order.

    python bench/vision_predictor.py --data FOLDER --model vit [--forms paper bounded ...] [--seeds 1,2] [--json FILE]

FOLDER has CIFAR-10's binary files, data_batch_1.bin to data_batch_5.bin and test_batch.bin.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contextpool.nn import ContextPool2d

SIDE, MARGIN, CLASSES, RECORD = 32, 4, 10, 1 + 3 * 32 * 32
FORMS = ("plain", "control", "paper", "bounded")


@dataclass(frozen=True)
class Recipe:
    epochs: int
    images: int
    batch: int
    rate: float
    decay: float


RECIPES = {"vit": Recipe(20, 50_000, 256, 1e-3, 0.05), "resnet": Recipe(24, 30_000, 512, 0.4, 5e-4)}


def mixer(form: str, features: int, hidden: int, ratio: float, start: float) -> nn.Module:
    if form == "plain":
        return nn.Identity()
    if form == "control":
        return nn.Conv2d(features, features, 3, padding=1, groups=features)
    sizes = {"size_range": 0.0} if form == "paper" else {}
    # With the paper's form the size at the start holds at the usual length: here that is known.
    side = {16: 32, 32: 16, 64: 8, 192: 16}[features]
    return ContextPool2d(features, hidden=hidden, ratio=ratio, initial_sigma=start, usual_length=side, **sizes)


class Layer(nn.Module):
    def __init__(self, features: int, heads: int, side: int, form: str) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
        for linear in (self.qkv, self.out, self.up, self.down):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        self.mixer = mixer(form, features, hidden=24, ratio=0.1, start=1.0)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(x).unflatten(1, (self.side, self.side)).permute(0, 3, 1, 2)  # a map with its channels last
        x = x + self.mixer(y).permute(0, 2, 3, 1).flatten(1, 2)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, form: str, features: int = 192, layers: int = 6, heads: int = 3, patch: int = 2) -> None:
        super().__init__()
        side = SIDE // patch
        self.embed = nn.Conv2d(3, features, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, side * side, features))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.layers = nn.ModuleList(Layer(features, heads, side, form) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.more, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.more:  # a shortcut without parameters: every other pixel, the new channels 0
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more // 2))
        return F.relu(x + y)


class ResNet(nn.Module):
    def __init__(self, form: str, blocks: int = 7) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        parts: list[nn.Module] = []
        for inputs, outputs in ((16, 16), (16, 32), (32, 64)):
            parts.append(Residual(inputs, outputs, 1 if inputs == outputs else 2))
            parts += [Residual(outputs, outputs, 1) for _ in range(blocks - 1)]
            parts.append(mixer(form, outputs, hidden=20, ratio=0.05, start=0.5))
        self.stages, self.head = nn.Sequential(*parts), nn.Linear(64, CLASSES)
        for module in self.modules():
            if type(module) is nn.Conv2d and module.groups == 1:
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


def read(folder: Path, names: list[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] and labels [N], as bytes."""
    data = bytearray().join((folder / name).read_bytes() for name in names)
    records = torch.frombuffer(data, dtype=torch.uint8).view(-1, RECORD).to(device)
    return records[:, 1:].unflatten(1, (3, SIDE, SIDE)), records[:, 0]


@dataclass
class Images:
    train: Tensor  # [N, 40, 40, 3]: with a margin to crop from
    train_labels: Tensor
    test: Tensor  # [N, 3, 32, 32]
    test_labels: Tensor

    @staticmethod
    def load(folder: Path, count: int, device: torch.device) -> Images:
        train, labels = read(folder, [f"data_batch_{k}.bin" for k in range(1, 6)], device)
        train = F.pad(train[:count], (MARGIN,) * 4).permute(0, 2, 3, 1).contiguous()
        return Images(train, labels[:count].long(), *read(folder, ["test_batch.bin"], device))


def scaled(images: Tensor) -> Tensor:
    """Bytes [N, 3, 32, 32] to numbers of about unit variance."""
    return (images.float() - 121.0) / 64.0


class Run:
    """The training of one form; on a GPU a step is the replay of a graph, which serves every seed."""

    def __init__(self, model: str, form: str, recipe: Recipe, images: Images, compiled: bool) -> None:
        self.kind, self.form, self.recipe, self.images = model, form, recipe, images
        self.device = device = images.train.device
        self.fast = device.type == "cuda"
        self.model = self._fresh(0)
        self.called = torch.compile(self.model, fullgraph=True, dynamic=False) if compiled else self.model
        self.steps = recipe.epochs * (len(images.train) // recipe.batch)
        warmup = self.steps // recipe.epochs
        shape = [0.5 * (1 + math.cos(math.pi * s / self.steps)) for s in range(self.steps)]
        rates = [recipe.rate * min(1, (s + 1) / warmup) * shape[s] for s in range(self.steps)]
        self.rates, self.rate = torch.tensor(rates, device=device), torch.zeros((), device=device)
        self.order = torch.zeros(self.steps, recipe.batch, 4, dtype=torch.long, device=device)
        self.step_number = torch.zeros(1, dtype=torch.long, device=device)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        parts = [{"params": decay, "weight_decay": recipe.decay}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer: torch.optim.Optimizer
        if model == "vit":
            self.optimizer = torch.optim.AdamW(parts, lr=self.rate, fused=self.fast, capturable=self.fast)
        else:
            self.optimizer = torch.optim.SGD(parts, lr=self.rate, momentum=0.9, nesterov=True, fused=self.fast)
        self.graph = self._capture() if self.fast else None

    def _fresh(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = ViT(self.form) if self.kind == "vit" else ResNet(self.form)
        return model.to(self.device, memory_format=torch.channels_last)

    def start(self, seed: int) -> None:
        """Weights, optimizer and order of images as at the start of a run."""
        with torch.no_grad():
            for mine, fresh in zip(self.model.state_dict().values(), self._fresh(seed).state_dict().values(), strict=True):
                mine.copy_(fresh)
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        generator = torch.Generator().manual_seed(1000 + seed)
        count, batch = len(self.images.train), self.recipe.batch
        for epoch, order in enumerate(self.order.split(count // batch)):
            which = torch.randperm(count, generator=generator)[: len(order) * batch]
            shifts = torch.randint(0, 2 * MARGIN + 1, (len(which), 2), generator=generator)
            flips = torch.randint(0, 2, (len(which), 1), generator=generator)
            order.copy_(torch.cat((which.view(-1, 1), shifts, flips), 1).view(order.shape))
        self.step_number.zero_()

    def _batch(self) -> tuple[Tensor, Tensor]:
        which, down, right, flip = self.order.index_select(0, self.step_number)[0].unbind(1)
        at = torch.arange(SIDE, device=self.device)
        rows = down.view(-1, 1) + at
        columns = right.view(-1, 1) + torch.where(flip.view(-1, 1) == 1, SIDE - 1 - at, at)
        crops = self.images.train[which.view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]
        return scaled(crops.permute(0, 3, 1, 2)), self.images.train_labels[which]

    def _whole_step(self) -> None:
        self.rate.copy_(self.rates.index_select(0, self.step_number).view(()))
        x, labels = self._batch()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.fast):
            logits = self.called(x)
        F.cross_entropy(logits.float(), labels).backward()
        if self.kind == "vit":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.step_number.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # compiles, and makes the optimizer's state; start() undoes what else it does
                self.optimizer.zero_grad()
                self._whole_step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._whole_step()
        torch.cuda.synchronize()
        return graph

    def train(self, seed: int) -> float:
        """Seconds that it took."""
        self.start(seed)
        self.model.train()
        began = time.monotonic()
        for _ in range(self.steps):
            if self.graph is None:
                self.optimizer.zero_grad()
                self._whole_step()
            else:
                self.graph.replay()
        if self.fast:
            torch.cuda.synchronize()
        return time.monotonic() - began

    @torch.no_grad()
    def test(self) -> tuple[float, list[float]]:
        """The share of test images that are classified right, in percent, and the mean size of each ContextPool."""
        self.model.eval()
        sizes: list[float] = []

        def look(pool: nn.Module, inputs: tuple[Tensor]) -> None:
            assert isinstance(pool, ContextPool2d)
            sigma = pool.forward(inputs[0], return_windows=True)[1].sigma
            assert sigma is not None
            sizes.append(sigma.mean().item())

        pools = [m for m in self.model.modules() if isinstance(m, ContextPool2d)]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.fast):
            hooks = [pool.register_forward_pre_hook(look) for pool in pools]
            self.model(scaled(self.images.test[:256]))
            for hook in hooks:
                hook.remove()
            right = sum(
                (self.model(scaled(x)).argmax(1) == labels).sum()
                for x, labels in zip(self.images.test.split(1000), self.images.test_labels.split(1000), strict=True)
            )
        return 100.0 * float(right) / len(self.images.test), sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10's binary files")
    parser.add_argument("--model", choices=RECIPES, required=True)
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[1, 2])
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--images", type=int, help="first images to train on, instead of the recipe's")
    parser.add_argument("--batch", type=int, help="instead of the recipe's")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model before the capture")
    parser.add_argument("--json", type=Path, help="file to add a line a run to")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    usual = RECIPES[args.model]
    recipe = Recipe(
        args.epochs or usual.epochs, args.images or usual.images, args.batch or usual.batch, usual.rate, usual.decay
    )
    torch.backends.cudnn.benchmark = True
    images = Images.load(args.data, recipe.images, torch.device(args.device))
    if len(images.train) < recipe.batch:
        parser.error(f"{args.data} has {len(images.train)} training images, but a batch is {recipe.batch}")
    rows = []
    for form in args.forms:
        run, found = Run(args.model, form, recipe, images, args.compile), []
        for seed in args.seeds:
            seconds = run.train(seed)
            accuracy, sizes = run.test()
            found.append(accuracy)
            if args.json:
                line = {"model": args.model, "form": form, "seed": seed, "accuracy": accuracy, "sigma": sizes}
                with args.json.open("a") as file:
                    file.write(json.dumps({**line, "seconds": seconds}) + "\n")
        count = sum(p.numel() for p in run.model.parameters())
        ends = ", ".join(f"{size:.2f}" for size in sizes)
        accuracies = ", ".join(f"{a:.2f}" for a in found)
        rows.append(f"| {args.model} | {form} | {count} | {statistics.mean(found):.2f} | {accuracies} | {ends} |")
    print("| model | form | parameters | accuracy | seeds | mean sigma at the end, last seed |\n|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
