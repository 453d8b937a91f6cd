"""Every reader of bytes from outside, once: what it reads, what its format knows, and what it may raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from loadgen.errors import ClusterError, ProfileError, ResultError, ServerError, TelemetryError
from loadgen.stream.events import EventTooLong
from tests.fuzz import documents, machine, wire

CORPUS = Path(__file__).parent / "corpus"
_Errors = tuple[type[Exception], ...]


class Reader(NamedTuple):
    name: str  # its folder in the corpus
    read: Callable[[bytes], object]
    """Returns something of the kind of what was read; `AssertionError` is a broken invariant."""
    refuses: _Errors = ()
    words: tuple[bytes, ...] = ()


def _words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


_HTTP = (b"HTTP/1.1 ", b"\r\n\r\n", b"\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")
_SSE = (b"data: ", b"data:", b"event: ", b": ", b"id: 1\n", b"\n\n", b"\r\n\r\n", b"[DONE]", b"\r")
_CHUNK = _words(
    '"choices" "delta" "content" "text" "finish_reason" "usage" "prompt_tokens" "completion_tokens" "tool_calls" '
    '"error" "type" "response" "output_tokens" "response.completed" "response.failed" "response.output_text.delta"'
)
_LINE = _words(
    '"type":"Ticked" "type":"RunStarted" "type":"StageStarted" "type":"StageEnded" "type":"RunFinished" '
    '"type":"Happened" "t_s" "span_s" "stages" "latency" "packed" "count" "sum_us" "held" "open_sent" "bins"'
)
_PROFILE = _words(
    '[server] [load] [plan] [slo] [variants.x] [server.args] [server.env] [[x]] engine="attach" url="http://x" '
    'isl= osl= rate= concurrency= duration="1s" data= kind="ladder" ttft_p99_ms= api_key_env= unset=["load.isl"] '
    '"uniform:1:9" "lognormal:256:0.5" "0.5*8+0.5*9" 1979-05-27 """ \'\'\' 0x 1e400 inf nan'
)
_IMPORT = _words(
    "vllm serve docker run -e -tp= --model --api-key= export A= A+=( ${A[@]} ${A:-8} $(x) if then fi && || <<E model: "
    "model_id: base_args: variants: features: modes: hardware_overrides: framework: search-space: conc-list: &a *a !!x"
)
_GPU = _words('"type":"Sampled" "type":"Opened" "type":"Refused" "gpus" "t_s" "index" "power_w" "missing" "processes"')
_LOG = _words("Traceback Error: RuntimeError INFO ERROR pid=1 10% 1/0 /0 shards took version HIP SIGKILL \x1b[0m \r")
_TRACE = _words('"timestamp" "input_length" "output_length" "hash_ids" TIMESTAMP ContextTokens GeneratedTokens , " Z')
_TALK = _words('"conversations" "value" "prompt" "messages" "role" "content" "output_tokens" [ ] , {')
_SESSIONS = _words(
    '"requests" "t" "in" "out" "hash_ids" "api_time" "type":"subagent" "block_size" "session_id" "timestamp" "delay" '
    '"input_length" "output_length" "resourceSpans" "scopeSpans" "spans" "spanId" "parentSpanId" "attributes" "key" '
    '"value" "startTimeUnixNano" "endTimeUnixNano" "chat" "invoke_agent" "gen_ai.input.messages" [ ] , { } 1e999'
)
_ACCEPTANCE = _words(
    '"type":"AcceptBegan" "type":"PhaseBegan" "type":"RunMade" "type":"Counted" "type":"FactFound" "type":"PhaseEnded" '
    '"type":"Judged" "demands" "bound" "margin" "rule":"mean" "rule":"share" "trials" "folder":"../x" "spread" "hours"'
)

READERS = (
    # Engines.
    Reader("stream", wire.stream, (), _HTTP + _SSE + _CHUNK),
    Reader("events", wire.events, (EventTooLong,), _SSE),
    Reader("engine-metrics", wire.engine_metrics, (ServerError,), _words('{engine="1"} le="+Inf" _bucket _sum # TYPE')),
    Reader("server-answers", wire.server_answers, (ServerError,), _words('"data" "id" "max_model_len" "tokens"')),
    Reader("score", wire.score, (ValueError,), _words('"prompt_logprobs" "logprob" "token_logprobs" "choices"')),
    Reader("canary-answer", wire.canary_answer, (ValueError,), _SSE + _CHUNK),
    Reader("log", documents.log, (), _LOG),
    Reader("startup", documents.startup, (), _LOG),
    Reader("diagnosis", documents.diagnosis, (), _LOG),
    # Clients of the simulator, watchers, scrapers.
    Reader("simulator", wire.simulator, (), _HTTP + _CHUNK + _words("GET POST /v1/completions /tokenize /truth")),
    Reader("snapshots", wire.snapshots, (ResultError,), _words('"phase":"done" "stages" "server" "point"')),
    Reader("operations", wire.operations, (), _words('"type":"SetConcurrency" "type":"FollowPlan" "steers":true')),
    Reader("metrics-port", wire.metrics_port, (), _HTTP + _words("GET POST /metrics Accept: Host: gzip name[]=x")),
    # What people hand over.
    Reader("profile", documents.profile, (ProfileError,), _PROFILE),
    Reader("override", documents.override, (ProfileError,), _PROFILE),
    Reader("import", documents.imported, (ProfileError,), _IMPORT),
    Reader("lengths", documents.lengths, (ValueError,), _words("uniform: normal: lognormal: zipf: * + : each in s m")),
    Reader("config", documents.config, (ProfileError,), _words("theme= [keys] cockpit.more= ctrl+x")),
    Reader("dataset", documents.dataset, (ProfileError,), _TALK + _TRACE),
    Reader("sharegpt", documents.sharegpt, (ProfileError,), _TALK),
    Reader("json-lines", documents.json_lines, (ProfileError,), _TALK),
    Reader("text-lines", documents.text_lines, (ProfileError,)),
    Reader("trace", documents.trace, (ProfileError,), _TRACE),
    Reader("sessions", documents.sessions, (ProfileError,), _SESSIONS),
    Reader("questions", documents.questions, (ProfileError,), _words('"question" "answer" #### 1,000 -3.5')),
    Reader("capture", documents.capture, (ProfileError,), _GPU),
    Reader("model-config", documents.model_config, (), _words('"text_config" "num_attention_heads" "rope_scaling"')),
    Reader("weight-index", machine.weight_index, (OSError, ValueError, RecursionError), _words('"weight_map"')),
    # Runs, of this vramp and others.
    Reader("journal", documents.journal, (ResultError,), _LINE),
    Reader("journal-part", documents.journal_part, (), (b"\x1f\x8b\x08", b"\n")),
    Reader("recovered", documents.recovered, (ResultError,), _LINE),
    Reader("replayed", documents.replayed, (ResultError,), _LINE),
    Reader("result", documents.result, (ResultError,), _LINE),
    Reader("foreign", documents.result, (ResultError,), _words('"benchmarks" "ttfts" "duration" "completed" "date"')),
    Reader("summary", documents.summary, (ResultError,), _words('"schema" "stages" "latency_ms" "quote"')),
    Reader("histogram-log", documents.histogram_log, (ResultError,), _words("Tag= #[Stage , .000 HISTFAAAA")),
    Reader("histogram", documents.histogram, (ResultError,)),
    Reader("sweep", documents.sweep, (ResultError,)),
    Reader("acceptance", documents.acceptance, (ResultError,), _ACCEPTANCE),
    Reader("certificate", documents.certificate, (ResultError,), _ACCEPTANCE),
    # vramp's own processes and notes.
    Reader("tick", wire.tick, (), _LINE),
    Reader("telemetry-line", wire.telemetry_line, (TelemetryError,), _GPU),
    Reader("telemetry-orders", machine.telemetry_orders, (), (b"true", b"false")),
    Reader("guard-events", wire.guard_events, (), _words('"event" "pid" "start_ticks" "processes"')),
    Reader("server-record", machine.server_record, (), _words('"mark" "guard" "tree" "container" "pid"')),
    Reader("installed", machine.installed, (), _words('"flags" "version" "variables"')),
    Reader("start-times", documents.start_times, (), _words('"total_s" "milestones_s"')),
    # Hosts of a cluster.
    Reader("host-messages", wire.host_messages, (ValueError, RecursionError)),
    Reader("host-facts", wire.host_facts, (ClusterError,), _words("vramp-python vramp-version")),
    Reader("host-answer", wire.host_answer, (ClusterError,), _words('"pid" "address" "problem"')),
    # The kernel, drivers and their tools.
    Reader("gpu-table", machine.gpu_table),
    Reader("amd-files", machine.amd_files, (TelemetryError,), (b"\0", b" GT/s", b": 2100Mhz *", b"ue: 1", b"junction")),
    Reader("processes", machine.processes, (), _words("(a) ) ( VRAMP_SERVER= : .")),
    Reader("cpu-lists", machine.cpu_lists, (ValueError,), _words("0-7 ,16 - :")),
    Reader("small-files", machine.small_files, (), _words("oom_kill 7 . 6.4.1-83")),
    Reader("pci-config", machine.pci_config),
    Reader("kernel-log", documents.kernel_log, (), _words("6,1234,5678000,-; oom-kill: Killed process 7")),
    Reader("docker-id", machine.docker_id),
    Reader("masked", documents.mask, (), _words("Bearer hf_ sk- api_key= --token PASSWORD: http://u:p@h")),
)


def folder_of(name: str) -> Path:
    return CORPUS / name


def corpus_of(name: str) -> list[bytes]:
    """Its seeds, and every input that failed once."""
    return [path.read_bytes() for path in sorted(folder_of(name).glob("*"))]


def outcome_of(reader: Reader, data: bytes) -> str:
    """What came of it, in a word; raises what the reader may not raise."""
    try:
        made = reader.read(data)
    except reader.refuses as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return (
            f"{type(error).__name__} {trace.tb_lineno if trace is not None else 0} {_NUMBER.sub('', str(error))[:16]}"
        )
    return f"{type(made).__name__} {made!r}" if isinstance(made, str | int | bytes) else type(made).__name__


_NUMBER = re.compile(r"\d+|/\S*")
