"""One GPU: autocast, GradScaler, fused AdamW, clipping, DataLoader workers with pinned memory, CUDA events."""

import time

import torch
from model import Decoder, loss_of
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((128,), index, dtype=torch.long)


def main():
    device = torch.device("cuda")
    with device:
        model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    loader = DataLoader(Tokens(), batch_size=4, num_workers=2, pin_memory=True)
    for step, ids in enumerate(loader):
        assert ids.is_pinned()
        began = time.perf_counter()
        begin.record()
        ids = ids.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(ids), ids)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        host, device_time = time.perf_counter() - began, begin.elapsed_time(end) / 1e3
        assert 0 < device_time <= host < 1.0, (device_time, host)
        print("step", step, loss.item(), f"{host * 1e3:.3f} ms", scaler.get_scale())
    print("done", torch.cuda.max_memory_allocated() > 0)


if __name__ == "__main__":
    main()
