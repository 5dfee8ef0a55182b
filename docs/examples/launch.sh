#!/bin/sh
# One node of 8 H20, as four stages of two: a long-context prefill-heavy server. A prompt of 128K and its answer are
# more than the 131072 positions of the model: the variable says that this is meant.
export SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1
python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct \
    --pp-size 4 --tp-size 2 --chunked-prefill-size 8192 --page-size 64 \
    --context-length 135168 --max-running-requests 64 --mem-fraction-static 0.85
