"""Weights saved by one language, loaded by the other through safetensors, give the same outputs in both."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from context_pool_cases import combinations, scattered
from contextpool.nn import ContextPool1d, ContextPool2d


def run_tool(folders: list[Path]) -> None:
    """Runs tests/nn/context_pool_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    tool = build / "tests" / "contextpool_context_pool_tool"
    done = subprocess.run([tool, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make(dims: int, options: dict) -> torch.nn.Module:
    return (ContextPool1d if dims == 1 else ContextPool2d)(8, **options)


@pytest.mark.parametrize("writer", ("python", "c++"))
@pytest.mark.parametrize("dims, causal", ((1, False), (1, True), (2, False)))
def test_the_other_language_gives_the_same_outputs(writer: str, dims: int, causal: bool, tmp_path: Path) -> None:
    torch.manual_seed(7)
    cases = []
    for number, options in enumerate(combinations(dims, causal)):
        folder = tmp_path / str(number)
        folder.mkdir()
        del options["window"]
        options["hidden"] = 6
        words = {"dims": dims, "features": 8, **options}
        (folder / "options.txt").write_text("".join(f"{k} {v}\n" for k, v in words.items()))
        x = torch.randn(2, 20, 8) if dims == 1 else torch.randn(2, 8, 6, 5)
        mask = torch.ones(2, *(x.shape[1:2] if dims == 1 else x.shape[2:]), dtype=torch.bool)
        mask[1, 4:] = False
        save_file({"x": x, "mask": mask}, folder / "input.safetensors")
        pool = make(dims, options)
        if writer == "python":
            save_file(scattered(pool, torch.float32).state_dict(), folder / "weights.safetensors")
        cases.append((folder, options, pool, x, mask))
    run_tool([folder for folder, *_ in cases])
    for folder, options, pool, x, mask in cases:
        pool.load_state_dict(load_file(folder / "weights.safetensors"))
        y, windows = pool(x, mask=mask, return_windows=True)
        output = load_file(folder / "output.safetensors")
        # docs/accuracy.md's bound for products of other shapes: a size that is off by 1e-5 moves a ramp's average by more.
        assert (y - output["y"]).abs().max() <= 5e-5 * max(1, y.abs().max()), options
        for name in ("log_weight", "sigma"):
            ours, theirs = getattr(windows, name), output.get(name)
            assert (ours is None) == (theirs is None), (options, name)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=lambda m: f"{options} {name}\n{m}")
