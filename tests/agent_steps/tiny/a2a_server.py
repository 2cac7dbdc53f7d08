"""An agent of the standard library alone, which says what it hears and where it is. Run: python3 a2a_server.py PORT"""

import http.server
import json
import os
import socket
import sys
import threading
import urllib.request
from pathlib import Path

MODELS = "LITELLM_BASE_URL={litellm_base_url} LITELLM_API_KEY={litellm_api_key}"
START = "cd {workspace_dir} && (" + MODELS + " nohup python3 {work_dir}/a2a_server.py {a2a_port} >{work_dir}/log 2>&1 </dev/null &)"
UNPACK = "tar -xzf {agent_ctx_tar} -C {work_dir}"
INSTALL = {
    "install_commands_host": [UNPACK, START],
    "install_commands_inside": [UNPACK, START],
    "required_params": ["work_dir", "agent_ctx_tar", "a2a_port", "workspace_dir"],
    "a2a_port": 8123,
}
AGENT_CARD = {
    "name": "tiny",
    "description": "",
    "version": "1",
    "url": "/a2a",
    "protocolVersion": "0.3.0",
    "capabilities": {"streaming": False, "extensions": [{"uri": "urn:agentenv:install/v1", "params": INSTALL}]},
    "defaultInputModes": ["text"],
    "defaultOutputModes": ["text"],
    "skills": [],
}


TASKS = {}
TOKEN = os.environ.get("AGENTENV_AGENT_TOKEN")


def from_a_model():
    """What a model says to a greeting."""
    headers = {"authorization": "Bearer " + os.environ["LITELLM_API_KEY"], "content-type": "application/json"}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    asked = urllib.request.Request(os.environ["LITELLM_BASE_URL"] + "/v1/chat/completions", body, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers the older path of the card, and message/send with a task that has ended."""

    def answer(self, value, status=200):
        """Sends JSON."""
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """The card."""
        known = self.path == "/.well-known/agent.json"
        self.answer(AGENT_CARD if known else {}, 200 if known else 404)

    def do_POST(self):
        """One turn."""
        if TOKEN and self.headers["authorization"] != f"Bearer {TOKEN}":
            return self.answer({}, 401)
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["method"] == "message/send":
            message = asked["params"]["message"]
            heard = message["parts"][0]["text"]
            told = f"{heard} {socket.gethostname()} {Path.cwd()} {bool(TOKEN)} {from_a_model() if heard == 'models' else ''}"
            parts = [{"kind": "text", "text": told}]
            said = {"kind": "message", "messageId": "m", "role": "agent", "parts": parts}
            task = {"kind": "task", "id": message["messageId"], "contextId": message["contextId"], "history": [message]}
            TASKS[task["id"]] = {**task, "status": {"state": "completed", "message": said}}
        task_id = asked["params"].get("id") or asked["params"]["message"]["messageId"]
        return self.answer({"jsonrpc": "2.0", "id": asked["id"], "result": TASKS[task_id]})

    def log_message(self, *args):
        """Says nothing."""


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
    threading.Event().wait()
