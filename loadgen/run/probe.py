"""Learns what must be known about a server before load is sent: its model, its limits, the vocabulary for prompts.

Everything here goes through httpx and nothing is timed. `identify` sends nothing that an engine computes. `probe` sends
the first request, so that a refused key, an unknown field or a broken model is one clear message before the load, and
not a table of failures. The findings go to the workers: by `worker_settings` for the whole run, by `templates_of` for a
stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadgen.cores import usable_cores
from loadgen.errors import ServerError
from loadgen.plan.stage import Stage
from loadgen.profile.load import Load
from loadgen.profile.schema import Profile
from loadgen.server.vllm.client import ServerClient, api_key, pick_model
from loadgen.stream.request import (
    Cancellation,
    RequestTemplate,
    ServerAddress,
    common_fields,
    endpoint_url,
    host_and_port,
    model_shares,
    own_fields,
    request_template,
)
from loadgen.worker.messages import Configure, Vocabulary, prompts_of
from loadgen.worker.realtime import realtime_budget
from loadgen.workload.prompts import ANCHOR, FALLBACK_IDS, WORDS, text_prompts

TemplatesOf = Callable[[Stage], Sequence[RequestTemplate]]  # the request templates of a stage, one per server
_REPEATS = 8
_FEWEST_WORDS = 4
_FEWEST_IDS = 32
_CALIBRATIONS = 4

_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_PLAIN_USAGE = {"stream_options": {"include_usage": True}}


class Served(msgspec.Struct, frozen=True):
    """A server's identity."""

    base_url: str
    address: ServerAddress
    model: str
    max_model_len: int | None
    version: str | None
    shortest_model_len: int | None = None  # over all models that receive requests


class Accepted(msgspec.Struct, frozen=True):
    """What a server accepts."""

    vocabulary: Vocabulary
    options: dict[str, Any]  # additional fields of the request body that this server accepts
    notes: tuple[str, ...] = ()  # what it does not accept, and what is done instead


async def identify(client: ServerClient, model: str | None, load: Load) -> Served:
    """Query a server's identity; raises `ServerError`."""
    address = await resolve_target(client.base_url)
    models = await client.models()
    served = pick_model(models, model)
    asked = [pick_model(models, name) for name in load.models] or [served]
    return Served(
        base_url=client.base_url,
        address=address,
        model=served.id,
        max_model_len=served.max_model_len,
        version=await client.version(),
        # An adapter reports no length: it has its base's.
        shortest_model_len=min((one.max_model_len for one in asked if one.max_model_len), default=served.max_model_len),
    )


async def probe(client: ServerClient, served: Served, load: Load) -> Accepted:
    """Find out what a server accepts by sending it one request; raises `ServerError`."""
    notes: list[str] = []
    if load.endpoint == "completions":
        vocabulary = Vocabulary(ids=await _safe_ids(client, served.model, notes))
    else:
        words, overhead = await _safe_words(client, served.model, notes)
        vocabulary = Vocabulary(words=words, overhead=overhead)
    options = await _accepted_options(client, served.model, load, vocabulary, notes)
    await _check_models(client, [name for name in load.models if name != served.model], load, vocabulary, options)
    return Accepted(vocabulary, options, tuple(notes))


async def probe_twin(client: ServerClient, first: Served, accepted: Accepted, load: Load) -> Served:
    """Check that another instance serves the same as the first, and send it one request; raises `ServerError`."""
    twin = await identify(client, first.model, load)
    if twin.max_model_len != first.max_model_len:
        raise ServerError(
            f"{client.base_url}: max_model_len is {twin.max_model_len}, but {first.max_model_len} on {first.base_url}; "
            "instances of one server must be the same: are their devices?"
        )
    await _check_models(client, load.models or [first.model], load, accepted.vocabulary, accepted.options)
    return twin


async def resolve_target(url: str) -> ServerAddress:
    """Resolve a URL's host to the first address that answers; raises `ServerError`."""
    host, port = host_and_port(url)
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
        raise ServerError(f"{url}: no such host: {getattr(error, 'strerror', None) or error}") from error
    reason = "no address"
    for family, _, _, _, address in addresses:
        try:
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(str(address[0]), port, family=family)
        except OSError as error:  # includes TimeoutError
            reason = error.strerror or "no answer within 5 s"
            continue
        writer.close()
        with contextlib.suppress(OSError):  # it answered; errors in closing do not matter
            await writer.wait_closed()
        tls_name = host if urlsplit(url).scheme == "https" else None
        return ServerAddress(family=int(family), ip=str(address[0]), port=port, tls_name=tls_name)
    raise ServerError(f"{url}: nothing listens there ({reason}); start the server, or check host and port")


# Prompts.


async def _safe_ids(client: ServerClient, model: str, notes: list[str]) -> tuple[int, ...]:
    """Ids of ordinary text in the server's own vocabulary: never special tokens, never out of range."""
    ids = await client.tokenize_text(model, " ".join(WORDS))
    if ids is None:
        notes.append("the server has no /tokenize: prompts are made of the token ids 300 to 999")
        return FALLBACK_IDS
    distinct = sorted(set(ids))
    if len(distinct) >= _FEWEST_IDS:
        return tuple(distinct)
    # If the tokenizer yields too few distinct tokens for words, letters will do.
    letters = await client.tokenize_text(model, " ".join("abcdefghijklmnopqrstuvwxyz0123456789,.:;!?"))
    return tuple(sorted({*distinct, *(letters or [])}))


async def _safe_words(client: ServerClient, model: str, notes: list[str]) -> tuple[tuple[str, ...], int]:
    """Words that are one token in any position, and the tokens that the chat template adds."""
    anchor = await client.tokenize_text(model, ANCHOR)
    if anchor is None:
        notes.append("the server has no /tokenize: a word is taken for a token, the real ISL is the server's usage")
        return tuple(WORDS), 1
    single = await _one_token_words(client, model, len(anchor))
    words = single if len(single) >= _FEWEST_WORDS else tuple(WORDS)
    if words != single:
        notes.append("hardly any word is one token in this vocabulary: the real ISL is the server's usage")
    return words, await _template_overhead(client, model, words)


async def _one_token_words(client: ServerClient, model: str, anchor_tokens: int) -> tuple[str, ...]:
    """The words that add exactly one token each, however often they are repeated after the anchor."""
    limit = asyncio.Semaphore(16)

    async def is_one_token(word: str) -> bool:
        async with limit:
            tokens = await client.tokenize_text(model, ANCHOR + f" {word}" * _REPEATS)
            return len(tokens or []) == anchor_tokens + _REPEATS

    single = await asyncio.gather(*(is_one_token(word) for word in WORDS))
    return tuple(word for word, is_single in zip(WORDS, single, strict=True) if is_single)


async def _template_overhead(client: ServerClient, model: str, words: tuple[str, ...]) -> int:
    """A chat prompt's tokens besides its words, adjusted until a prompt of known length comes out right."""
    overhead, wanted = 0, 256
    for _ in range(_CALIBRATIONS):
        text = json.loads(text_prompts(words, 0, overhead=overhead)(0, 0, wanted))
        tokens = await client.tokenize_messages(model, [{"role": "user", "content": text}])
        excess = len(tokens or []) - wanted
        if excess == 0:
            break
        overhead += excess
    return max(0, overhead)


# The first request.


async def _accepted_options(
    client: ServerClient, model: str, load: Load, vocabulary: Vocabulary, notes: list[str]
) -> dict[str, Any]:
    """The richest set of body fields that the server accepts, found by sending short requests."""
    eos = {"ignore_eos": True} if load.ignore_eos else {}
    attempts: list[dict[str, Any]] = [{**eos, **_USAGE}, {**eos, **_PLAIN_USAGE}, _PLAIN_USAGE, {}]
    if load.endpoint == "responses":
        # The last event of `/v1/responses` has the usage, requested or not.
        attempts = [eos, {}] if eos else [{}]
    refusal = ""
    for options in attempts:
        status, answer = await _first_request(client, model, load, vocabulary, options)
        if status == 200:
            missing = [name for name in attempts[0] if name not in options]
            if refusal:
                notes.append(f"the server refused some fields, left out: {', '.join(missing) or 'continuous usage'}")
            return options
        refusal = refusal or f"HTTP {status}: {answer}"
        if status not in (400, 422):
            break
    raise ServerError(f"{client.base_url}: the first request failed: {refusal}")


async def _check_models(
    client: ServerClient, models: Iterable[str], load: Load, vocabulary: Vocabulary, options: dict[str, Any]
) -> None:
    """Send each model one request; raises `ServerError` for the first that does not answer."""
    for model in models:
        status, answer = await _first_request(client, model, load, vocabulary, options)
        if status != 200:
            raise ServerError(f"{client.base_url}: {model}: the first request failed: HTTP {status}: {answer}")


async def _first_request(
    client: ServerClient, model: str, load: Load, vocabulary: Vocabulary, options: dict[str, Any]
) -> tuple[int, str]:
    isl = min(16, load.isl) if isinstance(load.isl, int) else 16
    # The first prompt takes 20 ms: numpy.random is loaded, and the text that prompts are cut from is made.
    prompt = await asyncio.to_thread(lambda: prompts_of(vocabulary, 0)(0, 0, isl))
    fields = common_fields(
        load.endpoint, model=model, temperature=load.temperature, options=options, extra=load.extra_body
    )
    body = fields | own_fields(load.endpoint, json.loads(prompt), 1)
    return await client.try_request(endpoint_url("", load.endpoint), body, timeout_s=load.timeout_s)


def templates_of(
    profile: Profile, model: str, accepted: Accepted, base_urls: Iterable[str], stage: Stage
) -> list[RequestTemplate]:
    """The request templates, one per server, which differ only in the address."""
    load = profile.load
    fields = common_fields(
        load.endpoint,
        model=None if load.models else model,
        temperature=load.temperature,
        options=accepted.options,
        extra=load.extra_body,
    )
    key = api_key(profile.server)
    cancel = None if load.cancel is None else Cancellation(share=load.cancel.share, after_s=load.cancel.after)
    own = {"models": model_shares(load.models), "cancel": cancel, "exact_osl": load.ignore_eos}
    templates = [request_template(url, load.endpoint, fields, osl=stage.osl, api_key=key) for url in base_urls]
    return [msgspec.structs.replace(template, **own) for template in templates]


def worker_settings(
    profile: Profile,
    address: ServerAddress,
    vocabulary: Vocabulary,
    seed: int,
    *,
    workers: int,
    cpus: Iterable[int],
    rows: bool,
) -> Configure:
    """The settings shared by all (at most `workers`) workers of a run; with `rows` they send a row per stream."""
    load = profile.load
    return Configure(
        address=address,
        vocabulary=vocabulary,
        seed=seed,
        timeout_s=load.timeout_s,
        stall_timeout_s=load.stall_timeout_s,
        connect_timeout_s=load.connect_timeout_s,
        source_addresses=tuple(load.source_addresses),
        cpus=tuple(sorted(cpus)),
        realtime_share=realtime_budget(usable_cores(), workers) if load.realtime else 0.0,
        sample_answers=profile.canary.enabled,
        rows=rows,
    )
