"""What services of a run state of themselves."""

from __future__ import annotations

import os

from agl_reading import ServiceLog, ServiceState, read_services


def test_the_newest_state_of_each_service_is_read(tmp_path):
    made = []

    def make():
        made.append(ServiceState(title="Limits", facts={"n": len(made)}, rows=[["a", 1, 0.5]]))
        return made[-1]

    log = ServiceLog(tmp_path, "limits", interval_s=1e9)
    log.write(make)
    log.write(make)  # not yet
    ServiceLog(tmp_path, "events").write(lambda: ServiceState(title="Events"))
    events, limits = read_services(tmp_path)
    assert (events.title, limits.title) == ("Events", "Limits")
    assert (limits.facts, limits.rows) == ({"n": 0}, [["a", 1, 0.5]])
    assert limits.pid == os.getpid()
    assert limits.at > 0
    log.write(make, last=True)
    assert read_services(tmp_path)[1].facts == {"n": 1}


def test_nothing_is_written_without_a_directory(tmp_path):
    missing = tmp_path / "run"
    ServiceLog(missing, "limits").write(lambda: ServiceState(title="Limits"))
    assert not missing.exists()
    assert read_services(missing) == []


def test_files_that_are_none_are_left_out(tmp_path):
    ServiceLog(tmp_path, "limits").write(lambda: ServiceState(title="Limits"))
    folder = tmp_path / "services"
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"title": 1}'), ("d", "\ud83d")):
        (folder / f"{name}.json").write_bytes(text.encode(errors="surrogatepass"))
    (folder / "e.json").mkdir()
    assert [each.title for each in read_services(tmp_path)] == ["Limits"]
