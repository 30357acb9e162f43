"""The synchronous SDK is the one that `make sdk` makes from the asynchronous one."""

from __future__ import annotations

from pathlib import Path

from tools import sdk


def test_the_synchronous_sdk_is_up_to_date(tmp_path: Path) -> None:
    sdk.generate(tmp_path)
    for name in sdk.MODULES:
        file = sdk.CLIENT / "synchronous" / f"{name}.py"
        assert (sdk.ROOT / file).read_text() == (tmp_path / file).read_text(), f"{file} is stale: run `make sdk`"


def test_the_two_folders_have_the_same_modules() -> None:
    here = {path.name for path in (sdk.ROOT / sdk.CLIENT / "synchronous").glob("*.py")}
    assert here == {path.name for path in (sdk.ROOT / sdk.CLIENT / "asynchronous").glob("*.py")}
    assert here == {"__init__.py", "waiting.py", *(f"{name}.py" for name in sdk.MODULES)}
