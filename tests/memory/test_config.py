"""Parsing of PYTORCH_CUDA_ALLOC_CONF: what is accepted, and the wording of what is not."""

import json
import subprocess
import sys

import pytest

from phantora.memory.emulator import settings_error

RIGHT = [
    "",
    "max_split_size_mb:20",
    " max_split_size_mb : 200 , expandable_segments:False",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
    "expandable_segments:True",
    "max_non_split_rounding_mb:40",
    "pinned_use_background_threads:True",
]
WRONG = [
    "max_split_size_mb:10",
    "max_non_split_rounding_mb:5",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[300:4]",
    "garbage_collection_threshold:1.5",
    "garbage_collection_threshold:0",
    "expandable_segments:true",
    "large_segment_size_mb:10",
]
# torch raises these with other words (an internal assertion), or only in builds with CUDA.
WRONG_TOO = {
    "no_such_option:1": "Unrecognized key 'no_such_option' in CUDA allocator config.",
    "max_split_size_mb": "Index out of bounds in ConfigTokenizer",
    "max_split_size_mb:x": "Expected a number in allocator config but got 'x'",
    "max_split_size_mb;20": "Unrecognized key|Index out of bounds",
    "backend:other": "Unknown allocator backend",
    "per_process_memory_fraction:2": "per_process_memory_fraction is invalid",
    "roundup_power2_divisions:[256:1": "Index out of bounds",
}

ASK_TORCH = """
import json, sys, torch
def error(text):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except ValueError as e:
        return str(e).split(chr(10))[0]
print(json.dumps([error(text) for text in json.load(sys.stdin)]))
"""


@pytest.mark.parametrize("settings", RIGHT)
def test_right_settings(settings):
    assert settings_error(settings) is None


@pytest.mark.parametrize("settings", [*WRONG, *WRONG_TOO])
def test_wrong_settings(settings):
    error = settings_error(settings)
    assert error is not None
    if settings in WRONG_TOO:
        assert any(part in error for part in WRONG_TOO[settings].split("|"))


def test_options_without_effect_are_accepted():
    options = [
        "release_lock_on_cudamalloc:True",
        "pinned_num_register_threads:8,expandable_segments:True",
        "backend:native",
        "expandable_segments_reserve_by_class:[a:0.5,b:40G],max_split_size_mb:40",
    ]
    assert [settings_error(option) for option in options] == [None] * len(options)


@pytest.mark.torch
def test_torch_answers_the_same():
    pytest.importorskip("torch")
    # In a process of its own, because the settings are torch's global state.
    done = subprocess.run(
        [sys.executable, "-c", ASK_TORCH], input=json.dumps(RIGHT + WRONG), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [settings_error(settings) for settings in RIGHT + WRONG]
