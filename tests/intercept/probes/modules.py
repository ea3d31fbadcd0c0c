"""Modules of torch.nn, forward and backward; layers whose CUDA path differs from the CPU's, like an H200's."""

import kernel_probe

kernel_probe.arm()

import torch
from kernel_probe import compare_operators, finish, measured, names, probe
from torch import nn

LAYERS = [
    (nn.Conv1d(3, 4, 3), (2, 3, 9)),
    (nn.Conv2d(4, 4, 3, groups=4), (2, 4, 9, 9)),
    (nn.Conv3d(3, 4, 3), (2, 3, 5, 5, 5)),
    (nn.ConvTranspose2d(3, 4, 3), (2, 3, 9, 9)),
    (nn.BatchNorm1d(4), (8, 4)),
    (nn.BatchNorm2d(4), (8, 4, 3, 3)),
    (nn.SyncBatchNorm(4), (8, 4, 3, 3)),
    (nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5)),
    (nn.GroupNorm(2, 4), (2, 4, 5, 5)),
    (nn.LayerNorm(5), (2, 4, 5)),
    (nn.RMSNorm(4), (2, 4)),
    (nn.LocalResponseNorm(2), (2, 4, 5, 5)),
    (nn.MaxPool2d(2), (2, 4, 6, 6)),
    (nn.AvgPool3d(2), (2, 4, 6, 6, 6)),
    (nn.AdaptiveMaxPool2d(2), (2, 4, 5, 5)),
    (nn.AdaptiveAvgPool3d(2), (2, 4, 5, 5, 5)),
    (nn.LPPool2d(2, 2), (2, 4, 6, 6)),
    (nn.FractionalMaxPool2d(2, output_size=2), (2, 4, 6, 6)),
    (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 4, 6, 6)),
    (nn.PixelShuffle(2), (2, 4, 6, 6)),
    (nn.ReflectionPad2d(1), (2, 4, 6, 6)),
    (nn.ReplicationPad3d(1), (2, 4, 3, 3, 3)),
    (nn.PReLU(), (2, 4)),
    (nn.RReLU(), (2, 4)),
    (nn.Softmax2d(), (2, 4, 3, 3)),
    (nn.Mish(), (2, 4)),
    (nn.CELU(), (2, 4)),
    (nn.Dropout2d(), (2, 4, 3, 3)),
    (nn.AlphaDropout(), (2, 4)),
    (nn.Fold((4, 4), (2, 2)), (1, 8, 9)),
    (nn.Unfold(2), (1, 2, 4, 4)),
]


def backward(module, *inputs):
    out = module.cuda()(*inputs)
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    return out


@probe
def layers():
    for layer, shape in LAYERS:
        expected = layer(torch.randn(shape)).shape if not isinstance(layer, nn.SyncBatchNorm) else shape
        for _ in range(2):
            x = torch.randn(*shape, device="cuda", requires_grad=True)
            assert backward(layer, x).shape == expected, layer
            assert x.grad.shape == x.shape, layer


@probe
def losses():
    def x(*shape):
        return torch.randn(*(shape or (3, 4)), device="cuda", requires_grad=True)

    target, ones = torch.randint(0, 4, (3,), device="cuda"), torch.ones(3, 4, device="cuda")
    for loss, args in (
        (nn.CrossEntropyLoss(label_smoothing=0.1), (x(), target)),
        (nn.NLLLoss(), (x(), target)),
        (nn.MultiMarginLoss(), (x(), target)),
        (nn.MultiLabelMarginLoss(), (x(), torch.randint(0, 4, (3, 4), device="cuda"))),
        (nn.MultiLabelSoftMarginLoss(), (x(), ones)),
        (nn.HuberLoss(), (x(), x())),
        (nn.KLDivLoss(), (x(), x())),
        (nn.GaussianNLLLoss(), (x(), x(), ones)),
        (nn.CosineEmbeddingLoss(), (x(), x(), ones[:, 0])),
        (nn.TripletMarginLoss(), (x(), x(), x())),
        (nn.BCELoss(), (x().sigmoid(), ones)),
    ):
        assert loss(*args).backward() is None
    scores = x(50, 16, 20).log_softmax(2)
    targets = torch.randint(1, 20, (16, 30), device="cuda")
    for where in ("cuda", "cpu"):
        lengths = torch.full((16,), 50, device=where), torch.full((16,), 25, device=where)
        nn.CTCLoss()(scores, targets, *lengths).backward(retain_graph=True)


@probe
def recurrent():
    for cls in (nn.LSTM, nn.GRU, nn.RNN):
        for kwargs in ({}, {"bidirectional": True, "batch_first": True, "num_layers": 2, "dropout": 0.2}):
            module = cls(16, 32, **kwargs).cuda()
            names()
            out, _ = backward(module, torch.randn(4, 7, 16, device="cuda", requires_grad=True))
            launched = names()
            assert launched.count("_cudnn_rnn") == launched.count("_cudnn_rnn_backward") == 1, launched
            width = 64 if kwargs else 32
            assert out.shape == (4, 7, width)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(7, 4, 16, device="cuda"), [7, 5, 3, 2])
    nn.LSTM(16, 32).cuda()(packed)[1][0].sum().backward()
    projected, _ = nn.LSTM(16, 32, proj_size=8).cuda()(torch.randn(7, 4, 16, device="cuda"))
    assert projected.shape == (7, 4, 8)
    backward(nn.LSTMCell(16, 32), torch.randn(4, 16, device="cuda"))
    backward(nn.GRUCell(16, 32), torch.randn(4, 16, device="cuda"))


@probe
def autocast_gives_recurrent_layers_float16():
    """_cudnn_rnn_cast_reflatten of aten/src/ATen/cudnn/AutocastRNN.cpp: float16 whatever autocast's dtype."""
    lstm, x = nn.LSTM(16, 32, 2).cuda(), torch.randn(5, 4, 16, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        names()
        out, (hidden, cell) = lstm(x)
        launched = names()
    assert out.dtype == hidden.dtype == cell.dtype == torch.float16
    assert launched.count("copy_") == 8 + 3, launched  # weights and biases, input, two states
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32 and all(w.grad.dtype == torch.float32 for w in lstm.parameters())
    with torch.autocast("cuda", torch.bfloat16):
        assert nn.GRU(16, 32).cuda().half()(x.half())[0].dtype == torch.float16


@probe
def recurrent_like_an_h200():
    lstm = nn.LSTM(16, 32, 2, dropout=0.3).cuda()
    gru = nn.GRU(16, 32, 2, batch_first=True, bidirectional=True).cuda()
    for module, case in ((lstm, "lstm"), (gru, "gru")):
        seen = kernel_probe.operators(
            lambda: backward(module, torch.randn(5, 2, 16, device="cuda", requires_grad=True))
        )
        for expected in measured()["dispatch"][case]:
            if expected[0] == "aten._cudnn_rnn_backward.default":
                assert expected in seen, (case, expected, seen)
    assert torch.cuda.default_generators[0].get_offset() % 4 == 0


@probe
def flat_weights_are_one_buffer():
    gru = nn.GRU(16, 32).cuda()
    assert len({w.untyped_storage().data_ptr() for w in gru.parameters()}) == 1
    before = torch.cuda.memory_allocated()
    torch.ops.aten._local_scalar_dense(gru(torch.randn(1, 1, 16, device="cuda"))[0].sum())
    assert torch.cuda.memory_allocated() == before


@probe
def transformers():
    def x():
        return torch.randn(2, 10, 64, device="cuda", requires_grad=True)

    backward(nn.TransformerEncoderLayer(64, 4, batch_first=True), x())
    backward(nn.Transformer(64, 4, 1, 1, batch_first=True), x(), x())
    backward(nn.MultiheadAttention(64, 4), x(), x(), x())
    with torch.no_grad():
        names()
        assert nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda().eval()(x()).shape == (2, 10, 64)
        assert "_transformer_encoder_layer_fwd" in names()


@probe
def norms_and_convolutions_like_an_h200():
    norm, conv = nn.BatchNorm2d(4).cuda(), nn.Conv2d(3, 4, 3).cuda()
    image = torch.randn(2, 3, 8, 8, device="cuda")

    def amp():
        with torch.autocast("cuda", torch.bfloat16):
            loss = norm(conv(image)).sum()
        loss.backward()

    compare_operators("bn", lambda: norm(conv(image)).sum().backward(), only="norm|conv")
    compare_operators("bn amp", amp, only="norm|conv")
    norm.eval()
    compare_operators("bn eval", lambda: norm(torch.randn(2, 4, 8, 8, device="cuda")), only="norm")
    rms, x = nn.RMSNorm(64).cuda(), torch.randn(3, 64, device="cuda", requires_grad=True)
    compare_operators("rmsnorm", lambda: rms(x).sum().backward(), only="rms")


@probe
def convolution_is_one_call():
    conv = nn.Conv2d(3, 4, 3).cuda()
    names()
    backward(conv, torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True))
    assert [n for n in names() if "conv" in n] == ["convolution", "convolution_backward"]


@probe
def sync_batch_norm_kernels():
    """What SyncBatchNorm calls when there are several ranks."""
    x = torch.randn(8, 4, 3, 3, device="cuda", dtype=torch.bfloat16)
    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    counts = torch.full((2,), 72.0, device="cuda")
    running = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    both = torch.stack([mean, mean]), torch.stack([invstd, invstd])
    mean, invstd = torch.batch_norm_gather_stats_with_counts(x, *both, *running, 0.1, 1e-5, counts)
    weight = torch.ones(4, device="cuda")
    assert torch.batch_norm_elemt(x, weight, weight, mean, invstd, 1e-5).dtype == torch.bfloat16
    sums = torch.batch_norm_backward_reduce(x, x, mean, invstd, weight, True, True, True)
    assert [s.dtype for s in sums] == [torch.float32] * 4
    grad = torch.batch_norm_backward_elemt(x, x, mean, invstd, weight, sums[0], sums[1], counts.int())
    assert grad.shape == x.shape


finish()
