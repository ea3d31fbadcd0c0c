"""The training steps that are measured on two GPUs, and simulated beside it (validation/two_gpus.py)."""

# name: (ranks, script and options, seconds)
TRAINING = {
    "ddp2-gpt2-124m-b8-s1024": (2, ["train_ddp_gpt2.py"], 90),
    "fsdp2-llama-1b-b2-s4096": (2, ["train_fsdp_llama.py", "--model", "llama-1b"], 90),
    "tp2-llama-1b-b2-s4096": (2, ["train_tp_llama.py"], 90),
    "pp2-llama-1b-m8-s4096": (2, ["train_pp_llama.py"], 90),
    "fsdp2-llama2-7b-8layers-b2-s4096-bf16": (2, ["train_fsdp_llama.py", "--model", "llama2-7b-8layers", "--pure-bf16"], 90),
    "tp2-llama-1b-b8-s4096": (2, ["train_tp_llama.py", "--batch", "8"], 90),
    "fsdp2-llama-1b-b1-s2048": (2, ["train_fsdp_llama.py", "--batch", "1", "--seq", "2048"], 90),
    "ddp2-gpt2-124m-b32-s1024": (2, ["train_ddp_gpt2.py", "--batch", "32"], 90),
    "ddp1-gpt2-124m-b8-s1024": (1, ["train_ddp_gpt2.py"], 60),
    "fsdp1-llama-1b-b2-s4096": (1, ["train_fsdp_llama.py", "--model", "llama-1b"], 60),
    "tp1-llama-1b-b2-s4096": (1, ["train_tp_llama.py"], 60),
    "ddp2-gpt2-124m-b1-s256": (2, ["train_ddp_gpt2.py", "--batch", "1", "--seq", "256"], 60),
}
