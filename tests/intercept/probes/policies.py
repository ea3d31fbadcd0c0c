"""Unknown values: the stand-ins of unknown_values.py, each read counted."""

import sys

import kernel_probe

kernel_probe.arm()

import torch
from kernel_probe import finish, probe, stand_ins

from phantora.intercept import session, unknown_values

W = torch.randn(4096, 64, device="cuda")


def counted(operator, function):
    """The value of `function()`, which must read exactly one stand-in, of `operator`."""
    before = stand_ins()
    value = function()
    after = stand_ins()
    after[operator] -= 1
    assert {k: v for k, v in after.items() if v} == before, (before, after)
    return value


@probe
def single_numbers():
    assert counted("aten::_local_scalar_dense", lambda: W.sum().item()) == 1.0
    assert counted("aten::_local_scalar_dense", lambda: (W > 0).any().item()) is False
    assert counted("aten::_local_scalar_dense", lambda: (W > 0).all().item()) is True
    assert counted("aten::_local_scalar_dense", lambda: W.argmax().item()) == 1


@probe
def losses_are_finite():
    loss = W.pow(2).mean()
    assert torch.isfinite(loss).item() is True
    assert not torch.isnan(W).any()
    assert torch.isfinite(W).all()


@probe
def arithmetic_on_stand_ins_is_consistent():
    assert (W.sum() * 3 + 1).item() == 4.0


@probe
def stand_ins_stay_stand_ins():
    """A number computed from a stand-in is counted when it is read, a real one is not."""
    derived = W.sum() * 3
    counted("aten::_local_scalar_dense", derived.item)
    before = stand_ins()
    assert torch.ones((), device="cuda").item() == 1.0
    assert stand_ins() == before


@probe
def the_report_names_the_line():
    line = sys._getframe().f_lineno + 1
    W.sum().item()
    assert session._session.stand_ins[f"aten::_local_scalar_dense at {__file__}:{line}"] == 1


@probe
def copies_to_the_host():
    assert counted("aten::copy_ to the host", lambda: W[0].cpu().tolist()) == [1.0] * 64
    large = torch.full((4096, 64), 7.0)
    assert counted("aten::copy_ to the host", lambda: large.copy_(W))[0, 0] == 1.0  # up to 1 MiB
    larger = torch.full((8192, 64), 7.0)
    larger.copy_(torch.randn(8192, 64, device="cuda"))
    assert larger[0, 0] == 7.0


@probe
def routing_is_balanced():
    _, indices = W.topk(2)
    assert torch.bincount(indices.flatten(), minlength=64).tolist() == [128] * 64
    assert torch.histc(indices.float(), 64, 0, 63).sum().item() == 8192
    assert all(a != b for a, b in indices.tolist())
    by_rows = W.t().topk(3, dim=0).indices
    assert by_rows.shape == (3, 4096)
    assert torch.bincount(by_rows.flatten(), minlength=64).max().item() == 192


@probe
def density_of_masks():
    assert (W > 0).nonzero().shape == (4096 * 64, 2)
    old = unknown_values.set_policy(density=0.5)
    assert W[W > 0].shape == (4096 * 32,)
    assert torch.masked_select(W, W > 0).shape == (4096 * 32,)
    unknown_values.restore_policy(old)


@probe
def masks_count_what_they_select():
    mask = W > 0
    assert mask.sum().item() == mask.numel() and mask.sum(-1).tolist() == [64] * 4096
    assert mask.sum(0).sum().item() == mask.numel()
    old = unknown_values.set_policy(density=0.25)
    assert mask.sum(-1).max().item() == 16 and mask.sum().item() == mask.numel() // 4
    unknown_values.restore_policy(old)
    lengths = torch.ones(8, 100, dtype=torch.long, device="cuda")
    assert (lengths > 0).sum(-1).tolist() == [100] * 8  # known
    labels = (W @ W.t()).argmax(-1)[:800].view(8, 100)  # CTC's lengths and what masked_select leaves agree
    present = labels >= 0
    scores = torch.randn(400, 8, 32, device="cuda").log_softmax(-1)
    texts, heard = labels.masked_select(present), torch.full((8,), 400, device="cuda")
    torch.nn.functional.ctc_loss(scores, texts, heard, present.sum(-1))


@probe
def unknown_integers_differ_from_known_ones():
    tokens = (W @ W.t()).argmax(-1)  # as a sampled token
    end = torch.tensor([2, 5], device="cuda")
    assert not (tokens == 2).any() and not (2 == tokens).all() and (tokens != 2).all()
    assert not torch.isin(tokens, end).any() and torch.isin(tokens, end, invert=True).all()
    finished = torch.zeros(4096, dtype=torch.bool, device="cuda")
    steps = 0
    while not finished.all() and steps < 3:
        finished |= tokens == 2
        steps += 1
    assert steps == 3
    real = torch.tensor([1, 2, 3], device="cuda")
    assert (real == 2).tolist() == [False, True, False] and torch.isin(real, end).tolist() == [False, True, False]
    assert (real == torch.tensor([2.0], device="cuda")).tolist() == [False, True, False]


@probe
def unknown_numbers_are_of_ordinary_size():
    score = W[:8, 0]
    none_yet = torch.full((8,), -1e9, device="cuda")
    assert (score > -1e9).all() and (none_yet < score).all() and not (score >= float("inf")).any() and not (none_yet > score).any()
    assert (score > 0.5).any().item() is False  # as any unknown mask is read
    (score > torch.ones(8, dtype=torch.bool, device="cuda")).any().item()
    count = torch.empty(8, dtype=torch.int64, device="cuda")
    (count == score).any().item()


@probe
def where_takes_a_known_side():
    finished = torch.zeros(8, dtype=torch.bool, device="cuda")
    unknown = W[:8, 0]
    assert torch.where(finished, unknown, -1e9).tolist() == [-1e9] * 8
    assert torch.where(~finished, torch.arange(8.0, device="cuda"), unknown).tolist() == list(range(8))
    finished[3] = True
    assert torch.where(finished, unknown, -1e9).tolist() == [1.0] * 8  # mixed: unknown


@probe
def a_choice_from_a_vocabulary_is_no_routing():
    assert (W @ W[:2048].t()).topk(2).indices.unique().numel() == 2048
    count_before = len(session._session.stand_ins)
    chosen = (W @ W.t())[:64].topk(2).indices
    assert len(session._session.stand_ins) == count_before
    assert chosen.tolist() == [[1, 1]] * 64  # unknown


@probe
def counts_of_unknown_data():
    unknown = torch.randint(0, 8, (10_000_000,), device="cuda")  # too large to be followed
    assert torch.bincount(unknown, minlength=8).tolist() == [1_250_000] * 8
    assert torch.unique(unknown).shape == (10_000_000,)


@probe
def gradients_do_not_overflow():
    layer = torch.nn.Linear(512, 512).cuda()
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(4):
        with torch.autocast("cuda", torch.float16):
            loss = layer(torch.randn(300, 512, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 4096.0, scaler.get_scale()


@probe
def wrong_policies_are_refused():
    for wrong in ({"density": 1.5}, {"floating": float("nan")}):
        try:
            unknown_values.set_policy(**wrong)
        except ValueError as error:
            assert next(iter(wrong)) in str(error)
        else:
            raise AssertionError(wrong)


finish()
