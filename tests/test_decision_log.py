"""What becomes of trials, and why, is on disk, and can be drawn."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from virtual_cluster import (
    Costs,
    ScriptedScheduler,
    VirtualCluster,
    driver_death,
    task_error,
)

from ray.tune.schedulers import (
    ASHAv2,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.pb2 import PB2

pytest.importorskip("ray.tune.draw", reason="stock Ray has no log of decisions")

from ray.tune.draw.__main__ import main as draw  # noqa: E402
from ray.tune.draw.history import make_history, read_decisions  # noqa: E402
from ray.tune.execution import decision_log  # noqa: E402


def own():
    paused = set()

    def decide(controller, trial, result):
        at = result["training_iteration"]
        if at == 2 and trial.trial_id not in paused:
            paused.add(trial.trial_id)
            return "PAUSE"
        return "STOP" if at == 4 else "CONTINUE"

    def choose(controller):
        for status in ("PENDING", "PAUSED"):
            for trial in controller.get_trials():
                if trial.status == status:
                    return trial
        return None

    return ScriptedScheduler(decide, choose)


def pbt(cls=PopulationBasedTraining, **kwargs):
    space = {"x": [0.1, 0.9]}
    if cls is PB2:
        kwargs["hyperparam_bounds"] = {"x": [0.0, 1.0]}
    else:
        kwargs["hyperparam_mutations"] = space
    return cls(time_attr="training_iteration", perturbation_interval=2, **kwargs)


SCHEDULERS = {
    "ASHAv2": lambda: ASHAv2(max_t=9, reduction_factor=3),
    "ASHAv2 with brackets": lambda: ASHAv2(max_t=9, reduction_factor=3, brackets=2),
    "HyperBand": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "HyperBandForBOHB": lambda: HyperBandForBOHB(max_t=9, reduction_factor=3),
    "PBT": pbt,
    "synchronous PBT": lambda: pbt(synch=True),
    "ResourceChangingScheduler": lambda: ResourceChangingScheduler(
        ASHAv2(max_t=9, reduction_factor=3)
    ),
    "FIFO": FIFOScheduler,
    "a scheduler of one's own": own,
}


def run(scheduler, path, **kwargs):
    settings = {
        "num_samples": 9,
        "slots": 2,
        "stop": {"training_iteration": 9},
        "storage_path": str(path),
        "checkpoint_period": 5,
        "costs": Costs(start=2, train=1, save=0.5, stop=0.1),
        **kwargs,
    }
    return VirtualCluster.of(scheduler, **settings).run(max_events=3000)


def read(path):
    return read_decisions(str(path / "experiment"))


def check(entries, record):
    """The lines are whole, each trial's are in order, and end as the trial has."""
    assert [entry["number"] for entry in entries] == list(range(len(entries)))
    times = [entry["time"] for entry in entries]
    assert times == sorted(times)
    state = {}
    for entry in entries:
        if entry["action"] == "restore":
            state = {t: "pending" if s == "running" else s for t, s in state.items()}
        if "trial" not in entry:
            continue
        trial, action = entry["trial"], entry["action"]
        before = state.get(trial, "pending")
        if action == "start":
            assert before == "pending", entry
            state[trial] = "running"
        elif action == "pause":
            assert before in ("running", "pending"), entry
            assert entry["why"]
            state[trial] = "paused"
        elif action == "promote":
            assert before == "paused", entry
            state[trial] = "pending"
        elif action == "fail" and entry["retry"]:
            assert before == "running", entry
            state[trial] = "pending"
        elif action in ("stop", "fail"):
            state[trial] = "TERMINATED" if action == "stop" else "ERROR"
    assert state == {trial.trial_id: trial.status for trial in record.trials}


@pytest.mark.parametrize("reuse_actors", [False, True])
@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_every_scheduler(tmp_path, name, reuse_actors):
    if name == "ResourceChangingScheduler" and reuse_actors:
        pytest.skip("it cannot reuse actors")
    record = run(SCHEDULERS[name], tmp_path, reuse_actors=reuse_actors)
    entries = read(tmp_path)
    check(entries, record)
    assert entries[0]["action"] == "begin"
    paused = Counter(entry["trial"] for entry in entries if entry["action"] == "pause")
    assert bool(paused) == (name != "FIFO")


def test_pb2(tmp_path):
    pytest.importorskip("sklearn")
    record = run(lambda: pbt(PB2), tmp_path, param_space={"x": 0.5})
    check(read(tmp_path), record)


def test_rungs_are_those_of_asha_v2(tmp_path):
    record = run(SCHEDULERS["ASHAv2 with brackets"], tmp_path, num_samples=30)
    history = make_history(read(tmp_path))
    told = {}
    bracket = None
    for line in record.scheduler.debug_string().splitlines():
        if line.startswith("Bracket"):
            bracket = int(re.search(r"\d+", line)[0])
        elif match := re.search(r"Milestone (\d+): (\d+) recorded", line):
            told[bracket, float(match[1])] = int(match[2]), line
    for key, (recorded, line) in told.items():
        rung = history.rungs.get(key)
        assert len(rung.scores) == recorded if rung else recorded == 0, line
        if rung:
            promoted = int(re.search(r"(\d+) promoted", line)[1])
            assert len(rung.went_on) == promoted, line
            if rung.cutoff is not None and len(rung.scores) == recorded:
                assert rung.cutoff in rung.scores.values()


def test_exploits_are_told(tmp_path):
    run(pbt, tmp_path)
    exploits = [entry for entry in read(tmp_path) if entry["action"] == "exploit"]
    assert exploits
    assert all(re.match("exploits trial t_", entry["why"]) for entry in exploits)


def test_failures_are_told(tmp_path):
    record = run(
        SCHEDULERS["ASHAv2"],
        tmp_path,
        faults=[task_error("train", trial=1, nth=1), task_error("train", trial=4)],
        max_failures=1,
    )
    entries = read(tmp_path)
    check(entries, record)
    failed = [entry for entry in entries if entry["action"] == "fail"]
    assert failed and all(entry["retry"] for entry in failed)
    assert all("why" in entry for entry in failed)
    again = [entry for entry in entries if entry.get("after") == "failure"]
    assert {entry["trial"] for entry in again} == {entry["trial"] for entry in failed}


@pytest.mark.parametrize("max_bytes", [128 * 1024, 600])
@pytest.mark.parametrize("stale", [0, 12])
@pytest.mark.parametrize("after", [15, 30, 45])
def test_restores_lose_and_double_no_line(
    tmp_path, monkeypatch, after, stale, max_bytes
):
    monkeypatch.setattr(decision_log, "_MAX_FILE_BYTES", max_bytes)
    record = run(
        SCHEDULERS["ASHAv2"],
        tmp_path,
        faults=[driver_death(after=after, stale=stale)],
    )
    entries = read(tmp_path)
    check(entries, record)
    assert [e["action"] for e in entries].count("restore") == 1


def test_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(decision_log, "_MAX_FILE_BYTES", 300)
    monkeypatch.setattr(decision_log, "_MAX_FILES", 3)
    run(SCHEDULERS["ASHAv2"], tmp_path, checkpoint_period=1)
    files = sorted((tmp_path / "experiment").glob("decisions-*.jsonl"))
    assert len(files) > 5
    assert len([path for path in files if path.stat().st_size]) <= 4
    entries = read(tmp_path)
    numbers = [entry["number"] for entry in entries]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert make_history(entries).num_dropped == numbers[0] > 0


def test_full_disk_costs_the_log_alone(tmp_path, monkeypatch, caplog):
    def open_file(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decision_log.DecisionLog, "_open_file", open_file)
    record = run(SCHEDULERS["ASHAv2"], tmp_path)
    assert set(record.statuses()) == {"TERMINATED"}
    assert caplog.text.count("The log of decisions is given up") == 1


# Reading


def _lines(*numbers, time=0.0):
    return "".join(
        json.dumps({"number": n, "time": time + n, "action": "begin"}) + "\n"
        for n in numbers
    )


def test_cut_line_is_left_out(tmp_path):
    (tmp_path / "decisions-0000.jsonl").write_text(_lines(0, 1) + '{"number": 2, "ti')
    assert [entry["number"] for entry in read_decisions(str(tmp_path))] == [0, 1]


@pytest.mark.parametrize("first, time", [(3, 0.0), (2, -10.0)])
def test_file_of_a_lost_run_is_left_out(tmp_path, first, time):
    (tmp_path / "decisions-0000.jsonl").write_text(_lines(0, 1))
    (tmp_path / "decisions-0001.jsonl").write_text(_lines(first, time=time))
    assert [entry["number"] for entry in read_decisions(str(tmp_path))] == [0, 1]


def test_values_without_a_word_in_json_can_be_read(tmp_path):
    run(
        SCHEDULERS["ASHAv2"],
        tmp_path,
        trainable=lambda config, i: {"score": float("nan") if i < 3 else 1.0},
    )
    for path in (tmp_path / "experiment").glob("decisions-*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=lambda name: pytest.fail(name))


# Drawing


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    record = run(
        SCHEDULERS["ASHAv2 with brackets"],
        path,
        num_samples=12,
        faults=[task_error("train", trial=9, nth=1), driver_death(after=25, stale=4)],
        max_failures=1,
    )
    page = path / "page.html"
    assert draw([str(path / "experiment"), "--html", str(page)]) == 0
    return record, make_history(read(path)), page


def test_history(drawn):
    record, history, _ = drawn
    assert history.num_slots == 2
    assert set(history.trials) == {trial.trial_id for trial in record.trials}
    by_slot = {}
    for span in history.slots:
        assert span.end is not None and span.start <= span.end
        by_slot.setdefault(span.slot, []).append(span)
    for spans in by_slot.values():
        spans.sort(key=lambda span: span.start)
        for before, after in zip(spans, spans[1:], strict=False):
            assert before.end <= after.start
    assert {"new", "pause", "failure", "restore"} <= {s.kind for s in history.slots}
    assert {"pause", "stop", "retry", "lost"} <= {s.ended_by for s in history.slots}
    assert not history.going_on


def test_page_needs_nothing_else(drawn):
    _, history, page = drawn
    text = page.read_text()
    assert not re.search(r"""(src|href)=|https?://|@import""", text)
    assert text.count('class="run"') == 2 * len(history.slots)
    assert text.count('class="wait"') == len(history.waits)


def test_page_in_a_browser(drawn, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    _, history, page = drawn
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options.append(f"--user-data-dir={tmp_path}")
    shown = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    num_shapes = shown.stdout.count("data-trial=")
    assert num_shapes >= 2 * len(history.slots) + len(history.waits)
    # The script has run, and has found what it is for.
    assert f'data-ready="{num_shapes}"' in shown.stdout
    picture = tmp_path / "page.png"
    subprocess.run(
        [browser, *options, f"--screenshot={picture}", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_run_that_is_going_on_can_be_drawn(tmp_path, capsys):
    cluster = VirtualCluster.of(
        SCHEDULERS["ASHAv2"],
        num_samples=9,
        slots=2,
        storage_path=str(tmp_path),
        checkpoint_period=2,
    ).start()
    cluster.run_until(lambda: cluster.monitor.number > 40)
    page = tmp_path / "page.html"
    assert draw([str(tmp_path / "experiment"), "--html", str(page)]) == 0
    assert "still going on" in page.read_text()
    cluster.run(max_events=1000)
    assert draw([str(tmp_path / "experiment"), "--html", str(page)]) == 0
    assert "still going on" not in page.read_text()


def test_png(drawn, tmp_path):
    pytest.importorskip("matplotlib")
    _, _, page = drawn
    png = tmp_path / "a.png"
    folder = str(page.parent / "experiment")
    assert draw([folder, "--html", str(tmp_path / "a"), "--png", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_is_told(drawn, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    _, _, page = drawn
    html = tmp_path / "a.html"
    arguments = [str(page.parent / "experiment"), "--html", str(html)]
    assert draw([*arguments, "--png", str(tmp_path / "a.png")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err
    assert html.exists()


def test_missing_log_is_told(tmp_path, capsys):
    assert draw([str(tmp_path)]) == 1
    assert "There is no log of decisions in" in capsys.readouterr().err


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
