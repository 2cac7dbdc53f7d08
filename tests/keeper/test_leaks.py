"""Nothing but what is listed is reached from a real place, by whatever way somebody may try; np01 and its kind."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from agent_env.keeper import EGRESS_PORT
from agent_env.places import Command, Place
from tests.keeper.world import GOOD, Names, allowed, apart, web
from tests.sandboxes.people import MINE, World

NAMES = {
    "good.test": [GOOD],
    "a.wild.test": [GOOD],
    "evil.test": [GOOD],
    "private.test": ["10.9.0.1"],
    "loop.test": ["127.0.0.1"],
    "meta.test": ["169.254.169.254"],
    "own.test": ["8.7.6.5"],
    "own6.test": ["2606:4700::99"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "unique.test": ["fd00::1"],
    "both.test": [GOOD, "fd00::1"],
    "zero.test": ["0.0.0.0"],
}
LISTED = ["good.test", "*.wild.test", *(name for name in NAMES if name not in {"good.test", "a.wild.test", "evil.test"}), "gone.test"]

ASK = f"""
import base64, json, socket, sys
for name, text in json.load(sys.stdin).items():
    with socket.create_connection(("127.0.0.1", {EGRESS_PORT}), 20) as link:
        link.settimeout(20)
        parts = [base64.b64decode(part) for part in text]
        answer = b""
        for part in parts:
            link.sendall(part)
            answer += link.recv(65536)
        link.shutdown(socket.SHUT_WR)
        try:
            while piece := link.recv(65536):
                answer += piece
        except ConnectionError:
            pass
        print(json.dumps([name, base64.b64encode(answer).decode()]))
"""


def get(url: str, host: str = "x") -> list[bytes]:
    return [f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin-1")]


def connect(authority: str) -> list[bytes]:
    return [f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("latin-1")]


def tunnel(authority: str) -> list[bytes]:
    return [*connect(authority), *get("/", authority)]


def socks(kind: int, address: bytes, port: int = 80, *, command: int = 1) -> list[bytes]:
    return [b"\x05\x01\x00", bytes([5, command, 0, kind]) + address + port.to_bytes(2, "big")]


def socks_name(name: str, port: int = 80) -> list[bytes]:
    return socks(3, bytes([len(name)]) + name.encode(), port)


@dataclass(frozen=True)
class Try:
    """What is sent, and how the answer begins and what it holds."""

    sent: list[bytes]
    begins: bytes
    holds: bytes = b""


OK, NO, BAD = b"HTTP/1.1 200 ", b"HTTP/1.1 403 ", b"HTTP/1.1 400 "
SOCKS_OK, SOCKS_NO = b"\x05\x00\x05\x00", b"\x05\x00\x05\x02"
TRIES: dict[str, Try] = {
    "a listed name": Try(get("http://good.test/"), OK, b"good GET /"),
    "a listed name with its port": Try(get("http://good.test:80/a?b=c&d="), OK, b"good GET /a?b=c&d="),
    "a listed name in capitals with a dot": Try(get("HTTP://GOOD.Test./"), OK, b"good"),
    "below a wildcard": Try(get("http://a.wild.test/"), OK, b"good"),
    "a tunnel to a listed name": Try(tunnel("good.test:80"), OK, b"good GET /"),
    "one of two addresses is fit": Try(get("http://both.test/"), OK, b"good"),
    "the wildcard's own name": Try(get("http://wild.test/"), NO),
    "an unlisted name": Try(get("http://evil.test/"), NO, b"evil.test:80 is refused: it is not on the allow-list"),
    "a tunnel to an unlisted name": Try(connect("evil.test:443"), NO, b"evil.test:443 is refused"),
    "another port of a listed name": Try(get("http://good.test:8080/"), NO, b"port 8080 is not on the allow-list"),
    "a tunnel to another port": Try(connect("good.test:22"), NO, b"port 22"),
    "a listed name in the Host header alone": Try(get("http://evil.test/", "good.test"), NO),
    "user info that looks like a listed name": Try(get("http://good.test@evil.test/"), BAD),
    "user info with a password": Try(get("http://good.test:80@evil.test/"), BAD),
    "a backslash": Try(get("http://evil.test\\@good.test/"), BAD),
    "a tunnel with user info": Try(connect("good.test@evil.test:80"), BAD),
    "a tunnel with two ports": Try(connect("evil.test:80:good.test:80"), BAD),
    "a tunnel without a port": Try(connect("good.test"), BAD),
    "port zero": Try(connect("good.test:0"), BAD),
    "a port that is too large": Try(connect("good.test:65616"), BAD),
    "a percent-encoded name": Try(get("http://goo%64.test/"), NO, b"no host name"),
    "a look-alike": Try(get("http://xn--god-jrb.test/"), NO),
    "raw unicode": Try(get("http://g\xf6od.test/"), BAD),
    "a full stop of another script": Try([b"GET http://good\xe3\x80\x82test/ HTTP/1.1\r\nHost: x\r\n\r\n"], BAD),
    "a name that leads to a private address": Try(get("http://private.test/"), NO, b"it leads to 10.9.0.1: it is private"),
    "a name that leads to loopback": Try(connect("loop.test:80"), NO, b"loopback"),
    "a name that leads to the metadata address": Try(get("http://meta.test/"), NO, b"link-local"),
    "a name that leads to this machine's public address": Try(get("http://own.test/"), NO, b"machine that runs this sandbox"),
    "a name that leads to this machine's IPv6 address": Try(get("http://own6.test/"), NO, b"machine that runs this sandbox"),
    "a name that leads to a mapped address": Try(get("http://mapped.test/"), NO),
    "a name that leads to a unique local address": Try(get("http://unique.test/"), NO),
    "a name that leads to 0.0.0.0": Try(get("http://zero.test/"), NO),
    "a listed name that does not exist": Try(get("http://gone.test/"), b"HTTP/1.1 502 ", b"gone.test can't be resolved"),
    **{
        f"the address {address}": Try(get(f"http://{address}/"), NO)
        for address in (
            *("127.0.0.1", "127.1", "0.0.0.0", "0", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.0.0.1.", "10.9.0.1"),
            *("169.254.169.254", "2852039166", "8.7.6.5", GOOD, "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
            *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fd00::1]", "[2606:4700::99]", "[fe80::1%25lo]", "localhost"),
            *("metadata.google.internal", "good.test.evil.test", "evilgood.test"),
        )
    },
    "a request for the port itself": Try(get("/", "good.test"), BAD, b"way out"),
    "an https address without a tunnel": Try(get("https://good.test/"), BAD),
    "ftp": Try(get("ftp://good.test/"), BAD),
    "no HTTP at all": Try(
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n"], BAD, b"no HTTP request: illegal request line\r\n"
    ),
    "two lengths": Try([b"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"], BAD),
    "a head that does not end": Try([b"GET http://good.test/ HTTP/1.1\r\nX: " + b"x" * 40_000], b"HTTP/1.1 431 "),
    "socks by a listed name": Try([*socks_name("good.test"), *get("/", "good.test")], SOCKS_OK, b"good GET /"),
    "socks by an unlisted name": Try(socks_name("evil.test"), SOCKS_NO),
    "socks to another port": Try(socks_name("good.test", 22), SOCKS_NO),
    "socks by a name that leads to a private address": Try(socks_name("private.test"), SOCKS_NO),
    "socks by a name that leads to the metadata address": Try(socks_name("meta.test"), SOCKS_NO),
    "socks by a listed name's address": Try(socks(1, bytes([127, 5, 0, 1])), SOCKS_NO),
    "socks by the metadata address": Try(socks(1, bytes([169, 254, 169, 254])), SOCKS_NO),
    "socks by IPv6 loopback": Try(socks(4, bytes(15) + b"\x01"), SOCKS_NO),
    "socks by a mapped address": Try(socks(4, bytes(10) + b"\xff\xff\x7f\0\0\x01"), SOCKS_NO),
    "socks by an empty name": Try(socks(3, b"\0"), SOCKS_NO),
    "socks by a number as a name": Try(socks_name("2130706433"), SOCKS_NO),
    "socks by a name that does not exist": Try(socks_name("gone.test"), b"\x05\x00\x05\x04"),
    "socks listening": Try(socks(1, bytes(4), command=2), b"\x05\x00\x05\x07"),
    "socks udp": Try(socks(1, bytes(4), command=3), b"\x05\x00\x05\x07"),
    "socks of an unknown kind": Try(socks(9, b""), b"\x05\x00\x05\x08"),
    "socks 4": Try([b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00"], b"\x00\x5b"),
    "socks that wants a password": Try([b"\x05\x01\x02"], b"\x05\xff"),
}

RAW = """
import json, os, socket
found = {}
def attempt(name, deed):
    try:
        found[name] = repr(deed())
    except OSError as error:
        found[name] = "OSError"
def tcp(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(5)
        return link.connect(address)
def udp(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        return link.sendto(b"x" * 20, address)
for address in ("1.1.1.1", "10.9.0.1", "169.254.169.254", "8.7.6.5", "172.17.0.1", "224.0.0.1"):
    attempt("tcp " + address, lambda: tcp(socket.AF_INET, (address, 80)))
    attempt("udp " + address, lambda: udp(socket.AF_INET, (address, 53)))
for address in ("2606:4700::99", "fd00::1", "ff02::1", "fe80::1"):
    attempt("tcp " + address, lambda: tcp(socket.AF_INET6, (address, 80)))
    attempt("udp " + address, lambda: udp(socket.AF_INET6, (address, 53)))
attempt("the machine's loopback", lambda: tcp(socket.AF_INET, ("127.0.0.1", 80)))
attempt("its 0.0.0.0", lambda: tcp(socket.AF_INET, ("0.0.0.0", 80)))
attempt("its name server", lambda: tcp(socket.AF_INET, ("127.0.0.1", 53)))
attempt("good.test", lambda: socket.getaddrinfo("good.test", 80))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
found["interfaces"] = sorted(name for _, name in socket.if_nameindex())
found["resolv.conf"] = open("/etc/resolv.conf").read()
print(json.dumps(found))
"""


async def ask(place: Place, tries: dict[str, list[bytes]]) -> dict[str, bytes]:
    asked = json.dumps({name: [base64.b64encode(part).decode() for part in parts] for name, parts in tries.items()})
    done = await place.run(Command(["python3", "-c", ASK], stdin=asked.encode()))
    assert done.ok, done.stderr.decode()
    return {name: base64.b64decode(text) for name, text in map(json.loads, done.stdout.splitlines())}


async def scenario(here: World) -> dict[str, Any]:
    names, told = Names(NAMES), []
    with web(80, 8080) as webs:
        async with allowed(here, LISTED) as (sandbox, place):
            sandbox.report_to(told.append)
            answers = await ask(place, {name: attempt.sent for name, attempt in TRIES.items()})
            raw = json.loads((await place.run(Command(["python3", "-c", RAW]))).stdout)
            redirected = {
                to: (await place.run(Command(["curl", "-sS", "-L", "-m", "20", f"http://good.test/to?{to}"]))).stdout
                for to in ("http://10.9.0.1/", "http://private.test/", "http://127.0.0.1/", "http://evil.test/", "http://a.wild.test/")
            }
            plain = await place.run(Command(["curl", "-sS", "http://evil.test/"]))
            tunnelled = await place.run(Command(["curl", "-sS", "https://evil.test/"]))
            python = await place.run(Command(["python3", "-c", "import urllib.request as u; u.urlopen('https://evil.test/')"]))
        async with allowed(here, cidrs=["0.0.0.0/0", "::/0"], name=f"{MINE}-ranges") as (_, place):
            everything = await ask(
                place, {address: get(f"http://{address}/") for address in ("127.0.0.1", "169.254.169.254", "[::1]", GOOD)}
            )
        hits = [hit for served in webs for hit in served.secret_hits]
    return {
        "answers": answers,
        "raw": raw,
        "redirected": redirected,
        "everything": everything,
        "hits": hits,
        "told": told,
        "asked": names.asked,
        "hosts": webs[0].hosts,
        "messages": (plain.stdout, tunnelled.stderr, python.stderr),
    }


@cache
def seen() -> dict[str, Any]:
    """The scenario's findings; it is played once."""
    return dict(apart(scenario))


@pytest.mark.parametrize("name", TRIES)
def test_np01_each_way_ends_as_it_must(name: str) -> None:
    answer, attempt = seen()["answers"][name], TRIES[name]
    assert answer.startswith(attempt.begins), answer[:300]
    assert attempt.holds in answer
    assert b"SECRET" not in answer


def test_np01_no_service_of_this_machine_was_reached_by_any_of_them() -> None:
    assert seen()["hits"] == []


def test_without_the_way_out_there_is_no_network_at_all() -> None:
    raw = dict(seen()["raw"])
    assert raw.pop("interfaces") == ["lo"]
    assert raw.pop("resolv.conf").strip() == ""
    assert set(raw.values()) == {"OSError"}, raw


@pytest.mark.parametrize("to", ["http://10.9.0.1/", "http://private.test/", "http://127.0.0.1/", "http://evil.test/"])
def test_a_redirect_is_checked_like_any_request(to: str) -> None:
    assert b"good GET" not in seen()["redirected"][to].replace(b"good GET /to?", b"")
    assert b"SECRET" not in seen()["redirected"][to]
    assert b"good GET /" in seen()["redirected"]["http://a.wild.test/"]


def test_a_range_that_holds_everything_opens_no_private_address() -> None:
    found = seen()["everything"]
    assert {address: answer[:13] for address, answer in found.items()} == {
        "127.0.0.1": NO,
        "169.254.169.254": NO,
        "[::1]": NO,
        GOOD: OK,
    }


def test_the_origin_sees_the_host_of_the_address_and_no_other() -> None:
    assert {host.lower().rstrip(".") for host in seen()["hosts"]} <= {"good.test", "good.test:80", "a.wild.test", "both.test", GOOD}


def test_an_unlisted_name_is_not_even_resolved() -> None:
    assert "evil.test" not in seen()["asked"]
    assert "good.test" in seen()["asked"]


def test_a_client_says_what_was_refused() -> None:
    plain, tunnelled, python = seen()["messages"]
    assert b"evil.test:80 is refused: it is not on the allow-list of this sandbox's network policy" in plain
    assert b"403" in tunnelled
    assert b"evil.test:443 is refused" in python


def test_refusals_are_told_once_each() -> None:
    told = [(entry["host"], entry["port"]) for entry in seen()["told"]]
    assert ("evil.test", 80) in told
    assert ("private.test", 80) in told
    assert len({tuple(entry.items()) for entry in seen()["told"]}) == len(told) <= 100
