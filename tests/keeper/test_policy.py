"""Which names and addresses an allow-list lets through, in every spelling that somebody may try."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.keeper.policy import Policy, host_rule, literal, normal_host, not_public, policy_problems, shown_host

LISTED = Policy.parse(
    ["example.com", "*.wild.test", "ports.test:8443", "any.test:*", "203.0.114.5", "[2606:4700::1]:443"],
    ["198.51.0.0/16"],
)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.com", 443),
        ("example.com", 80),
        ("EXAMPLE.com", 443),
        ("example.com.", 443),
        ("a.wild.test", 443),
        ("a.b.wild.test", 80),
        ("ports.test", 8443),
        ("any.test", 1),
        ("any.test", 65535),
        ("203.0.114.5", 443),
        ("[2606:4700::1]", 443),
        ("2606:4700:0:0::1", 443),
        ("198.51.7.8", 5432),
    ],
)
def test_what_is_listed_may_be_asked_for(host: str, port: int) -> None:
    normal = normal_host(host)
    assert normal is not None
    assert LISTED.target_problem(normal, port) is None


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.com", 8080),
        ("example.com", 22),
        ("www.example.com", 443),
        ("notexample.com", 443),
        ("example.com.evil.test", 443),
        ("wild.test", 443),
        ("xwild.test", 443),
        ("ports.test", 443),
        ("203.0.114.6", 443),
        ("203.0.114.5", 22),
        ("[2606:4700::2]", 443),
        ("198.52.0.1", 443),
        ("xn--exmple-cua.com", 443),
    ],
)
def test_what_is_not_listed_is_not_even_resolved(host: str, port: int) -> None:
    normal = normal_host(host)
    assert normal is not None
    assert "allow-list" in (LISTED.target_problem(normal, port) or "")


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "..",
        "example..com",
        "example.com..",
        "-example.com",
        "exa mple.com",
        "example.com\\@evil.test",
        "example.com@evil.test",
        "example.com/evil",
        "example.com\n",
        "example.com\0",
        "ex%61mple.com",
        "ехample.com",  # Cyrillic
        "ｅxample.com",  # full width
        "example。com",
        "exampleⓒom",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "1.2.3.4.5",
        "127.0.0.1.",
        "256.1.1.1",
        "[127.0.0.1]",
        "[example.com]",
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
        "::1::1",
        "a" * 64 + ".com",
        "a." * 127 + "com",
    ],
)
def test_a_host_that_could_be_read_in_two_ways_is_none(host: str) -> None:
    assert normal_host(host) is None


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254"),
        *("172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "224.0.0.1"),
        *("239.255.255.250", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1"),
        *("100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1"),
        *("ff02::1", "4000::1", "fe80::5efe:7f00:1"),
    ],
)
def test_an_address_that_is_not_of_the_public_internet_is_refused_even_when_it_is_listed(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert not_public(parsed) is not None
    everything = Policy.parse(["*.test:*"], ["0.0.0.0/0", "::/0"])
    assert everything.address_problem(parsed) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "151.101.1.140", "2606:4700::6810:84e5", "2a00:1450:4001::1"])
def test_a_public_address_may_be_connected_to(address: str) -> None:
    assert not_public(ipaddress.ip_address(address)) is None


def test_only_the_installation_opens_its_own_network_and_only_the_range_that_it_names() -> None:
    policy = Policy.parse(["intern.test"], [], ["10.1.0.0/16"])
    assert policy.address_problem(ipaddress.ip_address("10.1.2.3")) is None
    assert policy.address_problem(ipaddress.ip_address("10.2.2.3")) is not None
    assert policy.target_problem("10.1.2.3", 443) is not None, "what the installation allows must still be on the task's list"


@given(st.integers(0, 2**128 - 1))
def test_every_ipv6_address_that_may_be_reached_is_of_the_public_range(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    if not_public(address) is None:
        assert address in ipaddress.ip_network("2000::/3")


@given(st.text(max_size=40))
def test_a_normal_host_is_its_own_normal_form_and_shows_as_one_line(text: str) -> None:
    normal = normal_host(text)
    if normal is not None:
        assert normal_host(normal) == normal
        assert normal.isascii()
        assert literal(normal) is not None or normal == normal.lower()
    assert "\n" not in shown_host(text)
    assert shown_host(text).isascii() or "…" in shown_host(text)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("https://example.com", "without scheme"),
        ("example.com/path", "without scheme and path"),
        ("exa*mple.com", "leading"),
        ("*.*.test", "leading"),
        ("bücher.test", "xn--"),
        ("example.com:0", "port"),
        ("example.com:http", "port"),
        ("*.10.0.0.1", "wildcard before an address"),
        ("", "no host"),
    ],
)
def test_an_entry_that_could_never_match_is_a_problem_that_says_why(entry: str, says: str) -> None:
    (problem,) = policy_problems([entry], [])
    assert says in problem


def test_ranges_that_are_none_are_problems_too() -> None:
    assert len([*policy_problems(["ok.test"], ["10.0.0.0/33", "name.test", "1.2.3.4", "2606::/32"])]) == 2


def test_an_entry_keeps_its_port() -> None:
    assert host_rule("a.test:22").ports == {22}
    assert host_rule("a.test").ports == {80, 443}
    assert host_rule("[2606::1]:22").name == "2606::1"
    assert host_rule("2606::1").name == "2606::1"
