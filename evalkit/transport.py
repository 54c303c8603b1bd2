"""Bytes to another program and back, by command or HTTP: in time, capped while reading, and nothing left behind."""

from __future__ import annotations

import http.client
import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from tempfile import TemporaryFile
from urllib.parse import urlsplit

import psutil
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

BYTES, LOG = 1_000_000, 4_000  # of a response at most; of stderr, what is kept of its end


class AgentError(RuntimeError):
    """No usable response: `kind` is a code that quotes nothing, `log` the end of what was written to stderr."""

    def __init__(self, kind: str, detail: str = "", log: str = ""):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.log = kind, detail, log


def by_command(argv: list[str], env: dict[str, str], timeout: float, body: bytes) -> tuple[bytes, str]:
    """(stdout, end of stderr) of one process; its group and every process seen below it end with it. POSIX only."""
    deadline, looked, fault = time.monotonic() + timeout, 0.0, ""
    out, log = bytearray(), bytearray()
    with TemporaryFile() as asked:  # not a pipe: an agent need not read what it is asked
        asked.write(body)
        asked.seek(0)
        try:
            child = subprocess.Popen(argv, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                                     start_new_session=True)  # fmt: skip
        except (OSError, ValueError) as error:
            raise AgentError("start", str(error)) from None

    def pump(wait: float) -> bool:
        """Take what can be read now; was there anything?"""
        nonlocal fault
        for ready, _ in (events := pipes.select(wait)):
            ready.data.extend(chunk := os.read(ready.fd, 65_536))
            if not chunk:
                pipes.unregister(ready.fd)
        del log[: -2 * LOG]
        fault = "oversize" if len(out) > BYTES else "timeout" if time.monotonic() > deadline else ""
        return bool(events)

    with child, selectors.DefaultSelector() as pipes:
        pipes.register(child.stdout, selectors.EVENT_READ, out)  # type: ignore[arg-type]
        pipes.register(child.stderr, selectors.EVENT_READ, log)  # type: ignore[arg-type]
        family = {psutil.Process(child.pid)}
        try:
            while child.poll() is None and not fault:
                pause = 0.02 if pump(0.05 if pipes.get_map() else 0.005) else 0.1
                if time.monotonic() > looked + pause:  # so that who leaves the group is known before its parent ends
                    family, looked = below(family), time.monotonic()
        finally:
            family = below(family) | holding({child.stdout.fileno(), child.stderr.fileno()})  # type: ignore[union-attr]
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            for process in family:
                with suppress(psutil.Error):
                    process.kill()
            child.wait()
        while not fault and pump(0):
            pass
    cut = re.match(rb"\S*" if len(log) == 2 * LOG else b"", log)  # half a word at the front may be half a secret
    end = log[cut.end() if cut else 0 :].decode(errors="replace")
    if fault or child.returncode:
        code = f"exit_{child.returncode}" if child.returncode > 0 else f"signal_{-child.returncode}"
        raise AgentError(fault or code, f"the command ended after {time.monotonic() + timeout - deadline:.1f} s", end)
    return bytes(out), end


def below(family: set[psutil.Process]) -> set[psutil.Process]:
    """The processes and all that descend from them, as far as they can still be found."""
    found = set(family)
    for process in family:
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return found


def holding(pipes: set[int]) -> set[psutil.Process]:
    """The processes that write into these pipes, whoever their parent is by now; where there is no /proc, none."""
    found, ends = set(), {(end.st_dev, end.st_ino) for end in map(os.fstat, pipes)}
    for pid in psutil.pids():
        for name in (f"/proc/{pid}/fd/1", f"/proc/{pid}/fd/2"):
            with suppress(OSError, psutil.Error):
                if ((end := os.stat(name)).st_dev, end.st_ino) in ends:
                    found.add(psutil.Process(pid))
    return found


def by_http(url: str, basic: str, timeout: float, body: bytes) -> tuple[bytes, str]:
    """(body, "") of one POST. No redirect is followed, to whatever host: its status is no answer."""
    parts, data, deadline = urlsplit(url), bytearray(), time.monotonic() + timeout
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    headers |= {"Authorization": f"Basic {basic}"} if basic else {}
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.connect()
        watchdog = threading.Timer(deadline - time.monotonic(), hang_up, [connection.sock])  # however slowly it drips
        watchdog.start()
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", path, body=body, headers=headers, preload_content=False)
            response = connection.getresponse()
            while len(data) <= BYTES and (chunk := response.read1(65_536)):
                data += chunk
        finally:
            watchdog.cancel()
    except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        late = isinstance(error, TimeoutError) or time.monotonic() >= deadline
        raise AgentError("timeout" if late else "connection", f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
    fault = "timeout" if time.monotonic() >= deadline else "oversize" if len(data) > BYTES else ""
    fault = fault if 200 <= response.status < 300 else f"http_{response.status}"
    if fault:
        raise AgentError(fault, data[:300].decode(errors="replace"))
    return bytes(data), ""


def hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
