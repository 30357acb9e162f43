"""Two ranks that report 20 values each step at about 1,000 steps a second: how much it slows them, and what a value
costs on disk.
"""

from __future__ import annotations

from pathlib import Path

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "metrics.py"
STEPS, VALUES = 15_000, 20


def run(pairs: int = 3) -> list[table.Row]:
    ratios, rates, arrived, stored = [], [], 0, 0
    with servers.server() as server:
        (server.work / "metrics.py").write_text(SCRIPT.read_text())
        for number in range(pairs):
            without = _seconds(server, f"without-{number}", 0)
            with_values = _seconds(server, f"with-{number}", VALUES)
            ratios.append(with_values / without)
            rates.append(STEPS / with_values)
        last = f"with-{pairs - 1}"
        with server.client() as client:
            answer = client.get(f"/jobs/{last}/metrics", params={"points": 10}).raise_for_status().json()
            arrived = sum(series["count"] for series in answer["series"] if series["name"].startswith("value_"))
            job = client.get(f"/jobs/{last}").json()["id"]
        stored = sum(
            path.stat().st_size
            for path in server.home.rglob("*")
            if path.is_file() and "metrics" in path.parts and job in str(path)
        )
    wanted = 2 * STEPS * VALUES
    return [
        table.Row(
            "metrics",
            "training with 2 x 20 values a step, against none",
            table.median(ratios),
            "x",
            1.02,
            detail=f"{table.spread(ratios, '')}; {table.median(rates):.0f} steps/s",
        ),
        table.Row(
            "metrics", "of those values, not arrived", wanted - arrived, "values", 0, detail=f"{wanted:,} reported"
        ),
        table.Row("metrics", "a value stored", stored / max(1, arrived), "bytes", 8),
    ]


def _seconds(server: servers.Server, name: str, values: int) -> float:
    out = server.home / name
    server.run(
        "run",
        "--detach",
        "--workers",
        "2",
        "--name",
        name,
        "--",
        "python",
        "metrics.py",
        str(STEPS),
        str(values),
        str(out),
        cwd=server.work,
    )
    job = server.wait_for(name)
    if job["phase"] != "COMPLETED":
        raise RuntimeError(f"{name} ended {job['phase']}: {job['reason']}")
    return max(float(Path(f"{out}.{rank}").read_text()) for rank in range(2))
