"""A training run's evaluations on the disk."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from jaxacct import strict_json
from jaxacct.whole_file import PRIVATE, write_whole


class History:
    """A run's evaluations on disk, one a line, after a line with its settings: a resumed run's report has them all."""

    def __init__(self, path: pathlib.Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, strict_json.loads(strict_json.dumps(config))

    def add(self, entry: Any) -> None:
        with os.fdopen(
            os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "a", encoding="utf-8"
        ) as file:
            if file.tell() == 0:
                file.write(strict_json.dumps(self.config) + "\n")
            file.write(_line(entry))

    def check(self) -> None:
        """Raises ValueError where the settings were others."""
        from jaxacct.train.leaves import differences

        there, _ = self._read()
        if differing := differences(there, {name: self.config.get(name) for name in there}):
            raise ValueError(
                f"{self.path.parent} is of a run with other settings ({differing}): give those, or another --out."
            )

    def until(self, steps: int) -> list[Any]:
        """Returns the evaluations of the first ``steps`` steps, and leaves no others in the file."""
        kept = [entry for entry in self._read()[1] if entry.step <= steps]
        lines = [strict_json.dumps(self.config) + "\n", *map(_line, kept)]
        write_whole(self.path, lambda file: file.write("".join(lines).encode()), mode=PRIVATE)
        return kept

    def _read(self) -> tuple[dict[str, Any], list[Any]]:
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1] if self.path.exists() else []
        try:
            there, *entries = [strict_json.loads(line) for line in lines] or [{}]
            return dict(there), [_evaluation(*entry) for entry in entries]
        except (ValueError, TypeError):
            raise ValueError(f"{self.path} is damaged: delete it to go on without the evaluations so far.") from None


def _line(entry: Any) -> str:
    return strict_json.dumps([*entry[:-1], dict(entry.metrics)]) + "\n"


def _evaluation(step: Any, reached: Any, epsilon: Any, metrics: Any = ()) -> Any:
    from jaxacct.train.state import Evaluation

    return Evaluation(int(step), None if reached is None else float(reached), float(epsilon), dict(metrics))
