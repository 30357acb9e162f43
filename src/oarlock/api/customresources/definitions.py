"""The definition of the custom resource OarlockJob (`deploy/base/definitions.yaml`), made from structs of the job file.

`python -m oarlock.api.customresources.definitions` prints it. The schema is structural, as Kubernetes demands: no
references, a type at each place. A field that takes a number or a text has none, and the server judges it. Unknown
fields are kept, so that the server sees them and names them in a condition; the API server would drop them silently.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml
from msgspec import inspect

from oarlock.spec import jobfile, resources

Schema = dict[str, Any]

HEAD = "# Made by `make definitions` from the structs of the job file: do not change it by hand.\n"

KEEP = "x-kubernetes-preserve-unknown-fields"
_COLUMNS = (
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


def definition() -> Schema:
    """Return the CustomResourceDefinition of OarlockJob."""
    spec = schema(JobResource)
    del spec["properties"]["name"]
    names = {"kind": "OarlockJob", "listKind": "OarlockJobList", "plural": "oarlockjobs", "singular": "oarlockjob"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{resources.GROUP}"},
        "spec": {
            "group": resources.GROUP,
            "names": {**names, "shortNames": ["oj"]},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": resources.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS
                    ],
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A job of Oarlock: a gang of processes that train together.",
                            "required": ["spec"],
                            "properties": {"spec": spec, "status": schema(resources.JobStatus)},
                        }
                    },
                }
            ],
        },
    }


def text() -> str:
    """Return the file of the definitions."""
    return HEAD + yaml.safe_dump(definition(), sort_keys=False, width=120)


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
