# SPDX-License-Identifier: MIT
"""This file asks the page's server as it should be asked, and as it should not: raw bytes, other sites, other names."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from explorer.conftest import ARGUMENTS, Running, link
from playwright.sync_api import expect

import layernorm
from layernorm.explorer import server
from layernorm.explorer.page import TYPES, one_file, static_files
from layernorm.spec.errors import ArgumentError

ROOT = Path(layernorm.__file__).parents[2]
COMMAND = [sys.executable, "-m", "layernorm", "explore"]
CALL = json.dumps([{"call": "layer_norm", "x": [1, 2], "options": {}, "type": "float64"}]).encode()


def raw(port, sent, *, seconds=60):  # where nothing is compiled yet, the first norm takes long
    """Send bytes; give the status, the headers and the body of the answer, and whether the server then closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as at:
        at.sendall(sent)
        got = b""
        while True:
            head, _, body = got.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if length and len(body) >= int(length[1]):
                break
            part = at.recv(65536)
            if not part:
                break
            got += part
        at.settimeout(5 if b"connection: close" in head.lower() else 0.02)
        try:
            closed = at.recv(1) == b""
        except ConnectionResetError:
            closed = True
        except TimeoutError:
            closed = False
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int(lines[0].split()[1]), headers, body, closed


def get(run, path="/", *more, host=None, method="GET", body=b""):
    host = host or f"127.0.0.1:{run.port}"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *more]
    if method == "POST" and not any(line.startswith(("Transfer-Encoding", "Content-Length")) for line in more):
        lines.append(f"Content-Length: {len(body)}")
    return raw(run.port, "\r\n".join([*lines, "", ""]).encode() + body)


def compute(run, *more, body=CALL, token=True, **said):
    held = [f"X-Token: {run.served.token}"] if token else []
    return get(run, "/api/compute", *held, *more, method="POST", body=body, **said)


@pytest.fixture(scope="module")
def small():
    """A server that takes little and waits for a short time."""
    run = Running(most_bytes=1000, seconds=0.6)
    yield run
    run.stop()


# -- who may ask --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "LocalHost:{}", "[::1]:{}"])
def test_its_own_names_are_answered(running, host):
    assert get(running, host=host.format(running.port))[0] == 200


@pytest.mark.parametrize("host", [
    "evil.test:{}", "127.0.0.1.evil.test:{}", "127.0.0.1:1", "localhost", "127.0.0.1", "127.0.0.1:{}.evil.test",
    "localhost:{}:{}", "evil@127.0.0.1:{}", "0.0.0.0:{}", "127.1:{}", "[::]:{}", "localhost.:{}", " ",
])  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/about"])
def test_another_name_is_misdirected_and_the_connection_closed(running, host, path):
    status, headers, body, closed = get(running, path, f"X-Token: {running.served.token}",
                                        host=host.format(running.port, running.port))  # fmt: skip
    assert (status, headers["connection"], closed) == (421, "close", True)
    assert json.loads(body) == {"error": "this server answers to its own address only; open the link that was printed."}


@pytest.mark.parametrize(("sent", "status"), [
    (b"GET / HTTP/1.0\r\n\r\n", 421),
    # RFC 9112 has these refused as no HTTP at all, and so the parser does before we see them
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: 127.0.0.1:PORT\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.test\r\n\r\n", 400),
])  # fmt: skip
def test_no_name_and_two_names_are_refused(running, sent, status):
    answer = raw(running.port, sent.replace(b"PORT", str(running.port).encode()))
    assert (answer[0], answer[3]) == (status, True)
    assert b"<html" not in answer[2]


def test_a_name_that_was_allowed_is_answered_with_the_port_and_as_it_was_written():
    hosts = server.allowed_hosts(8817, ["Lab.example", "tunnel:9000"])
    assert {"lab.example", "lab.example:8817", "tunnel:9000", "127.0.0.1:8817"} <= hosts
    assert not {"localhost", "127.0.0.1", "evil.test:8817"} & hosts


def test_what_computes_needs_the_token(running):
    status, _, body, _ = compute(running)
    assert status == 200
    assert json.loads(body)["results"][0] == pytest.approx([-0.99998, 0.99998], abs=1e-6)


@pytest.mark.parametrize("headers", [
    [], ["X-Token: "], ["X-Token: nothing"], ["X-Token: {}x"], ["X-Token: {}", "X-Token: {}"], ["X-Token: \xff"],
    ["Cookie: token={}"], ["Authorization: Bearer {}"],
])  # fmt: skip
def test_a_token_that_is_missing_or_wrong_is_refused(running, headers):
    said = [line.format(running.served.token) for line in headers]
    for path, method in (("/api/about", "GET"), ("/api/compute", "POST"), ("/api/nothing", "GET")):
        status, _, body, closed = get(running, path, *said, method=method, body=CALL)
        assert (status, closed) == (403, True)
        assert json.loads(body)["error"].startswith("the token is missing or of another run")
    assert get(running, f"/api/about?token={running.served.token}")[0] == 403


def test_tokens_are_long_and_each_run_has_its_own():
    tokens = {server.Served(frozenset()).token for _ in range(9)}
    assert len(tokens) == 9
    assert all(len(token) == 32 for token in tokens)


@pytest.mark.parametrize(("headers", "status"), [
    (["Origin: http://127.0.0.1:{}"], 200),
    (["Sec-Fetch-Site: same-origin"], 200),
    (["Sec-Fetch-Site: none"], 200),
    (["Origin: null"], 403),
    (["Origin: http://evil.test"], 403),
    (["Origin: http://127.0.0.1"], 403),
    (["Origin: http://localhost:{}"], 403),  # asked as 127.0.0.1, which is another origin
    (["Origin: http://127.0.0.1:{}", "Origin: http://evil.test"], 403),
    (["Sec-Fetch-Site: cross-site"], 403),
    (["Sec-Fetch-Site: same-site"], 403),
    (["Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"], 403),
])  # fmt: skip
def test_another_site_may_not_ask_even_with_the_token(running, headers, status):
    assert compute(running, *(line.format(running.port) for line in headers))[0] == status


# -- what is answered ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [
    "/../pyproject.toml", "/%2e%2e/server.py", "/..%2fserver.py", "/views/../../server.py", "/views/%2e%2e/page.js",
    "/index.html%00", "/%00", "//etc/passwd", "//evil.test/index.html", "/etc/passwd", "/C:/Windows/win.ini",
    "/..\\server.py", "/views", "/views/", "/index.html/", "/server.py", "/?/../index.html/x"[1:], "/page%2ejs%3f",
    "http://evil.test/index.html",
])  # fmt: skip
def test_there_is_nothing_beyond_the_files_of_the_page(running, path):
    status, _, body, _ = get(running, path if path.startswith(("/", "h")) else f"/x{path}")
    assert status == 404
    assert json.loads(body).keys() == {"error"}


def test_every_file_is_answered_as_what_it_is(running):
    held = static_files()
    assert {"index.html", "page.js", "page.css", "views/shift.js"} <= held.keys()
    for name, content in held.items():
        status, headers, body, _ = get(running, f"/{name}")
        assert (status, body) == (200, content)
        assert headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert TYPES["js"] == "text/javascript; charset=utf-8"
    assert get(running, "/")[2] == held["index.html"]


def test_every_answer_has_every_header(running):
    expected = {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    answers = [get(running), get(running, "/no"), get(running, "/", host="evil.test"), get(running, "/api/about"),
               compute(running), compute(running, body=b"{"), get(running, "/page.js", method="POST")]  # fmt: skip
    assert [answer[0] for answer in answers] == [200, 404, 421, 403, 200, 400, 405]
    for _, headers, _, _ in answers:
        assert expected.items() <= headers.items()
        assert "server" not in headers
        assert not [name for name in headers if name.startswith("access-control")]


def test_no_request_names_a_file(running):
    """Paths stand in no route and in no field: what looks like one is an unknown word."""
    for asked in ({"path": "/etc/passwd"}, [{"call": "/etc/passwd"}], [{"call": "layer_norm", "x": "/etc/passwd",
                  "options": {}, "type": "float64"}]):  # fmt: skip
        status, _, body, _ = compute(running, body=json.dumps(asked).encode())
        assert status == 400
        assert b"root:" not in body
    assert get(running, "/api/about?path=/etc/passwd", f"X-Token: {running.served.token}")[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[" * 100_000, b'"x"', b"\xff\xfe", b"9" * 5000, b"[[]]"])
def test_wrong_input_is_a_sentence(running, body):
    status, _, answer, _ = compute(running, body=body)
    assert status == 400
    assert json.loads(answer)["error"].endswith("reload the page.")
    assert b"Traceback" not in answer


def test_a_long_body_is_refused_before_it_is_read(small):
    started = time.monotonic()
    status, _, body, closed = compute(small, "Content-Length: 1001", body=b"")
    assert (status, closed) == (413, True)
    assert time.monotonic() - started < 0.5  # nothing was waited for
    assert json.loads(body)["error"].startswith("the request is larger than 1000 bytes")
    assert compute(small, f"Content-Length: {'9' * 19}", body=b"")[0] == 413
    assert compute(small, f"Content-Length: {'9' * 30}", body=b"")[0] in (400, 413)
    assert compute(small, "Content-Length: 1000", body=CALL.ljust(1000))[0] == 200


def test_a_body_that_says_no_length_is_read_up_to_the_bound(small):
    chunk = b"1f4\r\n" + b" " * 500 + b"\r\n"
    status, _, _, closed = compute(small, "Transfer-Encoding: chunked", body=chunk * 3)
    assert (status, closed) == (413, True)
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)
    assert compute(small, "Transfer-Encoding: chunked", body=whole)[0] == 200


def test_a_slow_body_is_not_waited_for(small):
    started = time.monotonic()
    status, _, body, closed = compute(small, "Content-Length: 900", body=b"[")
    assert (status, closed) == (408, True)
    assert 0.5 < time.monotonic() - started < 3
    assert json.loads(body)["error"] == "the request took longer than 0.6 seconds; send it again."


def test_connections_that_say_nothing_are_bounded_and_closed(small):
    silent = [socket.create_connection(("127.0.0.1", small.port), timeout=5) for _ in range(70)]
    silent[0].sendall(b"GET / HTTP/1.1\r\nHost: ")  # a head without an end is no more than silence
    time.sleep(0.1)
    assert get(small)[0] == 503
    assert [at.recv(1) for at in silent] == [b""] * 70
    for at in silent:
        at.close()
    assert get(small)[0] == 200


def test_a_long_head_is_refused(running):
    with socket.create_connection(("127.0.0.1", running.port), timeout=5) as at:
        at.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nX: {'x' * 20_000}".encode())
        assert at.recv(100).startswith(b"HTTP/1.1 400")


# -- on this machine ----------------------------------------------------------------------------------------


def test_the_default_port_is_tried_first_then_the_next_then_any(monkeypatch):
    first = server.listening("127.0.0.1", 0)
    at = first.getsockname()[1]
    monkeypatch.setattr(server, "PORT", at)
    second = server.listening("127.0.0.1", None)
    assert at < second.getsockname()[1] < at + server.TRIES
    monkeypatch.setattr(server, "TRIES", 1)
    third = server.listening("127.0.0.1", None)
    assert third.getsockname()[1] not in (0, at)
    with pytest.raises(ArgumentError, match=rf"127\.0\.0\.1:{at}: Address already in use; choose another with --port"):
        server.listening("127.0.0.1", at)
    for held in (first, second, third):
        held.close()


def test_it_binds_this_machine_alone(running):
    assert running.bound.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ArgumentError, match=r"70000 is no port; give --port a number from 0 to 65535"):
        server.listening("127.0.0.1", 70000)
    with pytest.raises(ArgumentError, match=r"192\.0\.2\.1:0: .*; choose another with --port"):
        server.listening("192.0.2.1", 0)


def explore(*arguments, **environment):
    held = {k: v for k, v in os.environ.items() if k not in ("SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**held, **environment}
    )


def ended(process):
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_a_port_that_is_taken_and_an_address_for_all_are_refused():
    with server.listening("127.0.0.1", 0) as held:
        at = held.getsockname()[1]
        busy, remote = explore("--port", str(at)), explore("--host", "0.0.0.0", "--port", "0")
        both = explore("--html", "x.html", "x.npy")
        taken = f"layernorm: 127.0.0.1:{at}: Address already in use; choose another with --port.\n"
        assert ended(busy) == (2, "", taken)
    said = "layernorm: 0.0.0.0 can be reached from other machines; add --allow-remote if they may ask.\n"
    assert ended(remote) == (2, "", said)
    assert ended(both)[0] == 2


def test_remote_is_warned_of_and_the_token_stays(tmp_path):
    process = explore("--host", "0.0.0.0", "--allow-remote", "--port", "0", "--no-browser")
    printed = process.stdout.readline().strip()
    port = int(re.fullmatch(r"http://0\.0\.0\.0:(\d+)/#token=[\w-]{32}", printed)[1])
    assert raw(port, f"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())[0] == 403
    process.send_signal(signal.SIGINT)
    status, _, err = ended(process)
    assert (status, err) == (0, "layernorm: whoever has the link below can ask this machine to compute.\nstopped.\n")


def test_the_link_has_the_token_and_interrupting_ends_cleanly():
    process = explore("--port", "0", "--no-browser", DISPLAY=":0")
    printed = process.stdout.readline().strip()
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{32})", printed).groups()
    about = raw(int(port), f"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Token: {token}\r\n\r\n".encode())
    assert json.loads(about[2])["version"] == layernorm.__version__
    process.send_signal(signal.SIGINT)
    assert ended(process) == (0, "", "stopped.\n")


def test_a_browser_is_opened_once_there_is_an_answer(tmp_path):
    opener, told = tmp_path / "browser.py", tmp_path / "told"
    opener.write_text(
        f"#!{sys.executable}\nimport sys, pathlib, urllib.request as u\nlink = sys.argv[1]\n"
        "answer = u.build_opener(u.ProxyHandler({})).open(link.partition('#')[0])\n"
        f"aside = pathlib.Path({str(told)!r} + '.new')\n"
        f"aside.write_text(f'{{answer.status}} {{link}}')\naside.rename({str(told)!r})\n"
    )
    opener.chmod(0o755)
    process = explore("--port", "0", DISPLAY=":0", BROWSER=f"{opener} %s")
    printed = process.stdout.readline().strip()
    until = time.monotonic() + 10
    while not told.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 0
    assert told.read_text() == f"200 {printed}"


def test_over_ssh_no_browser_is_opened_and_the_tunnel_is_said(tmp_path):
    process = explore("--port", "0", DISPLAY=":0", SSH_CONNECTION="a 1 b 2", BROWSER=f"touch {tmp_path}/opened %s")
    port = process.stdout.readline().split(":")[2].split("/")[0]
    said = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 0
    assert said == f"from your own machine: ssh -L {port}:127.0.0.1:{port} THIS_HOST, then open the link.\n"
    assert not (tmp_path / "opened").exists()


# -- the size, the wheel, the one file ----------------------------------------------------------------------


def test_the_page_is_small():
    sizes = {name: len(content) for name, content in static_files().items()}
    assert sum(sizes.values()) <= 200_000, sizes
    static = ROOT / "src/layernorm/explorer/static"
    assert {str(path.relative_to(static)) for path in static.rglob("*") if path.is_file()} == sizes.keys()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    builders = pytest.importorskip("hatchling.builders.wheel")
    return Path(next(builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))))


def test_the_wheel_holds_the_page_and_answers_without_being_unpacked(wheel, tmp_path):
    inside = "layernorm/explorer/static/"
    with zipfile.ZipFile(wheel) as file:
        held = {name.removeprefix(inside): file.read(name) for name in file.namelist() if name.startswith(inside)}
        assert not [name for name in file.namelist() if "test" in name.lower().split("/")]
    assert held == static_files()
    environment = {**os.environ, "PYTHONPATH": str(wheel), "http_proxy": "http://192.0.2.1:1"}
    done = subprocess.run(
        [*COMMAND, "--check", "--port", "0"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    sizes = {name: int(size) for size, name in re.findall(r"(?m)^ *(\d+) (\S+)$", done.stdout)}
    assert sizes == {name: len(content) for name, content in held.items()}
    assert f"{sum(sizes.values()):7} in all\n" in done.stdout


def test_a_check_that_fails_says_so():
    losing = (
        "from layernorm.cli import run\nfrom layernorm.explorer import page, server\nheld = page.static_files()\n"
        "page.static_files = lambda: {**held, 'lost.js': b''}\n"
        "raise SystemExit(run(['explore', '--check', '--port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", losing], capture_output=True, text=True, check=False)
    said = "layernorm: the page does not come whole: HTTP Error 404: Not Found; install layernorm again.\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The page as one file, written twice."""
    from layernorm.cli import run  # noqa: TID251

    folder = tmp_path_factory.mktemp("one")
    for name in ("a.html", "b.html"):
        assert run(["explore", "--html", str(folder / name)]) == 0
    assert (folder / "a.html").read_bytes() == (folder / "b.html").read_bytes()
    return folder / "a.html"


def test_one_file_works_from_disk(fresh, one):
    wrong, asked = [], []
    fresh.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    fresh.on("pageerror", lambda error: wrong.append(str(error)))
    fresh.on("request", lambda request: asked.append(request.url))
    fresh.goto(f"{one.as_uri()}{link('shift', k=-1, done='passed')}")
    values = fresh.locator("figure", has_text="After layer normalization").locator("text.value")
    assert values.all_text_contents()[-1] == "−1.342"
    expect(fresh.locator("#who")).to_have_text("No server stands behind this file; every number is computed in it.")
    assert fresh.evaluate("getComputedStyle(document.body).maxWidth") != "none"  # the style's hash is right too
    assert wrong == []
    assert {url.partition("#")[0] for url in asked} <= {one.as_uri(), "data:,"}


def test_in_one_file_nothing_but_its_own_scripts_runs(fresh, one, tmp_path):
    added = '<script>document.title = "taken"</script><img src="x" onerror="document.title = 1"></body>'
    (tmp_path / "more.html").write_text(one.read_text("utf-8").replace("</body>", added), "utf-8")
    fresh.goto((tmp_path / "more.html").as_uri())
    expect(fresh).to_have_title(re.compile("layer normalization"))
    write = "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
    assert fresh.evaluate(write) == "TypeError"


def test_one_file_refuses_what_would_end_its_element():
    held = dict(static_files())
    held["page.js"] += b"// </script>"
    with pytest.raises(ValueError, match="write it in two parts"):
        one_file(held)


# -- in a browser -------------------------------------------------------------------------------------------


def test_the_token_is_taken_out_of_the_address_and_no_request_leaves_the_machine(fresh, running):
    asked = []
    fresh.on("request", lambda request: asked.append(request))
    fresh.goto(f"{running.base}#token={running.served.token}")
    expect(fresh.locator("#who")).to_contain_text("stands behind this page")
    assert fresh.url == running.base
    assert fresh.evaluate("sessionStorage.getItem('layernorm.token')") == running.served.token
    for name in fresh.locator("#views a").all_text_contents():
        fresh.get_by_role("link", name=name, exact=True).click()
        expect(fresh.locator("main h2")).to_have_text(name)
    fresh.wait_for_timeout(400)
    assert len(asked) > 5
    for request in asked:
        assert request.url.startswith((running.base, "data:,"))
        assert running.served.token not in request.url
        assert not request.headers.get("referer")
    fresh.reload()
    expect(fresh.locator("#who")).to_contain_text("stands behind this page")


def test_the_lesson_needs_no_token(fresh, running):
    fresh.goto(running.base + link("shift", done="passed"))
    expect(fresh.locator("#who")).to_have_text(re.compile("is not asked: open the link that layernorm explore printed"))
    assert fresh.locator("text.value").count() > 0


def test_another_name_for_this_machine_is_refused_in_a_browser(browser_type, browser_type_launch_args, running):
    settings = {**browser_type_launch_args, "args": [*ARGUMENTS, "--host-resolver-rules=MAP evil.test 127.0.0.1"]}
    with browser_type.launch(**settings) as browser:
        page = browser.new_page()
        answer = page.goto(f"http://evil.test:{running.port}/")
        assert answer.status == 421
        asked = "(token) => fetch('/api/about', {headers: {'X-Token': token}}).then((answer) => answer.status)"
        assert page.evaluate(asked, running.served.token) == 421


@pytest.fixture(scope="module")
def elsewhere():
    """Another site on this machine."""

    class Blank(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_address[1]
        site.shutdown()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])  # another site, and the same site at another port
def test_another_site_gets_nothing(fresh, running, elsewhere, name, monkeypatch):
    computed = []
    monkeypatch.setattr(server, "computed", lambda calls: computed.append(calls) or [])
    fresh.goto(f"http://{name}:{elsewhere}/")
    token = running.served.token
    ask = """async ([url, options]) => { try { const a = await fetch(url, options);
        return [a.type, a.status, await a.text()]; } catch (error) { return error.name; } }"""
    api = f"{running.base}api/compute"
    body = CALL.decode()
    assert fresh.evaluate(ask, [running.base, {}]) == "TypeError"
    assert fresh.evaluate(ask, [f"{running.base}api/about", {"headers": {"X-Token": token}}]) == "TypeError"
    assert fresh.evaluate(ask, [api, {"method": "POST", "body": body, "headers": {"X-Token": token}}]) == "TypeError"
    assert fresh.evaluate(ask, [api, {"method": "POST", "body": body}]) == "TypeError"
    nothing = ("TypeError", ["opaque", 0, ""])
    assert fresh.evaluate(ask, [api, {"method": "POST", "body": body, "mode": "no-cors"}]) in nothing
    assert fresh.evaluate(ask, [f"{running.base}page.js", {"mode": "no-cors"}]) in nothing
    fresh.evaluate("""(url) => new Promise((done) => { const f = document.createElement('iframe'); f.onload = done;
        f.src = url; document.documentElement.append(f); })""", running.base)  # fmt: skip
    # the element's load event may come before the driver hears of the frame's address
    fresh.frames[1].wait_for_url(re.compile("^chrome-error:"), wait_until="commit")
    assert computed == []


def test_a_page_whose_server_has_gone_works_on_and_says_so(fresh):
    run = Running()
    fresh.goto(f"{run.base}#token={run.served.token}&{link('shift', done='passed')[1:]}")
    expect(fresh.locator(".badge")).to_contain_text("agrees")
    run.stop()
    fresh.get_by_role("button", name="k = −1", exact=True).click()
    expect(fresh.locator(".badge")).to_contain_text("The server has gone")
    expect(fresh.locator("#who")).to_have_text("The server has gone; start it again with: layernorm explore")
    values = fresh.locator("figure", has_text="After layer normalization").locator("text.value")
    assert values.all_text_contents()[-1] == "−1.342"
    fresh.get_by_role("link", name="k·x + c").click()
    expect(fresh.get_by_role("button", name="Commit my prediction")).to_be_enabled()
