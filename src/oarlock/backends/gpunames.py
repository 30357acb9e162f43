"""The words by which jobs ask for types of GPUs, from the names that drivers and node labels give them."""

from __future__ import annotations

import re

_MAKER = re.compile(r"^(nvidia|tesla|geforce|quadro|graphics|device)$")
_FORM = re.compile(r"^(sxm\d?|pcie|pg\d+|nvl|hbm\d\w?|\d+gb?|\d+mb?|gpu|generation|edition|server|workstation)$")


def type_name(name: str) -> str:
    """Return the type as jobs name it: `NVIDIA H100 80GB HBM3` is `h100`, `NVIDIA GeForce RTX 4090` is `rtx4090`.

    The maker and the form (memory, connector) are left out, and the rest is put together.
    """
    words = [word for word in re.split(r"[\s\-_/]+", name.lower()) if word]
    kept = [word for word in words if not _MAKER.match(word) and not _FORM.match(word)]
    if len(kept) > 1 and kept[0] == "rtx" and re.match(r"a\d", kept[1]):
        kept = kept[1:]  # an `RTX A6000` is an a6000
    return re.sub(r"[^a-z0-9]", "", "".join(kept)) or "gpu"
