"""Results in the server's own place go with the job's record, and nothing else does."""

from __future__ import annotations

from pathlib import Path

from tests.api import rig as rigs


async def test_results_are_forgotten_with_their_job(rig: rigs.Rig) -> None:
    kept, gone = (await rig.submit("ann", name="kept")).id, (await rig.submit("ann", name="gone")).id
    root = Path(rig.services.about.home, "results")
    for job_id in (kept, gone):
        (root / job_id / "run").mkdir(parents=True)
        (root / job_id / "run" / "model.pt").write_bytes(b"weights")
    async with rig.as_user("ann") as http:
        await http.put(f"/api/v1/jobs/{gone}/intent", json={"intent": "cancel"})
        assert (await http.delete(f"/api/v1/jobs/{gone}")).status_code == 204
    assert [path.name for path in root.iterdir()] == [kept]
    await rig.results.forget(gone)
