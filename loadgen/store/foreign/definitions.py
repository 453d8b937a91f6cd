"""How other load generators define the figures that vramp reads from their files, where they differ from vramp.

One row a tool; every table that shows such a figure shows its definition with it.
"""

from __future__ import annotations

from collections.abc import Mapping

ROLE_CHUNK = "; a first chunk with only the role counts, too"
_ALL_TIME = "of all requests over the whole time, including ramp-in and tail"
_UNDIVIDED = "gaps between chunks, not divided by the tokens of a chunk, including the client's own waits"
_TPOT = "(E2E - TTFT) / (output tokens - 1) of each request, from the same times"

DEFINITIONS: Mapping[str, Mapping[str, str]] = {
    "vllm bench serve": {
        "throughput": _ALL_TIME,
        "ttft": "from before the request is encoded to when the client has read the first chunk, including the "
        "client's own waits: at 256 streams on 2 cores 147 ms where 57 were true",
        "tpot": _TPOT,
        "itl": _UNDIVIDED,
        "e2e": "to when the client has read the last chunk with output, from the same beginning as TTFT",
    },
    "vllm-rs bench serve": {
        "throughput": "`steady state`: of the time from when the streams first reached a share of --max-concurrency to "
        f"when they last fell below it, one output token counted per chunk; other loads: {_ALL_TIME}",
        "ttft": "from before the request is encoded to when the client has read the first chunk with a choice, also if "
        "it has only the role, including the client's own waits; `steady state`: of requests sent in that time",
        "tpot": f"{_TPOT}; `steady state`: of requests sent in that time, also where they ended after it",
        "itl": f"{_UNDIVIDED}; left out for `steady state`, for which its file has none",
        "e2e": "to when the client has read the last chunk with a choice, from the same beginning as TTFT; left out "
        "for `steady state`, for which its file has none",
    },
    "SGLang bench_serving": {
        "throughput": f"{_ALL_TIME}; output tokens are the server's count, or those asked for where it gives none",
        "ttft": "from before the request is encoded, including connecting where that is needed, to when the client has "
        "read the first chunk with text, including the client's own waits",
        "tpot": _TPOT,
        "itl": "gaps between chunks, divided by the tokens of a chunk only with the backend `sglang`, including the "
        "client's own waits",
        "e2e": "to when the client has read the last chunk of the stream, which may come after the last token",
    },
    "guidellm": {
        "throughput": "means of rates over its measured time, which leaves out warm-up only if that was asked for",
        "ttft": "from when the headers are sent to when the client has read the first line with output, by the wall "
        "clock: excluding encoding and connecting, including the client's own waits: at 256 streams on 2 cores 79 ms "
        "where 57 were true",
        "tpot": "guidellm's inter-token latency, (last token - first token) / (output tokens - 1), whose mean and "
        "percentiles are over tokens and not over requests",
        "itl": "guidellm keeps no single gaps, only their mean for each request",
        "e2e": "to the end of the stream, which comes after the last token",
    },
    "aiperf": {
        "throughput": "from the first request to the last response, including ramp-in and tail; output tokens are "
        "counted by the client's tokenizer, unless it was told to use the server's usage",
        "ttft": "from before the request is sent, including connecting, to when the client has read the first chunk "
        "with output, including the client's own waits: at 256 streams on 2 cores 100 ms where 57 were true",
        "tpot": "aiperf's inter-token latency, (E2E - TTFT) / (output tokens - 1)",
        "itl": "aiperf's inter-chunk latency: gaps between chunks, not divided by the tokens of a chunk",
        "e2e": "to when the client has read the last chunk with output, from the same beginning as TTFT",
    },
    "genai-perf": {
        "throughput": "from the first request to the last response of perf_analyzer's measurement; output tokens are "
        "counted by the client's tokenizer",
        "ttft": "from perf_analyzer's request to its first response, including the client's own waits",
        "tpot": "genai-perf's inter-token latency, (E2E - TTFT) / (output tokens - 1)",
        "e2e": "to perf_analyzer's last response",
    },
    "inference-perf": {
        "throughput": "of completed requests, from the first request sent to the last answer, including ramp-in and "
        "tail; output tokens are counted by the client's tokenizer, unless it was told to use the server's usage",
        "ttft": "to when the client has read the first chunk with `content`, so that reasoning before it counts as "
        "waiting, including the client's own waits",
        "tpot": "(last token - first token) / (output tokens - 1) of each request",
        "itl": "every token of a chunk has the time of the chunk: within a chunk gaps are 0, between chunks whole",
        "e2e": "to the end of the stream, which comes after the last token",
    },
    "InferenceX": {
        "throughput": "tokens of the whole time, including ramp-in and tail, measured per GPU and multiplied by the "
        "row's GPUs; a row does not say how many requests were sent or for how long: ten a stream are assumed, and "
        "ISL and OSL are the most that a request had: each is drawn from a range up to them",
        "ttft": "as `vllm bench serve`, whose client it uses",
        "tpot": "as `vllm bench serve`",
        "itl": "as `vllm bench serve`",
        "e2e": "as `vllm bench serve`",
    },
    "llm-d benchmark": {
        "throughput": "as the load generator that the report names defines it",
        "ttft": "as the load generator that the report names defines it",
        "tpot": "as the load generator that the report names defines it",
        "itl": "as the load generator that the report names defines it",
        "e2e": "as the load generator that the report names defines it",
    },
}
