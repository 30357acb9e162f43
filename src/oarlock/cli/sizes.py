"""`oarlock sizes`: the T-shirt sizes, CPUs and memory by GPU type."""

from __future__ import annotations

from oarlock.cli import command, terminal


@command.verb("sizes", short_help="List the T-shirt sizes that `run --size` takes")
@command.json_option
def sizes(as_json: bool) -> None:
    """List the T-shirt sizes: what each task of `--size` takes.

    Rows of FfDL are measured and published; the others are extended from them, or from what machines have.
    """
    from oarlock.spec import sizes as table

    found = list(table.TABLE.values())
    if as_json:
        terminal.json_out(
            {
                "items": [
                    {"name": size.name, "cpus": size.cpus, "memory": size.memory}
                    | {"gpus": size.gpus, "gpu_type": size.gpu_type, "source": size.source}
                    for size in found
                ]
            }
        )
        return
    from oarlock.cli import tables

    columns = [
        tables.Column("SIZE"),
        tables.Column("GPUS", right=True),
        tables.Column("TYPE"),
        tables.Column("CPUS", right=True),
        tables.Column("MEMORY", right=True),
        tables.Column("SOURCE"),
    ]
    rows = [
        [size.name, str(size.gpus), size.gpu_type, str(size.cpus), f"{size.memory_gib} GiB", size.source]
        for size in found
    ]
    tables.show(columns, rows)
