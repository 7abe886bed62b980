"""The reference scenario: Llama-3.1-8B in fp16 on one A100 80 GB, 45 tokens/s alone and 120 with eight requests.

Decoding alone at 45 tokens/s is a step of 22.2 ms, three times the 7.4 ms that reading the weights takes at the sheet's
bandwidth; eager code with unfused kernels and a cache that is copied reaches that (35 to 40 % of the bandwidth is usual
for one). Eight requests at 120 tokens/s get 8 tokens in 66.7 ms: as many tokens as three such steps, so the requests go
on in three groups of at most three that take turns, as with a batch limit or several workers. In both the GPU is busy
more than nine tenths of the time, which is all that GPU-Util shows.

What could be wrong: the shares are set so that the steps take as long as reported (the prompt: 60 ms for 512 tokens);
they were not measured on a card.
"""

from __future__ import annotations

from dataclasses import replace

from traceanalyzer.simulate.scenario import Costs, Scenario

_COSTS = Costs(
    matrix_compute=0.50,
    matrix_bandwidth=0.41,
    attention_compute=0.40,
    attention_bandwidth=0.40,
    vector_bandwidth=0.60,
)

#: One request: a decode step takes 22 ms, 45 tokens/s.
ALONE = Scenario(
    model="llama-3.1-8b",
    gpu="a100-sxm4-80gb",
    batch=1,
    prompt=512,
    output=200,
    dtype="fp16",
    fused=False,
    kv_cache="cat",
    costs=_COSTS,
)

#: Eight requests in groups of three, three and two, in turn: three steps for 8 tokens, 120 tokens/s.
EIGHT = replace(ALONE, batch=8, together=False, group_size=3)
