"""What the offline stages of the rivals found, kept in a file: a stopped run goes on with them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval import records


@dataclass
class Kept:
    """Values that JSON can hold by their keys; one line of `path` each, or in this process alone without a path."""

    path: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            records.mend(self.path)
            self.values |= {line["key"]: line["value"] for line in records.read([self.path])}

    def recall(self, key: str, make: Callable[[], Any]) -> Any:
        """The value of a key; made, and kept, the first time that it is asked for."""
        if key not in self.values:
            value = json.loads(json.dumps(make()))  # the same types whether it was read or made
            self.values[key] = value
            if self.path is not None:
                records.append(self.path, [{"key": key, "value": value}])
        return self.values[key]
