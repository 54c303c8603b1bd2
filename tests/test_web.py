"""fetch_url against a local site: what is refused before a connection, what robots.txt says, what a page becomes."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.records import Call
from evalkit.search import web
from evalkit.search.web import Web, public
from evalkit.tools import ToolError, execute

HTML = {"Content-Type": "text/html; charset=utf-8"}
PLAIN = {"Content-Type": "text/plain"}


class Site(ThreadingHTTPServer):
    """Serves `pages`: path -> (status, headers, body) or a function of the handler; keeps requests and connections."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Page)
        self.pages, self.seen, self.connections = {}, [], 0
        self.url, self.over = f"http://127.0.0.1:{self.server_port}", threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def process_request(self, *client):
        self.connections += 1
        super().process_request(*client)

    def handle_error(self, *client):
        """A client that went away is nothing to report."""

    def asked(self, path):
        return sum(request.path == path for request in self.seen)


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log_message = staticmethod(lambda *line: None)

    def do_GET(self):
        self.server.seen.append(self)
        page = self.server.pages.get(self.path, (404, PLAIN, b"no such page"))
        self.close_connection = True
        if callable(page):
            return page(self)
        status, headers, body = page
        return self.say(status, {"Content-Length": str(len(body))} | headers, body)

    def say(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def drops(handler):
    """The connection ends before a reply."""
    handler.connection.shutdown(socket.SHUT_RDWR)


def drips(handler, start, drop, end):
    """Writes start, then a drop at a time for longer than any patience of these tests, then the end."""
    handler.wfile.write(start)
    with contextlib.suppress(OSError):
        for _ in range(40):
            if handler.server.over.wait(0.05):
                return
            handler.wfile.write(drop)
        handler.wfile.write(end)


@pytest.fixture
def site():
    with Site() as server:
        yield server
        server.over.set()
        server.shutdown()


@pytest.fixture
def fetch(site):
    """fetch(path) -> text of a page of the site, whose host is allowed."""
    allowed = Web(["127.0.0.1"])
    return lambda path: allowed.fetch(site.url + path)


def redirect(url):
    return 302, {"Location": url}, b""


LOOPBACK = [  # {port} is where the site listens
    "http://127.0.0.1:{port}/", "http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://127.1:{port}/",
    "http://[::1]:{port}/", "http://[::ffff:127.0.0.1]:{port}/", "http://0.0.0.0:{port}/", "http://localhost:{port}/",
    "http://LocalHost:{port}/", "http://017700000001:{port}/", "http://0177.0.0.1:{port}/", "http://0x7f.0.0.1:{port}/",
    "http://127.0.1:{port}/", "http://127.255.255.254:{port}/", "http://0:{port}/", "http://[::]:{port}/",
    "http://[::ffff:7f00:1]:{port}/", "http://[64:ff9b::127.0.0.1]:{port}/", "http://[64:ff9b::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/", "http://[::127.0.0.1]:{port}/", "http://[::1%25lo]:{port}/",
    "http://example.org@127.0.0.1:{port}/", "http://example.org:80@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.org/", "http://127.0.0.1:{port}#@example.org/",
    "http://127.0.0.1:{port}?@example.org/", "HTTP://127.0.0.1:{port}/", "  http://127.0.0.1:{port}/  ",
    "http://127.0.0.1.:{port}/", "http://１２７.0.0.1:{port}/", "http://127。0。0。1:{port}/", "https://127.0.0.1:{port}/",
]  # fmt: skip
PRIVATE = [
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://[fd00:ec2::254]/", "http://10.0.0.5/",
    "http://172.16.0.1/", "http://192.168.1.1/", "http://100.64.0.1/", "http://224.0.0.1/", "http://255.255.255.255/",
    "http://[fe80::1]/", "http://[ff02::1]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[::ffff:10.0.0.5]/",
]  # fmt: skip
NO_WEB = [
    "file:///etc/hostname", "file://127.0.0.1:{port}/", "ftp://127.0.0.1:{port}/", "gopher://127.0.0.1:{port}/_GET",
    "dict://127.0.0.1:{port}/", "ws://127.0.0.1:{port}/", "data:text/plain,hello", "javascript:alert(1)",
    "", " ", "http://", "https:///path", "http:///127.0.0.1:{port}/", "//127.0.0.1:{port}/", "127.0.0.1:{port}",
    "http://[", "http://[::1", "http://]/", "http://127.0.0.1:0/", "http://127.0.0.1:99999/", "http://127.0.0.1:x/",
    "http://127.0.0.1:-1/", "http://\x00127.0.0.1:{port}/", "http://127.0.0.1\x00.example.org:{port}/",
    "http://127.0.0.1 :{port}/", "http://127.0.0.1\r\nHost: example.org\r\n:{port}/", "http://a..b:{port}/",
    "http://127.0.0.1:{port}\r\n/", "\x01http://127.0.0.1:{port}/", "http://" + "a" * 70 + ".example:{port}/",
]  # fmt: skip


@pytest.mark.parametrize("url", LOOPBACK + PRIVATE + NO_WEB)
def test_an_address_that_is_not_on_the_public_web_is_refused_before_any_connection(site, url):
    site.pages = {"/robots.txt": (404, PLAIN, b""), "/": (200, PLAIN, b"secret")}
    with pytest.raises(ToolError):
        Web().fetch(url.format(port=site.server_port) if "{port}" in url else url)
    assert site.connections == 0


@pytest.mark.parametrize("url", ["file:///etc/hostname", "http://[", "http://a..b/", "http://127.0.0.1/"])
def test_a_refusal_is_an_observation_of_one_sentence_for_the_model(url):
    step = execute(Web().tools(), Call(id="a", name="fetch_url", args={"url": url}), 1)
    assert not step.ok and step.result and "\n" not in step.result and "Error" not in step.result


NOT_PUBLIC = """
0.0.0.0 10.1.2.3 100.64.0.1 100.127.255.254 127.0.0.1 127.8.8.8 169.254.169.254 172.31.0.1 192.0.0.1 192.0.2.1
192.168.0.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255
:: ::1 ::7f00:1 ::a00:1 fe80::1 fe80::1%eth0 fec0::1 fc00::1 fd00:ec2::254 ff02::1 ff0e::1 2001:db8::1
::ffff:127.0.0.1 ::ffff:a9fe:a9fe 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::7f00:1 2002:7f00:1:: 2002:a00:5::1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_what_is_not_global_unicast_is_not_public(address):
    assert not public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"]
)
def test_a_global_unicast_address_is_public(address):
    assert public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_written_as_ipv6_is_as_public_as_itself(ip):
    high, low = int(ip) >> 16, int(ip) & 0xFFFF
    for spelling in (f"::ffff:{ip}", f"64:ff9b::{ip}", f"2002:{high:x}:{low:x}::1"):
        assert public(spelling) == public(str(ip))


@pytest.fixture
def names(monkeypatch):
    """{host name: addresses} of a name server of our own; every look-up of one is kept in `names.asked`."""

    class Names(dict):
        asked: list[str] = []  # noqa: RUF012

    found, real = Names(), socket.getaddrinfo

    def look_up(host, port, *args, **options):
        if host not in found:
            return real(host, port, *args, **options)
        found.asked = [*found.asked, host]
        if not found[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]])
def test_a_name_of_which_any_address_is_not_public_is_refused_before_any_connection(site, names, addresses):
    names["inside.example"] = addresses
    with pytest.raises(ToolError, match="not on the public web"):
        Web().fetch(f"http://inside.example:{site.server_port}/")
    assert site.connections == 0


def test_the_address_that_was_checked_is_the_one_connected_to(site, names):
    names["site.example"] = ["127.0.0.1"]
    site.pages["/"] = 200, PLAIN, b"hello"
    assert Web(["site.example"]).fetch(f"http://site.example:{site.server_port}/") == "hello"
    assert len(names.asked) == site.connections == 2  # one look-up a connection, so there is no second answer to trust
    assert {page.headers["host"] for page in site.seen} == {f"site.example:{site.server_port}"}


def test_a_host_that_does_not_exist_says_so(names):
    names["gone.example"] = []
    with pytest.raises(ToolError, match=r"no host.*gone\.example"):
        Web().fetch("http://gone.example/")


@pytest.mark.parametrize("allowed", ["localhost", "127.0.0.1.example", "27.0.0.1", "127.0.0.1:80", "*"])
def test_a_host_is_allowed_by_its_whole_name_only(site, allowed):
    with pytest.raises(ToolError):
        Web([allowed]).fetch(site.url)
    assert site.connections == 0


REFUSED = ["http://127.0.0.2:{port}/x", "http://localhost:{port}/x", "http://2130706433:{port}/x", "file:///etc/passwd",
           "http://[::1]:{port}/x", "//0.0.0.0:{port}/x", "http://169.254.169.254/latest/", "ftp://127.0.0.1/x",
           "http://u@0x7f000001:{port}/x", "http://["]  # fmt: skip


@pytest.mark.parametrize("target", REFUSED)
def test_a_redirect_is_checked_like_any_other_address(site, fetch, target):
    site.pages = {"/a": redirect(target.format(port=site.server_port)), "/x": (200, PLAIN, b"secret")}
    with pytest.raises(ToolError):
        fetch("/a")
    assert [page.path for page in site.seen] == ["/robots.txt", "/a"]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(site, fetch, code):
    site.pages = {"/a": (code, {"Location": "b?c=1#d"}, b""), "/b?c=1": (200, PLAIN, b"arrived")}
    assert fetch("/a") == "arrived"


def test_five_redirects_are_followed_and_a_sixth_is_not(site, fetch):
    site.pages = {f"/{n}": redirect(f"/{n + 1}") for n in range(1, 7)} | {"/7": (200, PLAIN, b"arrived")}
    assert fetch("/2") == "arrived"
    with pytest.raises(ToolError, match="redirects"):
        fetch("/1")


def test_a_loop_of_redirects_ends(site, fetch):
    site.pages["/a"] = redirect("/a")
    with pytest.raises(ToolError, match="redirects"):
        fetch("/a")
    assert site.asked("/a") == 6


@pytest.mark.parametrize("path", ["/a\r\nX-Injected: 1", "/a%0d%0aX-Injected: 1", "/a?b=\r\nX-Injected: 1\r\n\r\n"])
def test_a_line_end_in_a_url_or_in_a_redirect_never_writes_a_header(site, fetch, path):
    site.pages["/from"] = redirect(path.replace("\r", "%0d").replace("\n", "%0a"))
    for start in (path, "/from"):
        with contextlib.suppress(ToolError):
            fetch(start)
    assert site.seen and not any("x-injected" in page.headers for page in site.seen)


ROBOTS = (200, PLAIN, b"User-agent: *\nDisallow: /private")


def test_robots_txt_refuses_what_it_disallows_and_allows_the_rest(site, fetch):
    site.pages = {"/robots.txt": ROBOTS, "/private/x": (200, PLAIN, b"secret"), "/public": (200, PLAIN, b"hello")}
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/private/x")
    assert fetch("/public") == "hello" and site.asked("/private/x") == 0


def test_a_redirect_to_what_robots_txt_disallows_is_refused(site, fetch):
    site.pages = {"/robots.txt": ROBOTS, "/a": redirect("/private/x"), "/private/x": (200, PLAIN, b"secret")}
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/a")
    assert site.asked("/private/x") == 0


def test_a_rule_for_our_agent_goes_before_the_rule_for_all(site, fetch):
    site.pages = {"/robots.txt": (200, PLAIN, b"User-agent: *\nDisallow: /\n\nUser-agent: evalkit\nDisallow: /b"),
                  "/a": (200, PLAIN, b"hello"), "/b": (200, PLAIN, b"secret")}  # fmt: skip
    assert fetch("/a") == "hello"
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/b")


def test_robots_txt_that_was_moved_is_obeyed_where_it_is_now(site, fetch):
    site.pages = {"/robots.txt": redirect("/static/robots.txt"), "/static/robots.txt": ROBOTS,
                  "/private/x": (200, PLAIN, b"secret")}  # fmt: skip
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/private/x")


def test_a_missing_robots_txt_allows_everything_and_is_asked_for_once(site, fetch):
    site.pages = {"/private/x": (200, PLAIN, b"hello")}
    assert [fetch("/private/x"), fetch("/private/x")] == ["hello", "hello"] and site.asked("/robots.txt") == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_forbidden_robots_txt_refuses_the_site(site, fetch, status):
    site.pages = {"/robots.txt": (status, PLAIN, b""), "/public": (200, PLAIN, b"hello")}
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/public")
    assert site.asked("/public") == 0


@pytest.mark.parametrize("fault", [(503, HTML, b"<html>down</html>"), (500, PLAIN, b""), drops])
def test_a_robots_txt_that_fails_refuses_this_time_and_is_asked_for_again(site, fetch, fault):
    site.pages = {"/robots.txt": fault, "/public": (200, PLAIN, b"hello")}
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/public")
    assert site.asked("/public") == 0
    site.pages["/robots.txt"] = ROBOTS
    assert fetch("/public") == "hello" and site.asked("/robots.txt") == 2


def test_a_robots_txt_that_takes_too_long_refuses_this_time(site, fetch, monkeypatch):
    monkeypatch.setattr(web, "SECONDS", 0.2)
    site.pages = {"/robots.txt": lambda page: site.over.wait(3), "/public": (200, PLAIN, b"hello")}
    with pytest.raises(ToolError, match=r"robots\.txt"):
        fetch("/public")
    assert site.asked("/public") == 0


def test_one_request_a_second_goes_to_a_public_host(site, monkeypatch):
    pauses = []
    monkeypatch.setattr(web, "public", lambda address: True)
    monkeypatch.setattr(web.time, "sleep", pauses.append)
    site.pages = {"/a": redirect("/b"), "/b": (200, PLAIN, b"hello")}
    assert Web().fetch(site.url + "/a") == "hello"
    assert [round(pause) for pause in pauses] == [0, 1, 2]  # robots.txt, /a and /b, had none of them been waited for


CONTENT = [
    ("application/pdf", b"%PDF-1.7 \xff\xfe", "application/pdf", "%PDF"),
    ("application/octet-stream", b"\x89PNG", "application/octet-stream", "PNG"),
    ("image/png", b"\x89PNG", "image/png", "\x89"),
    ("application/zip", b"PK\x03\x04", "application/zip", "PK"),
]


@pytest.mark.parametrize(("kind", "body", "says", "never"), CONTENT)
def test_what_is_not_text_is_told_by_type_and_size_without_its_bytes(site, fetch, kind, body, says, never):
    site.pages["/a"] = 200, {"Content-Type": kind}, body
    text = fetch("/a")
    assert says in text and str(len(body)) in text and never not in text


TEXTS = [
    ({"Content-Type": "text/html; charset=iso-8859-1"}, b"caf\xe9", "café"),
    ({"Content-Type": 'Text/HTML; Charset="ISO-8859-1"'}, b"<p>caf\xe9</p>", "café"),
    ({"Content-Type": "text/html"}, b'<meta charset="iso-8859-1"><p>caf\xe9</p>', "café"),
    ({"Content-Type": "text/html"}, "<p>café</p>".encode(), "café"),
    ({"Content-Type": "text/plain; charset=windows-1252"}, b"\x93caf\xe9\x94", "“café”"),
    ({"Content-Type": "text/plain; charset=utf-16"}, "café".encode("utf-16"), "café"),
    ({"Content-Type": "text/plain; charset=no-such"}, "café".encode(), "café"),
    ({"Content-Type": "text/html; charset=no-such"}, "<p>café</p>".encode(), "café"),
    ({"Content-Type": "text/markdown"}, b"# Head", "# Head"),
    ({"Content-Type": "application/json"}, b'{"a":1}', '{"a":1}'),
    ({}, b"plain", "plain"),
    ({"Content-Type": "text/plain"}, b"bad \xff byte", "bad � byte"),
]


@pytest.mark.parametrize(("headers", "body", "wanted"), TEXTS)
def test_text_is_read_in_its_declared_charset(site, fetch, headers, body, wanted):
    site.pages["/a"] = 200, headers, body
    assert fetch("/a") == wanted


@pytest.mark.parametrize("status", [400, 403, 404, 410, 500, 503])
@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/json"])
def test_an_error_page_is_marked_and_keeps_what_it_says(site, fetch, status, kind):
    site.pages["/a"] = status, {"Content-Type": kind}, b"Access to this page"
    text = fetch("/a")
    assert "error page" in text and str(status) in text and text.endswith("Access to this page")


def test_an_error_that_is_no_text_is_marked_too(site, fetch):
    site.pages["/a"] = 404, {"Content-Type": "application/octet-stream"}, b"\x00"
    assert "404" in fetch("/a")


def test_html_becomes_markdown_without_scripts_and_navigation(site, fetch):
    site.pages["/a"] = (
        200,
        HTML,
        b"""<!doctype html><title>T</title><style>p { color: red }</style><nav>Menu</nav>
        <script>steal()</script><h2>Timeouts</h2><p>It is <b>30</b> <a href="/b">seconds</a>.</p>
        <ul><li>one<li>two</ul><pre>a  b</pre><noscript>enable</noscript><iframe>frame</iframe><form>Log in</form>""",
    )
    text = fetch("/a")
    assert all(part in text for part in ("## Timeouts", "**30**", "[seconds](/b)", "* one", "a  b"))
    assert not any(part in text for part in ("steal", "color", "Menu", "enable", "frame", "Log in", "<"))


def test_a_page_nested_beyond_reason_is_an_observation(site, monkeypatch):
    site.pages["/a"] = 200, HTML, b"<div>" * 20_000 + b"deep"
    step = execute(Web(["127.0.0.1"]).tools(), Call(id="a", name="fetch_url", args={"url": site.url + "/a"}), 1)
    assert step.result


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_ends_at_the_limit(site, fetch, monkeypatch, chunked):
    monkeypatch.setattr(web, "BYTES", 1_000)

    def page(handler):
        if not chunked:
            return handler.say(200, PLAIN | {"Content-Length": "200000"}, b"a" * 200_000)
        chunks = (b"64\r\n" + b"a" * 100 + b"\r\n") * 2_000 + b"0\r\n\r\n"
        return handler.say(200, PLAIN | {"Transfer-Encoding": "chunked"}, chunks)

    site.pages["/a"] = page
    assert fetch("/a") == "a" * 1_000


OK, CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n", b"Transfer-Encoding: chunked\r\n"
DRIPS = {
    "chunks": (OK + CHUNKED + b"\r\n", b"1\r\na\r\n", b"3\r\nEND\r\n0\r\n\r\n"),
    "a body of known length": (OK + b"Content-Length: 43\r\n\r\n", b"a", b"END"),
    "a body until the end": (OK + b"Connection: close\r\n\r\n", b"a", b"END"),
    "headers": (OK, b"X-A: b\r\n", b"Content-Length: 3\r\n\r\nEND"),
}


@pytest.mark.parametrize("drip", DRIPS)
def test_a_page_that_drips_is_left_before_its_end(site, fetch, monkeypatch, drip):
    monkeypatch.setattr(web, "SECONDS", 0.3)
    site.pages["/a"] = lambda handler: drips(handler, *DRIPS[drip])
    try:
        text = fetch("/a")
    except ToolError as error:
        text = str(error)
    assert "END" not in text


@pytest.mark.parametrize("times", [1, 2])
def test_a_gzip_bomb_stays_within_the_limit(site, fetch, monkeypatch, times):
    monkeypatch.setattr(web, "BYTES", 10_000)
    bomb = b"a" * 50_000_000
    for _ in range(times):
        bomb = gzip.compress(bomb, 6)
    site.pages["/a"] = 200, PLAIN | {"Content-Encoding": ", ".join(["gzip"] * times)}, bomb
    tracemalloc.start()
    text = fetch("/a")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text == "a" * 10_000 and peak < 5_000_000


def test_a_body_that_is_not_what_its_encoding_says_is_an_observation(site, fetch):
    site.pages["/a"] = 200, PLAIN | {"Content-Encoding": "gzip"}, b"not gzip"
    with pytest.raises(ToolError):
        fetch("/a")


def test_we_say_who_we_are_and_send_neither_cookies_nor_credentials(site, monkeypatch):
    site.pages = {"/a": (200, PLAIN | {"Set-Cookie": "id=1"}, b"hello")}
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    browser = Web(["127.0.0.1"])
    for _ in range(2):
        assert browser.fetch(f"http://user:pass@127.0.0.1:{site.server_port}/a") == "hello"
    for page in site.seen:
        assert page.headers["user-agent"].startswith("evalkit/") and "contact" in page.headers["user-agent"]
        assert page.headers["host"] == f"127.0.0.1:{site.server_port}" and len(page.headers.get_all("host")) == 1
        assert not {"cookie", "authorization", "proxy-authorization", "referer"} & {h.lower() for h in page.headers}


def test_a_path_and_a_query_beyond_ascii_are_encoded(site, fetch):
    site.pages["/caf%C3%A9?q=%C3%BC%20x"] = 200, PLAIN, b"hello"
    assert fetch("/café?q=ü x#part") == "hello"


def test_a_long_page_is_cut_by_its_tool_and_says_so(site):
    site.pages["/a"] = 200, PLAIN, b"\n".join(b"line %d" % n for n in range(1000))
    call = Call(id="a", name="fetch_url", args={"url": site.url + "/a"})
    step = execute(Web(["127.0.0.1"]).tools(page_limit=500), call, 1)
    assert step.ok and step.truncated and len(step.result) < 700 and "of 1000" in step.result
