"""A prefetching thread copies batches on a side stream; the main thread trains. Another two compute on streams of their own."""

import queue
import threading

import torch
from model import Decoder, loss_of


def prefetch(batches, device):
    stream = torch.cuda.Stream()
    for index in range(6):
        with torch.cuda.stream(stream):
            ids = torch.full((4, 128), index, dtype=torch.long).pin_memory().to(device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        batches.put((ids, event))
    batches.put(None)


def alone(size):
    with torch.cuda.stream(torch.cuda.Stream()):
        for index in range(40):
            torch.ones(size + index, device="cuda").mul_(2)


def main():
    device = torch.device("cuda")
    with device:
        model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = queue.Queue(2)
    thread = threading.Thread(target=prefetch, args=(batches, device))
    thread.start()
    while (item := batches.get()) is not None:
        ids, event = item
        torch.cuda.current_stream().wait_event(event)
        loss_of(model(ids), ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    thread.join()
    others = [threading.Thread(target=alone, args=(size,)) for size in (1000, 2000)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
