"""A relay before a model's server: every request goes through it, and it keeps what the server receives and answers."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Relay(ThreadingHTTPServer):
    """
    Sends each request on to the server at `base_url` and its answer back, piece by piece as that comes.

    `received` and `answered` hold the bodies of the generations, in the order in which they were asked for. A count is
    passed on and not kept.
    """

    daemon_threads = True

    def __init__(self, base_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        parts = urlsplit(base_url)
        self.upstream = parts.netloc
        self.base_url = f"http://127.0.0.1:{self.server_port}{parts.path}"
        self.received: list[bytes] = []
        self.answered: list[bytearray] = []

    def __enter__(self) -> Relay:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Passing(BaseHTTPRequestHandler):
    server: Relay

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        heard = bytearray()
        if self.path.endswith("/completions"):
            self.server.received.append(body)
            self.server.answered.append(heard)
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=120)
        upstream.request("POST", self.path, body, {"Content-Type": "application/json"})
        answer = upstream.getresponse()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.end_headers()  # no length: the answer ends with the connection
        while piece := answer.read1(65_536):
            heard += piece  # first, so that what a client has seen is here
            self.wfile.write(piece)
        upstream.close()

    def log_message(self, *_: object) -> None:
        pass
