"""Around `import torch`: order of the hooks, child processes, exit. Each test is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from armed import PROPERTIES

from phantora.intercept import boot

pytestmark = pytest.mark.torch
_SITE = Path(boot.__file__).parent / "site"

ARM = f"""
import sys
from phantora.intercept import boot
boot.arm(boot.BootConfig(num_devices=4, device_properties={PROPERTIES!r}, parts=("patches",)))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def output(code: str, **environment: str) -> str:
    result = run(code, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_torch_finds_the_devices() -> None:
    code = "import torch; c = torch.cuda; print(c.is_available(), c.device_count(), c.get_device_name(3))"
    assert output(ARM + code) == f"True 4 {PROPERTIES['name']}"


def test_arming_comes_before_torch() -> None:
    result = run("import torch\n" + ARM)
    assert "must be armed before `import torch`" in result.stderr


def test_the_devices_of_a_process_obey_cuda_visible_devices() -> None:
    code = ARM + "import torch; print(torch.cuda.device_count())"
    assert output(code, CUDA_VISIBLE_DEVICES="2,0") == "2"
    assert output(code, CUDA_VISIBLE_DEVICES="") == "4"
    assert output(code, CUDA_VISIBLE_DEVICES="1,9,2") == "1"


def test_callbacks_run_when_torch_is_complete() -> None:
    code = f"""
from phantora.intercept import boot
def ready():
    import torch
    print('ready', torch.nn.Linear is not None)
boot.arm(boot.BootConfig(device_properties={PROPERTIES!r}, parts=(), on_torch_ready=[ready]))
import torch
print('imported')
"""
    assert output(code) == "ready True\nimported"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_devices": 65}, "num_devices"),
        ({"host_speed": 0.0}, "host_speed"),
        ({"device_properties": {}}, "device_properties"),
    ],
)
def test_a_wrong_configuration_names_the_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        boot.BootConfig(**{"device_properties": PROPERTIES, **fields})


def test_sitecustomize_runs_the_one_it_hides(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hidden one')\n")
    assert output("print('script')", PYTHONPATH=f"{_SITE}{os.pathsep}{tmp_path}") == "hidden one\nscript"


EXIT_RACE = """
import torch
x = torch.empty(100, 100, device='cuda:3')
sys.modules['phantora_native'].start_thread_that_needs_the_gil_at_exit()
class Slow:  # keeps finalization busy without the GIL for a moment
    def __del__(self):
        import time
        time.sleep(0.2)
sys.slow = Slow()
sys.exit(7)
"""


def test_a_thread_that_wants_the_gil_at_exit_does_not_abort_the_process() -> None:
    for _ in range(2):
        assert run(ARM + EXIT_RACE).returncode == 7


def test_without_the_guard_that_thread_does_abort_it() -> None:
    """Shows that the test above creates the dangerous state: the guard's handler is replaced by abort()."""
    unguard = """
import ctypes
abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p)
ctypes.CDLL('libstdc++.so.6')._ZSt13set_terminatePFvvE(abort)
"""
    assert run(ARM + "import torch\n" + unguard + EXIT_RACE).returncode == -signal.SIGABRT


def test_threads_of_autograd_do_not_disturb_the_exit() -> None:
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import armed
armed.arm()
import torch
for device in range(4):
    x = torch.empty(10, 10, device=f'cuda:{{device}}', requires_grad=True)
    (x @ x).relu().sum().backward()
sys.exit(3)
"""
    assert run(code).returncode == 3
