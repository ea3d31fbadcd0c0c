"""What counts as a training step, and where a stand-in was read."""

from __future__ import annotations

from conftest import Simulate


def test_making_optimizer_states_is_no_step(simulate: Simulate) -> None:
    """torch.distributed.checkpoint steps once, with gradients of zeros, so that an optimizer has states."""
    done = simulate("""
        import torch
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        model = torch.nn.Linear(256, 256).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        get_optimizer_state_dict(model, optimizer)
        x = torch.randn(64, 256, device="cuda")
        for _ in range(200):
            model(x)
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """)
    assert done.code == 0, done.stderr
    first, second = done.summary["steps"]
    assert first["duration_ns"] < 1.3 * second["duration_ns"]


def test_packages_beside_torch_are_named_as_readers(simulate: Simulate) -> None:
    """torchtitan, torchvision and torchrec are no part of torch."""
    done = simulate("""
        import os

        import torch

        place = os.path.dirname(torch.__file__) + "somewhere/model.py"
        exec(compile("def read(x): return x.sum().item()", place, "exec"))
        read(torch.randn(1 << 20, device="cuda"))
    """)
    assert done.code == 0, done.stderr
    (place,) = done.summary["stand_in_values"]
    assert place.endswith("torchsomewhere/model.py:1")
