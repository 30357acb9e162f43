"""One process of a bench of parameter servers. The last line of a client is a JSON list of seconds.

raw-server PORT            sends back each frame
raw ADDRESS BYTES TIMES    exchanges so many bytes with a raw server
grpc-server PORT           sends back each message, by gRPC
grpc ADDRESS BYTES TIMES   exchanges messages of so many bytes with it, which no serializer touches
ps BYTES TIMES             pushes a gradient of so many bytes, and pulls the weights
steps KIND SLEEP TIMES     steps of a small model, with a sleep as computing; KIND is sync, async or backup
"""

import json
import socket
import sys
import time
from concurrent import futures

MODE, *ARGUMENTS = sys.argv[1:]


def received(sock: socket.socket, into: memoryview) -> bool:
    """Fill the memory. Return False at the end of the connection."""
    done = 0
    while done < len(into):
        count = sock.recv_into(into[done:])
        if not count:
            return False
        done += count
    return True


def raw_server(port: int) -> None:
    with socket.create_server(("0.0.0.0", port)) as listener:
        sock, _ = listener.accept()
        size = memoryview(bytearray(8))
        received(sock, size)
        memory = memoryview(bytearray(int.from_bytes(size, "little")))
        while received(sock, memory):
            sock.sendall(memory)


def raw(host: str, port: int, size: int, times: int) -> list[float]:
    for _ in range(600):
        try:
            sock = socket.create_connection((host, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    sock.sendall(size.to_bytes(8, "little"))
    memory, seconds = memoryview(bytearray(size)), []
    for _ in range(times):
        began = time.perf_counter()
        sock.sendall(memory)
        received(sock, memory)
        seconds.append(time.perf_counter() - began)
    return seconds


UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def grpc_server(port: int) -> None:
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1), options=UNLIMITED)
    echo = grpc.unary_unary_rpc_method_handler(lambda message, context: message)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": echo}),))
    server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    server.wait_for_termination()


def by_grpc(host: str, port: int, size: int, times: int) -> list[float]:
    import grpc

    message, seconds = bytes(size), []
    with grpc.insecure_channel(f"{host}:{port}", options=UNLIMITED) as channel:
        echo = channel.unary_unary("/bench/Echo")
        for _ in range(times):
            began = time.perf_counter()
            assert len(echo(message, wait_for_ready=True)) == size
            seconds.append(time.perf_counter() - began)
    return seconds


def served(size: int, times: int) -> list[float]:
    import torch

    from oarlock import train

    torch.set_num_threads(1)
    model = torch.nn.Linear(size // 4096, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train.data_parallel(model, optimizer, strategy="ps")
    model.weight.grad = torch.ones_like(model.weight)
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def steps(kind: str, sleep_s: float, times: int) -> list[float]:
    import torch

    from oarlock import train

    torch.set_num_threads(1)
    kinds = {
        "sync": {"sync": True},
        "async": {"sync": False},
        "backup": {"backup": 1},
    }
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**kinds[kind]))
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        time.sleep(sleep_s)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds


if MODE == "raw-server":
    raw_server(int(ARGUMENTS[0]))
elif MODE == "raw":
    print(json.dumps(raw(ARGUMENTS[0], *map(int, ARGUMENTS[1:]))), flush=True)
elif MODE == "grpc-server":
    grpc_server(int(ARGUMENTS[0]))
elif MODE == "grpc":
    print(json.dumps(by_grpc(ARGUMENTS[0], *map(int, ARGUMENTS[1:]))), flush=True)
elif MODE == "ps":
    print(json.dumps(served(*map(int, ARGUMENTS))), flush=True)
else:
    print(json.dumps(steps(ARGUMENTS[0], float(ARGUMENTS[1]), int(ARGUMENTS[2]))), flush=True)
