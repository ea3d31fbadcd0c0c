"""Stand-in for flash_attn.layers."""
