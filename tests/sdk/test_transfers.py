"""Transfers under grants: what is moved, what is checked, what is tried again, and what is never said."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.environment import NamespaceUploader, TransferError, download, transfers, upload
from agent_env_sdk.environment.transfers import serving_on
from agent_env_sdk.testing import serve_here
from agent_env_sdk.wire import DataPart, ReadObject, RpcError, WriteNamespaceGrant, WriteObject, uploaded_path

from tests.sdk.environments import Stock
from tests.sdk.https import Store

SOON = "2099-01-01T00:00:00Z"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(transfers, "BACKOFF_SECONDS", 0.001)
    with Store() as opened:
        monkeypatch.setenv("SSL_CERT_FILE", str(opened.certificate))
        yield opened


def reading(store: Store, path: str, **more: Any) -> ReadObject:
    headers = more.pop("headers", None)
    expires_at = more.pop("expires_at", SOON)
    read = {"kind": "http-get", "url": f"{store.url}{path}?signature=secret", "expires_at": expires_at, "headers": headers}
    return ReadObject.model_validate({"media_type": "text/plain", "max_bytes": 10, "read": read, **more})


def writing(store: Store, path: str, limit: int = 10) -> WriteObject:
    write = {"kind": "http-put", "url": f"{store.url}{path}?signature=secret", "expires_at": SOON, "headers": {"x-granted": "yes"}}
    return WriteObject.model_validate({"media_type": "text/plain", "max_bytes": limit, "write": write})


def namespace(store: Store, **limits: int) -> dict[str, Any]:
    form = {
        "kind": "http-post-policy",
        "url": f"{store.url}/?signature=secret",
        "fields": {"policy": "p"},
        "path_field": "key",
        "file_field": "content",
    }
    return {
        "root_path": "root/7",
        "expires_at": SOON,
        "max_objects": 2,
        "max_object_bytes": 100,
        "max_total_bytes": 150,
        "write": form,
        **limits,
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_an_object_is_read_whole_and_checked(store: Store, tmp_path: Path) -> None:
    store.objects["/a"] = b"0123456789"
    digest = hashlib.sha256(b"0123456789").hexdigest()
    came = await download(reading(store, "/a", size_bytes=10, sha256=digest), tmp_path / "a")
    assert (came.size_bytes, came.sha256, (tmp_path / "a").read_bytes()) == (10, digest, b"0123456789")
    assert store.requests[0][2]["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("content", "says", "code"),
    [
        (b"01234567890", {}, "transfer_too_large"),
        (b"012345678", {"size_bytes": 8}, "integrity_mismatch"),
        (b"0123", {"size_bytes": 8}, "integrity_mismatch"),
        (b"0123", {"sha256": "0" * 64}, "integrity_mismatch"),
        (b"0123", {"expires_at": "2001-01-01T00:00:00Z"}, "grant_expired"),
    ],
    ids=["longer than allowed", "longer than said", "shorter than said", "another content", "expired"],
)
async def test_what_is_not_as_granted_leaves_no_file(store: Store, tmp_path: Path, content: bytes, says: Any, code: str) -> None:
    store.objects["/a"] = content
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(TransferError) as refused:
        await download(reading(store, "/a", **says), tmp_path / "a")
    assert refused.value.code == code
    assert contents(tmp_path) == {"a": b"before"}


@pytest.mark.parametrize(
    ("answers", "code", "tried"),
    [
        ([(503, b""), (429, b"")], None, 3),
        ([(500, b"")] * 3, "transfer_unavailable", 3),
        ([(400, b"<Error><Code>RequestTimeout</Code></Error>")], None, 2),
        ([(400, b"<Error><Code>EntityTooLarge</Code></Error>")], "transfer_rejected", 1),
        ([(302, b"")], "transfer_rejected", 1),
        ([(404, b"")], "transfer_rejected", 1),
    ],
    ids=["recovers", "stays away", "slow store", "refusal", "redirect", "none"],
)
async def test_what_may_succeed_later_is_tried_again_and_nothing_else(store: Store, answers: Any, code: str | None, tried: int) -> None:
    store.answers = list(answers)
    if code is None:
        assert (await upload(writing(store, "/a"), b"content")).size_bytes == 7
        assert store.objects["/a"] == b"content"
    else:
        with pytest.raises(TransferError) as refused:
            await upload(writing(store, "/a"), b"content")
        assert refused.value.code == code
    assert len(store.requests) == tried


async def test_an_upload_sends_what_the_grant_asks_for_and_no_more_than_it_allows(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    sent = await upload(writing(store, "/a"), tmp_path / "a")
    assert sent.sha256 == hashlib.sha256(b"content").hexdigest()
    headers = store.requests[0][2]
    assert (headers["x-granted"], headers["content-type"], headers["content-length"]) == ("yes", "text/plain", "7")
    with pytest.raises(TransferError) as large:
        await upload(writing(store, "/b", limit=6), tmp_path / "a")
    assert (large.value.code, large.value.status, len(store.requests)) == ("transfer_too_large", 413, 1)
    assert large.value.body()["error"]["retryable"] is False


async def test_i09_a_namespace_takes_uploads_under_its_root_within_its_limits(store: Store) -> None:
    uploader = NamespaceUploader(WriteNamespaceGrant.model_validate(namespace(store)))
    await uploader.upload("tables/a.json", b"x" * 100)
    assert store.objects == {"/root/7/tables/a.json": b"x" * 100}
    assert store.forms == [
        {"policy": "p", "key": "root/7/tables/a.json", "Content-Type": "application/octet-stream", "file field": "content"}
    ]
    for path, content, code in (
        ("../up", b"", "invalid_transfer"),
        ("b", b"x" * 101, "transfer_too_large"),
        ("b", b"x" * 51, "transfer_too_large"),
    ):
        with pytest.raises(TransferError) as refused:
            await uploader.upload(path, content)
        assert refused.value.code == code
    await uploader.upload("b", b"x" * 50)
    with pytest.raises(TransferError, match="2 objects"):
        await uploader.upload("c", b"")
    assert len(store.requests) == 2


async def test_i09_an_export_goes_to_the_namespace_or_comes_inline_when_that_is_too_small(store: Store) -> None:
    seed = {"items": [{"sku": "a", "qty": 1}]}
    async with serve_here(Stock()) as stock:
        await stock.add(seed)
        [part] = await stock.get(namespace(store))
        assert uploaded_path(part) == "stock/items.json"
        assert store.objects["/root/7/stock/items.json"] == repr(seed).encode()
        assert await stock.get(namespace(store, max_object_bytes=5)) == [DataPart(data=seed)]


@pytest.mark.parametrize("wrong", [{"root_path": "../secret-up"}, {"write": {"url": "http://secret"}}, {"secret": 1}, "secret"])
async def test_i09_a_grant_that_is_none_is_refused_by_its_fields_alone(store: Store, wrong: Any) -> None:
    grant = {**namespace(store), **wrong} if isinstance(wrong, dict) else wrong
    async with serve_here(Stock()) as stock:
        with pytest.raises(RpcError) as refused:
            await stock.rpc("data/get", {"write_namespace": grant})
    assert (refused.value.code, refused.value.message) == (-32602, "invalid_request")
    values = str(refused.value.data).replace("'secret'", "").replace("(secret)", "")
    assert "secret" not in values
    assert "signature" not in values


async def test_the_permission_is_in_no_error_and_no_log(store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    store.answers = [(404, b"")]
    with pytest.raises(TransferError) as refused:
        await download(reading(store, "/a"), tmp_path / "a")
    assert "secret" not in f"{refused.value} {refused.value.body()} {caplog.text}"


async def test_a_grant_on_ones_own_staging_is_used_over_loopback(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"staged")

    class Staging(Stock):
        def routes(self) -> Any:
            from starlette.responses import FileResponse
            from starlette.routing import Route

            async def staged(_: Any) -> FileResponse:
                return FileResponse(tmp_path / "data")

            return [Route("/staged/a", staged)]

    async with serve_here(Staging()) as stock:
        port = int(stock.base.rpartition(":")[2])
        near = reading(store, "/public/staged/a", headers={"AgentEnv-Staging-Path": "/staged/a"})
        with serving_on(port):
            await download(near, tmp_path / "near")
        assert ((tmp_path / "near").read_bytes(), store.requests) == (b"staged", [])
    store.objects["/public/staged/a"] = b"public"
    with serving_on(port):
        await download(near, tmp_path / "far")
    assert (tmp_path / "far").read_bytes() == b"public"
