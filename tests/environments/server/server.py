"""A stock-room server of the wire's version 1, of the standard library alone: what anybody could have written from the specification."""

import base64
import json
import os
import pathlib
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = os.environ.get("STOCK_NAME") or os.environ.get("ENVIRONMENT_NAME") or "stock"
PREFIX = os.environ.get("STOCK_PREFIX", NAME)
MCP = os.environ.get("STOCK_MCP_PATH", "/mcp")
PORT = int(os.environ.get("MCP_PORT") or os.environ.get("PORT") or 18765)
CARDLESS = bool(os.environ.get("STOCK_CARDLESS"))
LOCK = threading.Lock()
ITEMS = {}
CALLS = []
FAIL = {"add": 0}
SESSIONS = set()


def schema(**properties):
    return {"type": "object", "properties": properties, "required": sorted(properties)}


TOOLS = [
    {
        "name": f"{PREFIX}_count",
        "description": "Units on hand.",
        "inputSchema": schema(sku={"type": "string"}),
        "annotations": {"readOnlyHint": True},
    },
    {"name": f"{PREFIX}_take", "description": "Remove units.", "inputSchema": schema(sku={"type": "string"}, qty={"type": "integer"})},
    {"name": f"{PREFIX}_echo", "description": "Answers its arguments.", "inputSchema": {"type": "object"}},
    {"name": f"{PREFIX}_who", "description": "Who calls.", "inputSchema": {"type": "object"}},
    {"name": f"{PREFIX}_die", "description": "Ends the server.", "inputSchema": {"type": "object"}},
]
CARD = {
    "name": NAME,
    "url": "/agentenv",
    "additionalInterfaces": [{"url": MCP, "transport": "mcp"}],
    "capabilities": {
        "operations": ["data/reset", "data/add", "data/get"],
        "tools": TOOLS,
        "extensions": [
            {
                "uri": "urn:agentenv:set-failures/v1",
                "params": {"endpoint": "/agentenv/ext/failures", "methods": {"set": {"method": "POST"}, "get": {"method": "GET"}}},
            }
        ],
    },
    "children_environments": None,
    "x-unknown": {"kept": True},
}


def rows_of(part):
    if part["kind"] == "data":
        return part["data"]["items"]
    file = part["file"]
    if "bytes" in file:
        return json.loads(base64.b64decode(file["bytes"]))["items"]
    url = urllib.parse.urlsplit(file["uri"])
    return json.loads(pathlib.Path(urllib.parse.unquote(url.path)).read_text())["items"]


def rpc(method, params):
    if method == "data/reset":
        ITEMS.clear()
        return {}
    if method == "data/add":
        if FAIL["add"] > 0:
            FAIL["add"] -= 1
            raise ValueError("the shelf broke")
        for part in params["parts"]:
            for row in rows_of(part):
                ITEMS[row["sku"]] = row
        return {}
    if method == "data/get":
        return {"parts": [{"kind": "data", "data": {"items": sorted(ITEMS.values(), key=lambda row: row["sku"])}}]}
    raise KeyError(method)


def call(tool, arguments, role):
    name = tool.removeprefix(f"{PREFIX}_")
    if name == "count":
        return str(ITEMS.get(arguments["sku"], {}).get("qty", 0)), False
    if name == "take":
        row = ITEMS.get(arguments["sku"])
        if row is None or row["qty"] < arguments["qty"]:
            return "insufficient", True
        row["qty"] -= arguments["qty"]
        return "taken", False
    if name == "echo":
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":")), False
    if name == "who":
        return json.dumps(role), False
    if name == "die":
        os._exit(7)
    return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, value, **headers):
        body = b"" if value is None else json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/.well-known/agent-env.json" and not CARDLESS:
            self.answer(200, CARD)
        elif path == "/export-state" and CARDLESS:
            self.answer(200, rpc("data/get", {})["parts"][0]["data"])
        elif path == "/agentenv/ext/failures":
            self.answer(200, FAIL)
        elif path == "/environ":
            self.answer(200, dict(os.environ))
        elif path == MCP:
            self.answer(405, {"error": "no stream"})
        else:
            self.answer(404, {"error": "not found"})

    def do_DELETE(self):
        SESSIONS.discard(self.headers.get("mcp-session-id"))
        self.answer(200, {})

    def do_POST(self):
        path = self.path.partition("?")[0]
        try:
            body = self.body()
        except ValueError:
            return self.answer(200, {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "parse error"}})
        if path == "/api/reset" and CARDLESS:
            rows = json.loads(pathlib.Path(body["mock_data_path"]).read_text())["items"]
            ITEMS.clear()
            ITEMS.update({row["sku"]: row for row in rows})
            return self.answer(200, {})
        if path == "/agentenv" and not CARDLESS:
            return self.rpc(body)
        if path == "/agentenv/ext/failures":
            if not isinstance(body.get("add"), int):
                error = {"code": "invalid_params", "message": "add is a number", "retryable": False, "applied": "no", "hint": "give add"}
                return self.answer(400, {"ok": False, "error": error})
            FAIL["add"] = body["add"]
            return self.answer(200, FAIL)
        if path == MCP:
            return self.mcp(body)
        return self.answer(404, {"error": "not found"})

    def rpc(self, body):
        number = body.get("id")
        with LOCK:
            try:
                self.answer(200, {"jsonrpc": "2.0", "id": number, "result": rpc(body["method"], body.get("params") or {})})
            except (KeyError, ValueError, OSError, TypeError) as error:
                code = {"data/add": "add_failed", "data/reset": "reset_failed"}.get(body.get("method"), "get_failed")
                self.answer(200, {"jsonrpc": "2.0", "id": number, "error": {"code": -32000, "message": str(error), "data": {"code": code}}})

    def mcp(self, body):
        method, number, params = body.get("method"), body.get("id"), body.get("params") or {}
        if method == "initialize":
            session = uuid.uuid4().hex
            SESSIONS.add(session)
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": NAME, "version": "1"}}
            return self.answer(200, {"jsonrpc": "2.0", "id": number, "result": result}, mcp_session_id=session)
        if self.headers.get("mcp-session-id") not in SESSIONS:
            return self.answer(404, {"jsonrpc": "2.0", "id": number, "error": {"code": -32600, "message": "no such session"}})
        if number is None:
            return self.answer(202, None)
        if method == "ping":
            return self.answer(200, {"jsonrpc": "2.0", "id": number, "result": {}})
        if method == "tools/list":
            at = int(params.get("cursor") or 0)
            result = {"tools": TOOLS[at : at + 2]}
            if at + 2 < len(TOOLS):
                result["nextCursor"] = str(at + 2)
            return self.answer(200, {"jsonrpc": "2.0", "id": number, "result": result})
        if method == "tools/call":
            meta = params.get("_meta") or {}
            role = meta.get("agentenv.io/role") or self.headers.get("agentenv-role")
            said = call(params.get("name", ""), params.get("arguments") or {}, role)
            if said is None:
                return self.answer(200, {"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "unknown tool"}})
            result = {"content": [{"type": "text", "text": said[0]}], "isError": said[1]}
            return self.answer(200, {"jsonrpc": "2.0", "id": number, "result": result})
        return self.answer(200, {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": f"method not found: {method}"}})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    time.sleep(float(os.environ.get("STOCK_LATE", "0")))
    print("stock", NAME, "serves on", PORT, flush=True)
    if os.environ.get("STOCK_BROKEN"):
        raise SystemExit("the shelf is broken")
    Server(("0.0.0.0", PORT), Handler).serve_forever()
