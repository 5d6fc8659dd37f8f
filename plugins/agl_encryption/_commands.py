"""``agl store key`` and ``agl store rekey``."""

from __future__ import annotations

import click

from agl_core.cli.group import CliState, debug_option, plugin_option


@click.command()
def key() -> None:
    """Print a new key for AGL_ENCRYPTION_KEY."""
    from agl_encryption._keys import new_key  # noqa: PLC0415

    click.echo(new_key())


@click.command()
@click.argument("target", metavar="STORE")
@click.option("--all", "everything", is_flag=True, help="Also what has the active key already.")
@plugin_option
@debug_option
@click.pass_obj
def rekey(state: CliState, *, target: str, everything: bool) -> None:
    """Encrypt everything in a store with the active key.

    STORE is a run's directory, its configuration, a store's file or an address. All keys are
    needed: the active one, and those of what is stored. What is not encrypted is encrypted too.
    Give the new key to every process of the run first, as the active one of several; runs may
    use the store meanwhile. An interrupted command is repeated: it continues.
    """
    import asyncio  # noqa: PLC0415

    from agl_stores import bare_store_at, locate_store  # noqa: PLC0415

    from agl_core.config import validate  # noqa: PLC0415
    from agl_core.errors import ConfigError  # noqa: PLC0415
    from agl_core.store import BaseStore, SqliteOptions, SqliteStore  # noqa: PLC0415
    from agl_encryption._cipher import Cipher  # noqa: PLC0415
    from agl_encryption._keys import Keys, load_keys  # noqa: PLC0415
    from agl_encryption._options import FIELDS, EncryptionOptions  # noqa: PLC0415
    from agl_encryption._records import Sealing  # noqa: PLC0415
    from agl_encryption._rekey import Rekeyed  # noqa: PLC0415
    from agl_encryption._rekey import rekey as encrypt_again  # noqa: PLC0415

    address = locate_store(target, state.plugins())
    sections = address.run.sections if address.run is not None and address.named else {}
    given = sections.get("encryption")
    options = None
    if given is not None:
        options = validate(EncryptionOptions, given, where="encryption")
    keys = load_keys(options) or Keys({})
    sealing = Sealing(Cipher(keys), options.fields if options else FIELDS)
    store = bare_store_at(address, state.plugins())
    if isinstance(address.options, SqliteOptions):
        # Attempts of runners in other processes continue.
        file, wait_s = address.options.file(address.directory), address.options.busy_timeout_s
        store = SqliteStore(file, busy_timeout_s=wait_s, orphans="keep")
    if not isinstance(store, BaseStore):
        raise ConfigError(
            f"Store {address.config.name!r} is another process: run agl store rekey with the "
            f"file or database that it serves"
        )

    async def work() -> Rekeyed:
        await store.open()
        try:
            return await encrypt_again(store, sealing, everything=everything)
        finally:
            await store.close()

    done = asyncio.run(work())
    click.echo(
        f"encrypted with key {keys.active}: {done.rollouts} tasks, {done.attempts} attempts, "
        f"{done.spans} spans and {done.resources} versions of resources; {done.kept} records "
        f"needed no change"
    )
