"""A short form of the campaign in which the drivers of real searches are killed."""

import json
import os
import subprocess
import sys

import kill_campaign
import pytest


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_kills_do_not_show(tmp_path):
    report = tmp_path / "records.json"
    command = [
        *(sys.executable, kill_campaign.__file__, "--only=asha_v2-eager"),
        *("--kills=3", "--per-search=3", f"--folder={tmp_path}", f"--json={report}"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ}, timeout=380
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A search that ends before its last kill is followed by another one.
    records = json.loads(report.read_text())
    assert sum(record["kills"] for record in records) >= 2
    assert all(record["compared"] and not record["faults"] for record in records)


def test_row_that_is_there_twice_is_a_fault(tmp_path):
    run = kill_campaign.Run("asha", 0, 0)
    rows = [1, 2, 2, 3]
    lines = [json.dumps({"training_iteration": row}) for row in rows]
    (tmp_path / "result.json").write_text("\n".join(lines) + "\n")
    (tmp_path / "progress.csv").write_text(
        "training_iteration\n" + "\n".join(map(str, rows)) + "\n"
    )
    [fault] = kill_campaign._faults_of_logs(
        run, 0, {"training_iteration": 3}, str(tmp_path)
    )
    assert "[1, 2, 2, 3]" in fault


def test_searches_that_differ_are_a_fault(tmp_path, monkeypatch):
    def execute(run, folder, address, timeout_s):
        os.makedirs(folder)
        return run.kills, ""

    def outcome(run, folder):
        return {"0": ["TERMINATED", 3 + ("uninterrupted" in folder)]}, []

    monkeypatch.setattr(kill_campaign, "execute", execute)
    monkeypatch.setattr(kill_campaign, "outcome", outcome)
    [record] = kill_campaign.run(["asha"], 1, 1, 0, str(tmp_path), "nowhere")
    assert "instead of" in record["faults"][0]
    assert "asha         1      1         1            1" in kill_campaign.table(
        [record]
    )


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
