"""An SSH server on a loopback port that runs commands on this machine, for tests that need no root.

Hosts on one machine have one identity. A host made by `another_python` has a Python that tells another one, as it can
tell other versions: what is compared is what the host says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh


@dataclass
class SshServer:
    """One host; `environment` is that of its commands."""

    port: int
    environment: dict[str, str]
    without: str = ""
    """A program that this host does not have."""
    commands: list[str] = field(default_factory=list)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run a command as sshd does: in a process group of its own, with pipes that close with the channel."""
        command = process.command or "true"
        if self.without:
            command = command.replace(f"{self.without};", "").replace(f"sh '' {self.without}", "sh ''")
        self.commands.append(command)
        pipe = asyncio.subprocess.PIPE
        there = await asyncio.create_subprocess_exec(
            "sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment, start_new_session=True
        )
        self.processes.append(there)
        assert there.stdin is not None
        assert there.stdout is not None
        assert there.stderr is not None
        commands = asyncio.create_task(_into(process.stdin, there.stdin))
        await asyncio.gather(_out_of(there.stdout, process.stdout), _out_of(there.stderr, process.stderr))
        status = await there.wait()
        commands.cancel()
        process.exit(status if status >= 0 else 255)


async def _into(received: asyncssh.SSHReader[bytes], stdin: asyncio.StreamWriter) -> None:
    """The command's stdin closes with the channel, or with its connection."""
    with contextlib.suppress(asyncssh.Error, OSError):
        while data := await received.read(65536):
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _out_of(stream: asyncio.StreamReader, sent: asyncssh.SSHWriter[bytes]) -> None:
    while data := await stream.read(65536):
        with contextlib.suppress(asyncssh.Error, OSError):
            sent.write(data)


@contextlib.asynccontextmanager
async def ssh_server(home: Path, **environment: str) -> AsyncIterator[SshServer]:
    """A server that the owner of `home` may use, which knows its host key."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    server = SshServer(0, {"PATH": os.environ["PATH"], "HOME": str(home), **environment})
    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[host_key],
        authorized_client_keys=str(home / ".ssh" / "authorized_keys"),
        process_factory=server.run,
        encoding=None,
    )
    server.port = acceptor.get_port()
    with (home / ".ssh" / "known_hosts").open("a") as known:
        known.write(f"[127.0.0.1]:{server.port} {host_key.export_public_key().decode()}")
    try:
        yield server
    finally:
        acceptor.close()
        await acceptor.wait_closed()
        for process in server.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


def make_home(folder: Path) -> Path:
    """A home with an SSH key."""
    (folder / ".ssh").mkdir(mode=0o700)
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(folder / ".ssh" / "id_ed25519"))
    (folder / ".ssh" / "id_ed25519").chmod(0o600)
    key.write_public_key(str(folder / ".ssh" / "authorized_keys"))
    return folder


def another_python(path: Path, **facts: str) -> Path:
    """A Python like this one, but for what it tells of its host."""
    changes = "".join(f'-e \'s/"{name}":"[^"]*"/"{name}":"{value}"/\' ' for name, value in facts.items())
    ours = shlex.quote(sys.executable)
    path.write_text(
        f'#!/bin/sh\nif [ "$3" = loadgen.cluster.facts ]; then {ours} "$@" | sed {changes or "-n p"}\n'
        f'else exec {ours} "$@"; fi\n'
    )
    path.chmod(0o755)
    return path
