"""The definitions of OarlockJob and OarlockPool (`deploy/base/definitions.yaml`), made from their structs.

`python -m oarlock.api.customresources.definitions` prints it. The schema is structural, as Kubernetes demands: no
references, a type at each place. A field that takes a number or a text has none, and the server judges it. Unknown
fields are kept, so that the server sees them and names them in a condition; the API server would drop them silently.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from oarlock.spec import jobfile, resources

Schema = dict[str, Any]

HEAD = "# Made by `make definitions` from the structs of the job file: do not change it by hand.\n"

KEEP = "x-kubernetes-preserve-unknown-fields"
Columns = tuple[tuple[str, str, str], ...]
_POOL_COLUMNS: Columns = (
    ("Parent", "string", ".spec.parent"),
    ("Running", "integer", ".status.running"),
    ("Waiting", "integer", ".status.waiting"),
    ("GPUs", "number", ".status.held.gpus"),
    ("Entitled", "number", ".status.entitlement.gpus"),
    ("Limit", "number", ".status.limit.gpus"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_COLUMNS: Columns = (
    ("Phase", "string", ".status.phase"),
    ("Workers", "string", ".status.workers"),
    ("Age", "date", ".metadata.creationTimestamp"),
    ("Reason", "string", ".status.reason"),
)


class JobResource(jobfile.JobSpec, frozen=True):
    """A job file, but for `name`: the job has the name of its object.

    `halt` stops the job with its checkpoint, and `false` resumes it. `snapshot` is the digest of uploaded code; without
    it the code is in the image. `continues` is `JOB` or `JOB@STEP`, a checkpoint of another job to begin from.
    """

    halt: bool = False
    snapshot: str | None = None
    continues: str | None = None


OWN = tuple(name for name in JobResource.__struct_fields__ if name not in jobfile.JobSpec.__struct_fields__)
"""The fields of the spec that a job file does not have."""


def schema(kind: Any) -> Schema:
    """Return the structural schema of a type."""
    return _schema(inspect.type_info(kind))


class PoolResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pool, but for its name, which is that of the object. Amounts by resource (`gpus`, `cpus`, `memory`) are numbers
    (devices, cores, bytes) or texts: `64Gi`, `500m`. A field that is left out is none.
    """

    parent: str | None = None
    reserve: dict[str, float | str] | None = None
    limit: dict[str, float | str] | None = None
    share: dict[str, float | str] | None = None
    static: tuple[str, ...] | None = None
    policy: str | None = None


def definition() -> Schema:
    """Return the CustomResourceDefinition of OarlockJob."""
    spec = schema(JobResource)
    del spec["properties"]["name"]
    text = "A job of Oarlock: a gang of processes that train together."
    return _definition("OarlockJob", "oj", "Namespaced", text, _COLUMNS, spec, schema(resources.JobStatus))


def pool_definition() -> Schema:
    """Return the CustomResourceDefinition of OarlockPool."""
    text = "A resource pool of Oarlock: its reservation, limit and share. It belongs to no namespace."
    spec, status = schema(PoolResource), schema(resources.PoolStatus)
    return _definition("OarlockPool", "op", "Cluster", text, _POOL_COLUMNS, spec, status)


def _definition(kind: str, short: str, scope: str, text: str, columns: Columns, spec: Schema, status: Schema) -> Schema:
    names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{kind.lower()}s", "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{resources.GROUP}"},
        "spec": {
            "group": resources.GROUP,
            "names": {**names, "shortNames": [short]},
            "scope": scope,
            "versions": [
                {
                    "name": resources.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in columns
                    ],
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": text,
                            "required": ["spec"],
                            "properties": {"spec": spec, "status": status},
                        }
                    },
                }
            ],
        },
    }


def text() -> str:
    """Return the file of the definitions."""
    found = [definition(), pool_definition()]
    return HEAD + yaml.safe_dump_all(found, sort_keys=False, width=120)


def _schema(info: inspect.Type) -> Schema:
    match info:
        case inspect.StructType():
            return _object(info)
        case inspect.UnionType():
            return _union(info)
        case inspect.EnumType():
            return {"type": "string", "enum": sorted(str(one) for one in info.cls)}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema(info.value_type)}
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema(info.item_type)}
        case inspect.StrType():
            return {"type": "string"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer"}
        case inspect.FloatType():
            return {"type": "number"}
        case _:
            raise TypeError(f"no structural schema for {info}")


def _object(info: inspect.StructType) -> Schema:
    found: Schema = {"type": "object"}
    if info.cls.__doc__:
        found["description"] = " ".join(info.cls.__doc__.split())
    required = [field.encode_name for field in info.fields if field.required]
    if required:
        found["required"] = required
    found["properties"] = {field.encode_name: _schema(field.type) for field in info.fields}
    if info.forbid_unknown_fields:
        found[KEEP] = True
    return found


def _union(info: inspect.UnionType) -> Schema:
    """Return the schema of the one type beside null; several types have none that Kubernetes could express."""
    others = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    found: Schema = _schema(others[0]) if len(others) == 1 else {KEEP: True}
    return {**found, "nullable": True} if len(others) < len(info.types) else found


if __name__ == "__main__":
    sys.stdout.write(text())
