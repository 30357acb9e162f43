"""TF_CONFIG as TensorFlow reads it, without TensorFlow: everyone serves at its own address of the cluster, workers and
the chief train against the parameter server, and that one serves until it is ended (as `Server.join` does).
"""

import json
import os
import signal
import socket
import time


def listen() -> socket.socket:
    host, _, port = cluster[role][index].rpartition(":")
    return socket.create_server((host, int(port)))


def connect(address: str) -> socket.socket:
    """Connect to a task that may not listen yet, as TensorFlow's channels do."""
    host, _, port = address.rpartition(":")
    for _ in range(600):
        try:
            return socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit(f"{address} never listened")


def serve(server: socket.socket, trainers: int) -> None:
    """Average what every trainer sends in a step, and send the sum of all steps back."""
    files = [server.accept()[0].makefile("rw") for _ in range(trainers)]
    weight = 0.0
    for _ in range(20):
        weight -= 0.1 * sum(sorted(float(file.readline()) for file in files)) / trainers
        for file in files:
            file.write(f"{weight!r}\n")
            file.flush()
    signal.pause()


def train(target: float) -> float:
    weight = 0.0
    file = connect(cluster["ps"][0]).makefile("rw")
    for _ in range(20):
        file.write(f"{2 * (weight - target)!r}\n")
        file.flush()
        weight = float(file.readline())
    return weight


config = json.loads(os.environ["TF_CONFIG"])
cluster, role, index = config["cluster"], config["task"]["type"], config["task"]["index"]
sizes = {name: len(addresses) for name, addresses in sorted(cluster.items())}
if role == "evaluator":
    print(f"evaluator {index} beside {sizes}", flush=True)
else:
    with listen() as mine:
        print(f"{role} {index} of {sizes}", flush=True)
        trainers = [f"chief {i}" for i in range(sizes["chief"])] + [f"worker {i}" for i in range(sizes["worker"])]
        if role == "ps":
            serve(mine, len(trainers))
        print(f"{role} {index}: weight {train(trainers.index(f'{role} {index}')):.9f}", flush=True)
