"""Modes of what is written."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from agl_core.files import make_private_directory, restrict, touch_private, write_private

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_files_and_directories_are_their_owners_alone(tmp_path: Path) -> None:
    """F2: whatever the umask."""
    folder = tmp_path / "a" / "b"
    make_private_directory(folder)
    make_private_directory(folder)
    file = folder / "f"
    write_private(file, b"1")
    write_private(file, b"22")
    touch_private(folder / "g")
    touch_private(file)
    assert file.read_bytes() == b"22"
    assert [mode(path) for path in (tmp_path / "a", folder, file, folder / "g")] == [
        0o700,
        0o700,
        0o600,
        0o600,
    ]


def test_a_file_that_others_could_read_is_closed_when_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    file.chmod(0o644)
    write_private(file, b"1")
    assert mode(file) == 0o600


def test_a_working_directory_that_is_gone_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        make_private_directory(Path("runs/run"))


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_directory(tmp_path)
    assert mode(tmp_path) == 0o755


def test_what_a_library_wrote_is_closed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o644)
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d").chmod(0o755)
    (tree / "d" / "f").touch()
    (tree / "d" / "link").symlink_to(outside)
    restrict(tree)
    assert [mode(tree), mode(tree / "d"), mode(tree / "d" / "f")] == [0o700, 0o700, 0o600]
    assert mode(outside) == 0o644
