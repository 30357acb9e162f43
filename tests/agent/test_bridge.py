"""`agent.pyz --bridge ADDRESS` passes bytes both ways, and ends with either side."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading

CODE = "import sys; from oarlock.agent import __main__; sys.exit(__main__.main(sys.argv))"
NOW = "from oarlock.agent import bridge; bridge.PATIENCE_S = 0; import sys; sys.exit(bridge.bridge(sys.argv[2], 0))"


def begun(port, code=CODE):
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", code, "--bridge", f"127.0.0.1:{port}"]
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)


def test_a_request_gets_its_answer():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with begun(server.server_address[1]) as process:
            process.stdin.write(b"GET / HTTP/1.0\r\n\r\n")
            process.stdin.flush()
            answer = process.stdout.read()  # until the server has closed
            assert answer.startswith(b"HTTP/1.0 200")
            assert answer.endswith(b"hello")
            assert process.wait(240) == 0
        server.shutdown()


def test_a_client_that_leaves_ends_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with begun(server.getsockname()[1]) as process:
            there, _ = server.accept()
            with there:
                process.stdin.close()
                assert there.recv(1) == b""
                assert process.wait(240) == 0


def test_a_port_where_nothing_listens_is_said():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with begun(port, NOW) as process:
        assert process.wait(240) == 1
        assert b"nothing listens at 127.0.0.1:" in process.stderr.read()
