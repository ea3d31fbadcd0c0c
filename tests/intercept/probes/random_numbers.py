"""Random operators move the Philox offset as on an H200; generator states can be saved and restored."""

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, measured, probe
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.cuda.init()
GENERATOR = torch.cuda.default_generators[0]
OPERATORS = {
    "uniform": lambda x: x.uniform_(),
    "normal": lambda x: x.normal_(),
    "normal bf16": lambda x: x.bfloat16().normal_(),
    "bernoulli_p": lambda x: x.bernoulli_(0.5),
    "bernoulli t": lambda x: torch.bernoulli(x.uniform_()),
    "dropout": lambda x: F.dropout(x, 0.1),
    "exponential": lambda x: x.exponential_(),
    "cauchy": lambda x: x.cauchy_(),
    "geometric": lambda x: x.geometric_(0.5),
    "random_": lambda x: x.random_(),
    "randint": lambda x: torch.randint(0, 9, (x.numel(),), device="cuda"),
    "randint big": lambda x: torch.randint(0, 1 << 40, (x.numel(),), device="cuda"),
    "double normal": lambda x: torch.randn(x.numel(), device="cuda", dtype=torch.float64),
    "randperm": lambda x: torch.randperm(x.numel(), device="cuda"),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "poisson": lambda x: torch.poisson(x),
    "multinomial": lambda x: torch.multinomial(torch.ones(min(x.numel(), 1000), device="cuda"), 1),
    "multinomial rep": lambda x: torch.multinomial(torch.ones(4, 7, device="cuda"), 5, replacement=True),
}


def moved(function):
    before = GENERATOR.get_offset()
    function()
    return GENERATOR.get_offset() - before


@probe
def offsets_of_an_h200():
    for case, expected in measured()["philox"].items():
        name, _, size = case.rpartition(" ")
        if name in OPERATORS:
            x = torch.empty(int(size), device="cuda")
            for attempt in ("first", "planned"):
                assert moved(lambda: OPERATORS[name](x)) == expected, (case, attempt)


@probe
def attention_offsets_of_an_h200():
    q = torch.empty(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.MATH,
    ):
        with sdpa_kernel(backend):
            for dropout in (0.0, 0.125):
                expected = measured()["philox"][f"sdpa {backend.name} {dropout}"]
                assert moved(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)) == expected, (
                    backend,
                    dropout,
                )


@probe
def lstm_dropout_state():
    lstm = torch.nn.LSTM(16, 32, 2, dropout=0.3).cuda()
    x = torch.empty(5, 2, 16, device="cuda")
    assert [moved(lambda: lstm(x)), moved(lambda: lstm(x))] == [4, 0]


@probe
def own_generators():
    own = torch.Generator("cuda").manual_seed(3)
    for attempt in (1, 2):
        assert moved(lambda: torch.randn(100, generator=own, device="cuda")) == 0
        assert own.get_offset() == 4 * attempt


@probe
def states_restore():
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    torch.randn(10, device="cuda")
    assert not torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.cuda.get_rng_state(), state)


finish()
