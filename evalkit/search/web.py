"""`fetch_url`: one web page, politely and safely. A page may be hostile; so may the address a model asks for.

Only http and https, only addresses that are global unicast, each checked and then connected to as checked, on every
redirect anew; robots.txt is obeyed; one request a second per host; 10 s and 2 MB a page; text and HTML only.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, urljoin, urlsplit

import urllib3
from pydantic import Field
from urllib3.connection import HTTPConnection, HTTPSConnection

from ..tools import Tool, ToolError, tool

AGENT = "evalkit/0.1 (research on search agents; contact: the operator of this run)"
SECONDS, BYTES, REDIRECTS, PAUSE = 10.0, 2_000_000, 5, 1.0
TEXT = ("text/", "application/json", "application/xhtml", "application/xml")
UNICAST = ipaddress.ip_network("2000::/3")
SAFE = "/:;,=&?@!$'()*+~%[]#"
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Web:
    """The web as one run sees it; `allow_hosts` names hosts that may be reached although they are not public."""

    def __init__(self, allow_hosts: Sequence[str] = ()):
        self.allow_hosts, self.gate = frozenset(allow_hosts), threading.Lock()
        self.next_request: dict[str, float] = {}
        self.robots: dict[str, str] = {}

    def tools(self, page_limit: int = 30_000) -> tuple[Tool, ...]:
        def fetch_url(url: Annotated[str, Field(description="http(s) address of a page")]) -> str:
            """Fetch one web page as markdown. robots.txt is obeyed; PDFs and images are not read."""
            return self.fetch(url)

        return (tool(fetch_url, limit=page_limit),)

    def fetch(self, url: str) -> str:
        """The readable text of a page; raises ToolError with what the model should know."""
        status, headers, body, url = self._follow(url, robots=True)
        kind = headers.get("content-type", "text/plain").lower()
        if kind.startswith(TEXT):
            text = readable(body, kind)
        else:
            text = f"{url} is {kind.partition(';')[0]}, {len(body)} bytes; only text and HTML can be read."
        return text if status < 400 else f"This is an error page (HTTP {status}), not content:\n\n{text[:2000]}"

    def _follow(self, url: str, robots: bool) -> tuple[int, dict[str, str], bytes, str]:
        """The last answer of a chain of redirects, each hop of which is checked like the first, and its address."""
        for _ in range(REDIRECTS + 1):
            if robots:
                self._obey_robots(url)
            status, headers, body = self._get(url)
            if not 300 <= status < 400 or not headers.get("location"):
                return status, headers, body, url
            try:
                url = urljoin(url, headers["location"])
            except ValueError:
                raise ToolError("The page redirects to an address that is none. Use another page.") from None
        raise ToolError(f"More than {REDIRECTS} redirects; the page cannot be read.")

    def _obey_robots(self, url: str) -> None:
        """Raise ToolError where robots.txt refuses. 404 allows, 401 and 403 refuse, a failure is not remembered."""
        from protego import Protego

        parts = split(url)
        site = f"{parts.scheme}://{parts.netloc}"
        if site not in self.robots:
            try:
                status, _, body, _ = self._follow(f"{site}/robots.txt", robots=False)
            except ToolError as error:
                raise ToolError(f"robots.txt of {site} could not be read, so no page is fetched: {error}") from None
            if status >= 500 or status == 429:
                raise ToolError(f"robots.txt of {site} answered {status}, so the page is not fetched this time.")
            refused = "User-agent: *\nDisallow: /" if status in (401, 403) else ""
            self.robots[site] = body.decode("utf-8", "replace") if status == 200 else refused
        if not Protego.parse(self.robots[site]).can_fetch(url, AGENT):
            raise ToolError(f"robots.txt of {site} does not allow this page. Use another source.")

    def _get(self, url: str) -> tuple[int, dict[str, str], bytes]:
        """One request to an address that has been checked: (status, headers in lower case, at most BYTES of body)."""
        parts = split(url)
        host, port = (
            (parts.hostname or "").encode("idna").decode(),
            parts.port or {"http": 80, "https": 443}[parts.scheme],
        )
        address = self._checked(host, port)
        with self.gate:
            now = time.monotonic()
            start = max(now, self.next_request.get(host, 0.0))
            self.next_request[host] = start + (0.0 if host in self.allow_hosts else PAUSE)
        time.sleep(start - now)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        names: dict[str, Any] = {"server_hostname": host, "assert_hostname": host} if kind is HTTPSConnection else {}
        path = quote(parts.path or "/", safe=SAFE) + (f"?{quote(parts.query, safe=SAFE)}" if parts.query else "")
        named = host if parts.port is None else f"{host}:{port}"
        sent = {
            "Host": named,
            "User-Agent": AGENT,
            "Accept": "text/html, text/*;q=0.9",
            "Accept-Encoding": "gzip, deflate",
        }
        body, connection = b"", kind(address, port, timeout=SECONDS, **names)
        try:
            connection.connect()
            watchdog = threading.Timer(SECONDS, _hang_up, [connection.sock])  # however slowly the page drips
            watchdog.start()
            try:
                connection.request("GET", path, headers=sent, preload_content=False)
                response = connection.getresponse()
                while len(body) <= BYTES and (chunk := response.read1(65_536, decode_content=True)):
                    body += chunk
            finally:
                watchdog.cancel()
            return response.status, {k.lower(): v for k, v in response.headers.items()}, body[:BYTES]
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            raise ToolError(f"{host} could not be read ({type(error).__name__}). Try another page.") from None
        finally:
            connection.close()

    def _checked(self, host: str, port: int) -> str:
        """The address to connect to: every address of the host must be public, or the host named in allow_hosts."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise ToolError(f"There is no host {host!r}, or no network.") from None
        addresses = [str(info[4][0]) for info in found]
        if host not in self.allow_hosts and not all(map(public, addresses)):
            raise ToolError("That address is not on the public web, so it is not fetched.")
        return addresses[0]


def split(url: str):  # type: ignore[no-untyped-def]  # urllib's own type is long
    """The parts of an http(s) URL; raises ToolError for any other."""
    try:
        parts = urlsplit(url)
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and not re.search(r"[\x00-\x1f\x7f]", url)
        ):
            parts.hostname.encode("idna")
            return parts
    except ValueError:
        pass
    raise ToolError("That is not an http(s) URL. Give one such as https://example.org/page.")


def _hang_up(sock: Any) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def public(address: str) -> bool:
    """Is it global unicast? For IPv6 that is 2000::/3; what carries an IPv4 address is judged by that address too."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    if ip in NAT64 or ip.ipv4_mapped:
        return public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    inner = ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    return ip in UNICAST and ip.is_global and (inner is None or public(str(inner)))


def readable(body: bytes, kind: str) -> str:
    """The body as text, HTML as markdown without scripts and navigation."""
    charset = kind.partition("charset=")[2].strip(" \"'").partition(";")[0] or "utf-8"
    try:
        b"".decode(charset)
        "".encode(charset)
    except (LookupError, ValueError):
        charset = "utf-8"
    if "html" not in kind:
        return body.decode(charset, "replace")
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    page = BeautifulSoup(body, "lxml", from_encoding=charset if "charset=" in kind else None)
    for tag in page(["script", "style", "noscript", "nav", "header", "footer", "svg", "iframe", "form", "template"]):
        tag.decompose()
    try:
        text = MarkdownConverter(heading_style="ATX").convert_soup(page)
    except RecursionError:  # nested deeper than any page for readers
        text = page.get_text("\n")
    return re.sub(r"\n\s*\n", "\n\n", text).strip()
