"""The command ``agl store migrate``."""

from __future__ import annotations

import click

from agl_core.cli.group import CliState, debug_option


@click.command()
@click.argument("address")
@debug_option
@click.pass_obj
def command(state: CliState, *, address: str) -> None:
    """Create or update the tables of a store in a database.

    ADDRESS is that of the database, such as postgresql://user:password@host/database. A store that
    finds no tables creates them itself. It never changes tables of an older release: stop every
    process that uses the store, run this command, and start them with the new release.
    """
    from agl_stores import store_at  # noqa: PLC0415

    from agl_core.errors import ConfigError  # noqa: PLC0415
    from agl_core.store import store_options, without_password  # noqa: PLC0415
    from agl_postgres._connect import Server, connection_errors  # noqa: PLC0415
    from agl_postgres._options import PostgresOptions  # noqa: PLC0415
    from agl_postgres._schema import migrate  # noqa: PLC0415

    options = store_options(store_at(address, state.plugins()), state.plugins())
    if not isinstance(options, PostgresOptions):
        raise ConfigError(f"{without_password(address)!r} is a store without tables to migrate")
    server = Server.of(options)
    with connection_errors(server.shown):
        before, after = migrate(server)
    done = f"updated from version {before} to {after}" if before else f"created, version {after}"
    click.echo(f"Tables of {server.shown.address}: {done if before != after else 'up to date'}")
