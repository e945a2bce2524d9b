"""The packages of others whose models ours are compared with."""

import pytest
import torch


def import_torchvision():
    """torchvision, or a skip with the reason. Its models are written in Python: where its compiled part was built for
    another torch (that of PyPI is for CUDA), they work once the two operators that it gives shapes to exist."""
    try:
        import torchvision
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    except ImportError as error:
        pytest.skip(f"needs torchvision: {error}", allow_module_level=True)
    return torchvision


def import_timm():
    """timm, or a skip with the reason."""
    import_torchvision()
    try:
        import timm
    except ImportError as error:
        pytest.skip(f"needs timm: {error}", allow_module_level=True)
    return timm
