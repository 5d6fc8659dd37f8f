"""A page of NiceGUI with the same rows as the page of rollouts: ``nicegui_side.py INDEX PORT``."""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

from nicegui import ui

PAGE = 50
COLUMNS = ("id", "status", "reward", "step", "task", "tokens", "seconds")


class Rows:
    """Pages of the dashboard's own index, by place."""

    def __init__(self, index: str) -> None:
        self._sql = sqlite3.connect(f"file:{index}?mode=ro", uri=True, check_same_thread=False)

    def page(self, after: str | None, *, back: bool = False) -> list[dict[str, Any]]:
        sign, way = (">", "ASC") if back else ("<", "DESC")
        where = f"WHERE id {sign} ?" if after else ""
        found = self._sql.execute(
            f"SELECT {', '.join(COLUMNS)} FROM rows {where} ORDER BY id {way} LIMIT {PAGE}",
            [after] if after else [],
        )
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in found]
        return rows[::-1] if back else rows

    def total(self) -> str:
        (number,) = self._sql.execute(
            "SELECT count(*) FROM (SELECT 1 FROM rows LIMIT 10001)"
        ).fetchone()
        return f"{min(number, 10_000):,}{'+' if number > 10_000 else ''}"


def main(index: str, port: int) -> None:
    """Serve the page until the process is ended."""
    rows = Rows(index)

    @ui.page("/")
    def listing() -> None:
        ui.label(f"Rollouts {rows.total()}")
        columns = [{"name": name, "label": name, "field": name} for name in COLUMNS]
        table = ui.table(columns=columns, rows=rows.page(None), row_key="id")

        def turn(*, back: bool) -> None:
            place = table.rows[0 if back else -1]["id"]
            table.rows = rows.page(place, back=back)

        ui.button("Previous", on_click=lambda: turn(back=True)).classes("previous")
        ui.button("Next", on_click=lambda: turn(back=False)).classes("next")

    ui.run(host="127.0.0.1", port=port, show=False, reload=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
