"""torch.distributed in a process that has no engine: a world of one, and processes that are no ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from armed import PROPERTIES

pytestmark = pytest.mark.torch

ARM = f"""
from phantora.compute.call import Price
from phantora.intercept import boot, session
class Pricer:
    def price(self, call):
        return Price(duration_ns=1000, num_kernels=1, source="roofline", flops=0, bytes=0, family="constant")
    def host_ns(self, call):
        return 1000, 1000
session.set_pricer(Pricer())
boot.arm(boot.BootConfig(num_devices=2, device_properties={PROPERTIES!r}))
import torch, torch.distributed as dist
"""


def run(code: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-c", ARM + code], env={**kept, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_world_of_one_needs_no_engine() -> None:
    code = """
dist.init_process_group("cpu:gloo,cuda:nccl")
x = torch.tensor([3], device="cuda")
dist.all_reduce(x)
dist.broadcast(x, 0)
y = torch.zeros(1, dtype=torch.int64, device="cuda")
dist.all_gather_into_tensor(y, x)
dist.reduce_scatter_tensor(x, y)
dist.all_to_all_single(y, x)
objects = [None]
dist.all_gather_object(objects, {"a": 1})
host = torch.ones(2)
dist.all_reduce(host, async_op=True).wait()
dist.barrier()
print(x.item(), y.item(), objects, host.tolist())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
model(torch.ones(1, 2, device="cuda")).sum().backward()
dist.destroy_process_group()
"""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert run(code, **variables).strip() == "3 3 [{'a': 1}] [1.0, 1.0]"


def test_a_launcher_keeps_the_real_store() -> None:
    """torchrun's agent is armed like every Python process, but it is no rank."""
    code = """
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
assert isinstance(store, dist.TCPStore) and type(store) is not dist.TCPStore
twin = dist.TCPStore("localhost", store.port)
twin.set("a", "b")
print(store.get("a"), dist.HashStore().add("n", 2))
"""
    assert run(code).strip() == "b'b' 2"


def test_names_of_a_cuda_build() -> None:
    code = """
import copy, datetime
from torch.distributed.distributed_c10d import ProcessGroupNCCL
assert dist.is_nccl_available() and dist.is_gloo_available() and dist.ProcessGroupNCCL is ProcessGroupNCCL
options = ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.max_ctas = 4
twin = copy.deepcopy(options)
assert twin.is_high_priority_stream and twin.config.max_ctas == 4 and twin.config is not options.config
assert options.backend == "nccl" and options._timeout == datetime.timedelta(minutes=10)
alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("nccl", **alone, pg_options=options, device_id=torch.device("cuda:1"))
group = dist.group.WORLD
backend = group._get_backend(torch.device("cuda"))
assert isinstance(backend, ProcessGroupNCCL) and not isinstance(backend, dist.distributed_c10d.ProcessGroupGloo)
assert backend.options is options and backend.name() == "nccl" and backend.supports_splitting
assert group.bound_device_id == torch.device("cuda:1") and dist.get_backend() == "nccl"
work = dist.all_reduce(torch.ones(1, device="cuda:1"), async_op=True)
work.wait()
assert work.is_completed() and group._get_sequence_number_for_group() == 1
halves = dist.split_group(split_ranks=[[0]])
assert halves.size() == 1
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=5), group)
dist.distributed_c10d._abort_process_group()
assert not dist.is_initialized()
print("ok")
"""
    assert run(code).strip() == "ok"
