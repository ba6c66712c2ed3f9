"""GPT-2 XL (1.5B) on OpenWebText, for a slice of TPUs or several nodes of GPUs: gpt2.py, larger.

data      tlite prepare Skylion007/openwebtext corpora/openwebtext
command   tlite train gpt2_xl --folder corpora/openwebtext   (in each process)
plan      tlite plan gpt2_xl --devices 64
          tlite plan gpt2_xl --tpu v5e:8x8   (needs the extra tpu)
result    not trained here. midGPT (github.com/AllanYangZhou/midGPT) states a loss of about
          2.42 after 25,000 updates of its own 1.5B, whose settings differ; and 2.80 for its 124M.
"""

from experiments.gpt2 import experiment as gpt2
from tlite import override

experiment = override(
    gpt2,
    {
        "name": "gpt2_xl",
        "model.width": 1600,
        "model.num_blocks": 48,
        "model.num_heads": 25,
        "training.batch_size": 512,
        "training.per_device_batch_size": 2,
    },
)
