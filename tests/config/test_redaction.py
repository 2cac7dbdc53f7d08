"""No secret leaves by value, in any spelling, nor by key."""

from __future__ import annotations

import base64
import io
import json
import logging
import pickle
import urllib.parse
from time import thread_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_env.redaction import MASK, Redactor, is_secret_key, mask_config, mask_user_info, redacting_filter
from tests.documents.test_reading import JSON_VALUES

SECRET = 'sk-Ab"c/d+e f 12\nline two of it ==\tπ'
SECRETS = st.text(min_size=6, max_size=30).filter(lambda text: len(text.strip()) >= 6 and "*" not in text)


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        urllib.parse.quote(SECRET),
        urllib.parse.quote(SECRET, safe=""),
        urllib.parse.urlencode({"key": SECRET}),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        *(base64.b64encode(b"user:"[:n] + SECRET.encode() + b"tail"[:m]).decode() for n in range(5) for m in range(4)),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        f"'{SECRET}'",
    ],
)
def test_c13_a_secret_is_blotted_out_in_every_spelling(spelled: str) -> None:
    redactor = Redactor([SECRET])
    core = [SECRET, "Ab", SECRET.encode().hex()[8:40], base64.b64encode(SECRET.encode()).decode()[4:40]]
    for shown in (redactor.redact(f"before {spelled} after"), redactor.redact(f"before {spelled} after".encode()).decode()):
        assert MASK in shown
        assert not any(part in shown for part in core)
        assert shown.startswith("before ")


def test_a_line_of_a_multi_line_secret_is_one_too() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEAAoI\n-----END KEY-----"
    assert Redactor([key]).redact("    MIIEvQIBADANBgkqhkiG9w0") == f"    {MASK}"


def test_short_values_would_blot_out_everything_and_are_not_searched_for() -> None:
    assert Redactor(["a", "", "   "]).redact("a banana") == "a banana"


def test_secret_keys_are_masked_and_references_and_counts_stay() -> None:
    value = {
        "api_key": "k",
        "Authorization": "Bearer x",
        "X-Api-Key": "k",
        "dbPassword": "p",
        "nested": [{"client_secret": "s", "access_token": "t"}],
        "max_tokens": 5,
        "token_count": "7",
        "author": "Ada",
        "secret": "env:NAME",
        "password": "secret:K?fallback",
        "tokens": ["a", "b"],
        "empty_password": "",
    }
    assert Redactor().redact(value) == {
        **value,
        "api_key": MASK,
        "Authorization": MASK,
        "X-Api-Key": MASK,
        "dbPassword": MASK,
        "nested": [{"client_secret": MASK, "access_token": MASK}],
        "password": MASK,
        "tokens": [MASK, MASK],
    }


@pytest.mark.parametrize("key", ["monkey", "keys", "author", "total_tokens", "secretary_no"[:4], "passenger", "id"])
def test_ordinary_keys_are_not_secret(key: str) -> None:
    assert not is_secret_key(key)


@given(JSON_VALUES, SECRETS)
def test_what_holds_no_secret_comes_back_as_it_is(value: Any, secret: str) -> None:
    plain = {"value": value}
    redactor = Redactor()
    redacted = redactor.redact(plain)
    assert redacted == plain or any(map(is_secret_key, json.dumps(value).split('"')))
    holding = {"value": value, "text": f"x{secret}y", secret: 1}
    redactor.add(secret)
    assert secret not in redactor.redact(holding)["text"]
    assert secret not in redactor.redact(holding)


@example(["0\x850000000000000000\r0"], [], 1)
@given(st.lists(SECRETS, min_size=1, max_size=4), st.lists(st.text(max_size=8), max_size=6), st.integers(1, 9))
def test_a_stream_is_redacted_as_the_whole_would_be_wherever_it_is_cut(secrets: list[str], between: list[str], size: int) -> None:
    redactor = Redactor(secrets)
    data = "".join(text + secrets[i % len(secrets)] for i, text in enumerate([*between, ""])).encode()
    stream = redactor.stream()
    shown = b"".join(stream.feed(data[i : i + size]) for i in range(0, len(data), size)) + stream.flush()
    assert shown == redactor.redact(data)
    assert not any(secret.encode() in shown for secret in secrets)


def test_a_stream_holds_back_only_what_may_begin_a_secret() -> None:
    stream = Redactor(["hunter2!"]).stream()
    assert stream.feed(b"progress 10%\n") == b"progress 10%\n"
    assert stream.feed(b"done hunt") == b"done "
    assert stream.feed(b"ing") == b"hunting"
    assert stream.flush() == b""


def test_of_two_overlapping_secrets_the_longer_one_is_blotted_out_whole() -> None:
    redactor = Redactor(["token-abc"])
    redactor.add("token-abc-and-more")
    assert redactor.redact("token-abc-and-more token-abc") == f"{MASK} {MASK}"


def test_se03_a_redactor_shows_nothing_of_what_it_knows() -> None:
    redactor = Redactor([SECRET])
    assert "sk-" not in repr(redactor) + str(redactor)
    with pytest.raises(TypeError):
        pickle.dumps(redactor)


def test_se03_debug_logs_and_tracebacks_are_redacted() -> None:
    redactor, buffer = Redactor([SECRET]), io.StringIO()
    handler = logging.StreamHandler(buffer)
    handler.addFilter(redacting_filter(redactor))
    logger = logging.getLogger("agent_env.test_redaction")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.DEBUG)
    logger.debug("Authorization: Bearer %s", SECRET)
    try:
        raise ValueError(f"tool failed with {SECRET}")
    except ValueError:
        logger.exception("it failed")
    assert "sk-Ab" not in buffer.getvalue()
    assert "ValueError: tool failed with ***" in buffer.getvalue()


def test_thirty_secrets_cost_little_more_than_one() -> None:
    text = "the quick brown fox jumps over sk-se lazy dogs\n" * 10_000

    def seconds(count: int) -> float:
        redactor = Redactor([f"sk-secret-number-{i}-{'x' * 30}" for i in range(count)])
        best = float("inf")
        for _ in range(3):
            start = thread_time()
            redactor.redact(text)
            best = min(best, thread_time() - start)
        return best

    assert seconds(30) < 12 * seconds(1) + 0.05


def test_config_values_are_masked_by_key_user_info_and_default() -> None:
    assert mask_config({"url": "postgresql://u:p@h/db", "api_key": "x", "headers": {"A": "b", "C": "env:X?y"}, "default": "m"}) == {
        "url": "postgresql://***@h/db",
        "api_key": MASK,
        "headers": {"A": MASK, "C": "env:X?***"},
        "default": "m",
    }
    assert mask_user_info("see https://a:b@h/x?y and http://c") == "see https://***@h/x?y and http://c"
