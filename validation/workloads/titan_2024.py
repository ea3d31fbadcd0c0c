"""For torchtitan 0.2.2, what its models launched in 2024: flash attention, and the RMSNorm of the time.

`--experimental.custom_import titan_2024` (fused norm, as the Triton kernel was) or `titan_2024_plain_norm`. Also registers
the Llama 2 models of that time, with vocabulary and sizes of torchtitan's train_configs/llama2_13b.toml and llama2_70b.toml.
"""

from __future__ import annotations

from dataclasses import replace

from torch.nn.attention import SDPBackend
from torchtitan.models.attention import ScaledDotProductAttentionWrapper
from torchtitan.models.llama3 import get_train_spec
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.protocols.train_spec import register_train_spec

# Today's torchtitan asks for cuDNN's attention first; F.scaled_dot_product_attention took flash attention then.
ScaledDotProductAttentionWrapper.sdpa_backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

LLAMA2 = {
    "13B": TransformerModelArgs(dim=5120, n_layers=40, n_heads=40, vocab_size=32000),
    "70B": TransformerModelArgs(
        dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=4096, vocab_size=32000
    ),
}
register_train_spec("llama2", replace(get_train_spec(), model_args=LLAMA2))
