"""Every optimizer of torch.optim in its variants; sparse gradients; gradient clipping."""

import kernel_probe

kernel_probe.arm()

import torch
from kernel_probe import compare_operators, finish, names, probe
from torch import nn

VARIANTS = ({}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True})


def optimizers():
    for name, cls in vars(torch.optim).items():
        if (
            isinstance(cls, type)
            and issubclass(cls, torch.optim.Optimizer)
            and name not in ("Optimizer", "SparseAdam", "LBFGS")
        ):
            yield name, cls


@probe
def dense():
    stepped = set()
    for name, cls in optimizers():
        for kwargs in VARIANTS:
            params = [nn.Parameter(torch.randn(500, 5, device="cuda")) for _ in range(3)]
            try:
                optimizer = cls(params, lr=0.1, **kwargs)
            except (TypeError, RuntimeError, ValueError):
                continue  # this optimizer has no such variant
            for _ in range(2):
                for p in params:
                    p.grad = torch.randn_like(p)
                optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
            stepped.add(name)
    assert {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor", "Muon", "NAdam", "Rprop"} <= stepped, stepped


@probe
def adamw_is_one_fused_kernel():
    params = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(5)]
    optimizer = torch.optim.AdamW(params, fused=True)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn_like(p)
        names()
        optimizer.step()
    assert names() == ["_foreach_add_", "_fused_adamw_"]


@probe
def lbfgs():
    p = nn.Parameter(torch.randn(500, 5, device="cuda"))
    optimizer = torch.optim.LBFGS([p], max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@probe
def sparse_gradients():
    for make in (torch.optim.SparseAdam, lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.Adagrad(p, 0.1)):
        table = nn.Embedding(10, 4, sparse=True).cuda()
        optimizer = make(list(table.parameters()))
        for _ in range(2):
            table(torch.tensor([1, 2, 2], device="cuda")).sum().backward()
            grad = table.weight.grad
            assert grad.is_sparse and grad.is_cuda
            assert grad._nnz() == 3
            assert grad.coalesce()._nnz() == 2
            assert grad.coalesce().indices().tolist() == [[1, 2]]
            optimizer.step()
            optimizer.zero_grad()
    table(torch.tensor([1, 2, 2], device="cuda")).sum().backward()
    table(torch.tensor([1, 3], device="cuda")).sum().backward()
    assert table.weight.grad._nnz() == 5


@probe
def sparse_embedding_bags():
    for sparse in (True, False):
        bag = nn.EmbeddingBag(10, 4, mode="sum", sparse=sparse).cuda()
        bag(torch.tensor([[1, 2], [3, 4]], device="cuda")).sum().backward()
        assert bag.weight.grad.is_sparse is sparse


@probe
def sparse_embedding_like_an_h200():
    table = nn.Embedding(10, 4, sparse=True).cuda()

    def step():
        table(torch.tensor([1, 2], device="cuda")).sum().backward()
        torch.optim.SparseAdam(list(table.parameters())).step()
        torch.optim.SGD(table.parameters(), 0.1).step()

    compare_operators("sparse emb", step, only="sparse|coalesce|add_")


@probe
def sparse_tensors():
    indices = torch.tensor([[0, 1], [1, 0]], device="cuda")
    s = torch.sparse_coo_tensor(indices, torch.ones(2, device="cuda"), (2, 2))
    assert torch.sparse.mm(s, torch.ones(2, 3, device="cuda")).shape == (2, 3)
    assert s.to_dense().shape == (2, 2)
    assert (s + s).coalesce()._nnz() == 2
    assert (s * 2)._nnz() == 2
    assert (s * torch.ones(1, device="cuda"))._nnz() == 2
    assert (s * torch.ones(1, 2, device="cuda"))._values().shape == (2,)
    assert s.norm(2).shape == s.norm().shape == ()
    assert s.cpu().to_dense().tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert s.cpu().cuda().is_cuda
    assert torch.eye(3).cuda().to_sparse()._nnz() == 3
    assert "tensor(" in repr(s)


@probe
def clipping():
    params = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(3)]
    for p in params:
        p.grad = torch.randn_like(p)
    for kwargs in ({}, {"foreach": True}, {"foreach": False}, {"norm_type": float("inf")}):
        assert 1.0 <= torch.nn.utils.clip_grad_norm_(params, 1.0, **kwargs).item() < 2.0
    torch.nn.utils.clip_grad_value_(params, 1.0)


finish()
