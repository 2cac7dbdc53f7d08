"""An object store over HTTPS for tests: reads, writes, and posts of signed forms, with a certificate of its own."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
import threading
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class Store:
    """What was put and posted is in `objects`, by path; `answers` are given first, one a request."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.answers: list[tuple[int, bytes]] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.forms: list[dict[str, str]] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self.certificate = Path(self._folder.name) / "certificate.pem"
        key = Path(self._folder.name) / "key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run([*made, *names, "-keyout", str(key), "-out", str(self.certificate)], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def posted(self, headers: Message, content: bytes) -> None:
        """Keeps a posted file under the name that its form gives."""
        message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + content)
        form: dict[str, str] = {}
        for part in message.iter_parts():  # type: ignore[attr-defined]
            name, raw = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
            if part.get_filename() is None:
                form[name] = raw.decode()
            else:
                form["file field"] = name
                self.objects[f"/{form['key']}"] = raw
        self.forms.append(form)


def handler_of(store: Store) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            store.requests.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
            if store.answers:
                return self._send(*store.answers.pop(0))
            if self.command == "GET":
                return self._send(200, store.objects[path]) if path in store.objects else self._send(404, b"")
            if self.command == "PUT":
                store.objects[path] = content
            else:
                store.posted(self.headers, content)
            return self._send(204, b"")

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    return Handler
