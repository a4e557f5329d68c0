"""`python -m tests.aot.call module:function ARGUMENTS`: calls it with a JSON list, and prints its result as JSON."""

import contextlib
import importlib
import json
import sys


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    with contextlib.redirect_stdout(sys.stderr):
        result = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
