"""Arguments of scripts/megatron_pretrain.py for the smallest GPT that the tests use."""

from __future__ import annotations

from pathlib import Path

PRETRAIN = str(Path(__file__).parent / "scripts" / "megatron_pretrain.py")
PRETRAIN_ARGUMENTS = (
    "--num-layers 4 --hidden-size 256 --ffn-hidden-size 688 --num-attention-heads 8 --group-query-attention "
    "--num-query-groups 4 --seq-length 128 --max-position-embeddings 128 --position-embedding-type rope "
    "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 "
    "--hidden-dropout 0 --micro-batch-size 2 --global-batch-size 4 --train-iters 2 --lr 1e-4 --bf16 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 2047 --split 100,0,0 --eval-iters 0 --eval-interval 1000 "
    "--log-interval 1 --num-workers 0 --distributed-timeout-minutes 5 --no-persist-layer-norm "
    "--no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-swiglu-fusion --no-rope-fusion "
    "--no-bias-gelu-fusion"
).split()
