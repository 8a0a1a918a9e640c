"""What lies in a disk tier's directory, as a table or JSON. Knows how to show it; the tier's own modules look."""

import json
import time
from dataclasses import asdict

from rich.table import Table

from aiokvoffload.tiering.disk.inspection import Inspection, Verification


def inspection_json(inspection: Inspection, verification: Verification | None) -> str:
    """Both records as one JSON object; `verification` is null where nothing was verified."""
    found = asdict(inspection) | {"chunks": inspection.chunks}
    return json.dumps(found | {"verification": asdict(verification) if verification else None}, indent=2)


def inspection_table(inspection: Inspection, verification: Verification | None) -> Table:
    """Both for people."""
    table = Table(title=f"{inspection.directory}: a disk tier, format {inspection.format_version}")
    table.add_column("figure")
    table.add_column("value", justify="right", overflow="fold")
    rows = [
        ("namespace", inspection.namespace),
        ("workers, directories", f"{inspection.num_workers}, {inspection.num_directories}"),
        ("made", _time(inspection.created_s)),
        ("chunks", f"{inspection.chunks:,}"),
        (
            "stored, the earliest and the latest",
            f"{_time(inspection.first_stored_s)}, {_time(inspection.last_stored_s)}",
        ),
        ("payload", f"{inspection.payload_bytes:,} B"),
        ("index", f"{inspection.index_bytes:,} B"),
    ]
    for pool in inspection.pools:
        groups = ", ".join(map(str, pool.groups))
        rows.append((f"chunks of {pool.chunk_bytes:,} B (groups {groups})", f"{pool.chunks:,} of {pool.slots:,} slots"))
    if verification is not None:
        rows.append(("right, corrupt, unreadable", _verified(verification)))
    for row in rows:
        table.add_row(*row)
    return table


def _verified(verification: Verification) -> str:
    figures = f"{verification.right:,}, {verification.corrupt:,}, {verification.unreadable:,}"
    return figures if verification.is_right else f"[bold red]{figures}[/]"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
