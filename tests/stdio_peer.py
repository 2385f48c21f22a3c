"""An MCP server over standard streams, in plain Python so that it starts at once.

Run as a script. Options say what is wrong with it; its tools do what tests need of a child.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

TOOLS = "echo slow env pid die huge steps ask spawn grow seen log keep kept".split()


class Peer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tools = list(TOOLS)
        self.seen: list[str] = []
        self.asked: dict[str, Any] = {}
        self.listen_id: Any = None
        self.kept = "nothing"

    def send(self, **message: Any) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"))
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self.answered(message)
        elif "id" not in message:
            params = message.get("params", {})
            self.seen.append(f"{method} {params.get('requestId', '')}".strip())
        else:
            handler = getattr(self, "do_" + method.replace("/", "_"), None)
            unknown = method == "server/discover" and self.options.era == "2025"
            if handler is None or unknown:
                self.send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            else:
                handler(message["id"], message.get("params", {}))

    def do_server_discover(self, id: Any, params: dict[str, Any]) -> None:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        self.send(id=id, result=found)

    def do_initialize(self, id: Any, params: dict[str, Any]) -> None:
        if self.options.era == "2026":
            self.send(id=id, error={"code": -32022, "message": "Unsupported protocol version"})
            return
        self.offered = sorted(params["capabilities"])
        info = {"name": "child", "version": "1"}
        found = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        self.send(id=id, result=found)

    def do_subscriptions_listen(self, id: Any, params: dict[str, Any]) -> None:
        self.listen_id = id
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        told = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        self.send(method="notifications/subscriptions/acknowledged", params=told)

    def do_tools_list(self, id: Any, params: dict[str, Any]) -> None:
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
        self.send(id=id, result={"tools": tools})

    def do_tools_call(self, id: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments", {})
        token = params.get("_meta", {}).get("progressToken")
        text = getattr(self, "call_" + params["name"])(id, arguments, token)
        if text is not None:
            self.send(id=id, result={"content": [{"type": "text", "text": text}]})

    def call_offered(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return " ".join(self.offered)

    def call_echo(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return str(arguments.get("text"))

    def call_slow(self, id: Any, arguments: dict[str, Any], token: Any) -> None:
        self.seen.append(f"slow {id}")
        self.send(method="notifications/progress", params={"progressToken": token, "progress": 1})

    def call_env(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return json.dumps(dict(os.environ))

    def call_pid(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return str(os.getpid())

    def call_die(self, id: Any, arguments: dict[str, Any], token: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def call_huge(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return str(arguments.get("of", "x")) * int(arguments["bytes"])

    def call_seen(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return "\n".join(self.seen)

    def call_keep(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        self.kept = str(arguments["text"])
        return self.kept

    def call_kept(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        return self.kept

    def call_log(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        self.send(method="notifications/message", params={"level": "info", "data": "hello"})
        return "done"

    def call_steps(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        for step in range(1, arguments.get("steps", 3) + 1):
            told = {"progressToken": token, "progress": step, "total": 3}
            self.send(method="notifications/progress", params=told)
            time.sleep(arguments.get("pause", 0))
        return "done"

    def call_spawn(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        return str(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL).pid)

    def call_grow(self, id: Any, arguments: dict[str, Any], token: Any) -> str:
        self.tools.append("grown")
        meta = {"io.modelcontextprotocol/subscriptionId": self.listen_id}
        self.send(method="notifications/tools/list_changed", params={"_meta": meta})
        return "done"

    def call_ask(self, id: Any, arguments: dict[str, Any], token: Any) -> None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        asked = {"message": "Who are you?", "requestedSchema": schema}
        self.asked[f"ask-{id}"] = id
        self.send(id=f"ask-{id}", method="elicitation/create", params=asked)

    def answered(self, message: dict[str, Any]) -> None:
        id = self.asked.pop(message["id"])
        result = message["result"]
        text = f"{result['action']} {result.get('content', {}).get('name')}"
        self.send(id=id, result={"content": [{"type": "text", "text": text}]})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", default="2025")
    parser.add_argument("--starts", help="a file that gets a line at each start")
    parser.add_argument("--most", type=int, default=99, help="starts that work")
    parser.add_argument("--crash", action="store_true", help="ends before it says anything")
    parser.add_argument("--stubborn", action="store_true", help="ends by SIGKILL only")
    parser.add_argument("--noise", action="store_true", help="writes what is no message")
    options = parser.parse_args()
    if options.starts:
        with open(options.starts, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        with open(options.starts, encoding="utf-8") as file:
            options.crash |= len(file.readlines()) > options.most
    if options.crash:
        sys.exit(3)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.noise:
        print("Starting up …\n\n[1, 2]", flush=True)
        print("secret is " + os.environ.get("API_KEY", "absent"), file=sys.stderr, flush=True)
    peer = Peer(options)
    for line in sys.stdin:
        peer.take(json.loads(line))
    while options.stubborn:
        time.sleep(60)


if __name__ == "__main__":
    main()
