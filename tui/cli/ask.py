"""`vramp ask`: sends one prompt to a server and prints the streamed answer and its figures."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from loadgen.errors import LoadError, ProfileError
from loadgen.format import harmless
from loadgen.places import TRUST
from tui.cli.options import add_shared, parser_of, print_status, printable

if TYPE_CHECKING:
    from loadgen.run.ask import Answered

_EPILOG = """\
PROFILE names the server: its url, or the server of that profile that vramp started and that still runs. Without PROMPT
it is read from stdin. The answer goes to stdout, its figures to stderr.

exit codes: 0 the answer is complete; 1 it is not; 2 usage; 3 the server was not reached, or refused the prompt
"""
_MAX_TOKENS = 512
_TIMEOUT_S = 600.0


def ask(options: argparse.Namespace) -> int:
    """Print the answer and its figures; return 0 if it is complete."""
    words = list(options.words)
    if options.url is None and not words:
        raise ProfileError("vramp ask: which server? Name a profile, or give --url")
    url = options.url if options.url is not None else _url_of(words.pop(0), options)
    if len(words) > 1:
        raise ProfileError("vramp ask: the prompt is one word of the command line: put it in quotes")
    if words:
        prompt = words[0]
    elif sys.stdin.isatty():
        sys.stderr.write("prompt: ")
        sys.stderr.flush()
        prompt = sys.stdin.readline().rstrip("\n")
    else:
        prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if not prompt.strip():
        raise ProfileError("vramp ask: the prompt is empty")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ProfileError("vramp ask: the prompt is not valid UTF-8") from None
    return asyncio.run(_ask(url, prompt, options))


def ask_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp ask", "Send one prompt and print the streamed answer.", _EPILOG)
    parser.add_argument("words", nargs="*", metavar="PROFILE", help="the profile (not with --url), then the prompt")
    parser.add_argument("--url", help="the server")
    add_shared(parser, "--model", "--api-key-env", TRUST)
    parser.add_argument("--endpoint", choices=("chat", "completions"), help="(default: chat where the server has it)")
    parser.add_argument("--max-tokens", metavar="N", type=_count, default=_MAX_TOKENS, help="(default: %(default)s)")
    return parser


def _count(text: str) -> int:
    if not (text.isdecimal() and len(text) < 9 and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: expected a number of tokens")
    return int(text)


def _url_of(name: str, options: argparse.Namespace) -> str:
    """The server of a profile: attached, or started by vramp and still running; raises `ProfileError`."""
    from loadgen.profile.document import load_profile
    from loadgen.server.process.records import list_servers
    from tui.catalog import find_profile

    profile = load_profile(find_profile(name))
    if options.api_key_env is None:
        options.api_key_env = profile.server.api_key_env
    if profile.server.attached:
        return profile.server.attached[0]
    running = [record for record in list_servers() if record.profile.partition("+")[0] == profile.name]
    if not running:
        raise ProfileError(f"{name}: no server of it runs here; start one (vramp {name}), or give --url")
    return running[0].url


async def _ask(url: str, prompt: str, options: argparse.Namespace) -> int:
    from loadgen.profile.document import build_profile
    from loadgen.profile.load import Load
    from loadgen.run.ask import ENDPOINTS, ask
    from loadgen.run.probe import identify
    from loadgen.server.vllm.client import ServerClient, api_key

    server = {"engine": "attach", "url": url}
    if options.api_key_env is not None:
        server["api_key_env"] = options.api_key_env
    settings = build_profile({"server": server}, where="vramp ask").server
    key = api_key(settings)
    async with ServerClient(settings.attached[0], key, api_key_env=options.api_key_env) as client:
        served = await identify(client, options.model, Load(), [])
        max_tokens: int = options.max_tokens
        if served.max_model_len is not None and max_tokens > served.max_model_len // 2:
            max_tokens = max(1, served.max_model_len // 2)
            print_status(f"vramp: at most {max_tokens:,} tokens: half of max_model_len, {served.max_model_len:,}")
        answered = await ask(
            client,
            served.model,
            prompt,
            endpoints=[options.endpoint] if options.endpoint else ENDPOINTS,
            max_tokens=max_tokens,
            timeout_s=_TIMEOUT_S,
            on_text=_print_part,
        )
    sys.stdout.write("\n")
    sys.stdout.flush()
    print_status(_figures(served.model, answered))
    if answered.failed is not None:
        print_status(f"vramp: the answer is not complete: {answered.failed}")
        return LoadError.exit_code
    return 0


def _print_part(text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def _figures(model: str, answered: Answered) -> str:
    """One line: what was measured, and what is unknown."""
    first = "TTFT not known (it was not streamed)" if answered.ttft_ms is None else f"TTFT {answered.ttft_ms:,.1f} ms"
    tokens = "tokens not known" if answered.output_tokens is None else f"{answered.output_tokens:,} tokens"
    parts = [f"{tokens} in {answered.e2e_ms:,.0f} ms"]
    if answered.tpot_ms is not None:
        parts.append(f"TPOT {answered.tpot_ms:,.2f} ms")
    if answered.input_tokens is not None:
        parts.append(f"prompt {answered.input_tokens:,} tokens")
    parts.append(f"finish reason {answered.finish_reason or 'not given'}")
    return harmless(", ".join([model, first, *parts])).replace("\n", " ")
