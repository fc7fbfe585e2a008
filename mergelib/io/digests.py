"""Hash input files in threads while they are merged."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from mergelib.io.checkpoint import Checkpoint
from mergelib.io.files import InputFile
from mergelib.progress import progress

NOTE = "mergelib.inputs"  # in metadata


@contextlib.contextmanager
def hashing(inputs: Mapping[str, Checkpoint]) -> Iterator[Callable[[], dict[str, str]]]:
    """Hash the files of models in threads beside the block, and stop where it ends.

    Yields a function that waits for the hashes and returns them as metadata: of a model in one file
    its SHA-256, of others the hash of the lines that ``sha256sum`` prints. It raises ``ValueError``
    if a file changed.
    """
    stopped = threading.Event()

    def sha256(file: InputFile) -> str:
        state, buffer = hashlib.sha256(), memoryview(bytearray(2**18))
        with file.opened() as stream:
            while not stopped.is_set() and (count := stream.readinto(buffer)):
                state.update(buffer[:count])
        return state.hexdigest()

    def metadata() -> dict[str, str]:
        bar = progress(hashed.items(), "hashing", leave=False)
        digests = {path: digest.result() for path, digest in bar}
        hashes = {}
        for name, model in inputs.items():
            paths = sorted(file.path for file in model.files)
            lines = "".join(f"{digests[path]}  {path.name}\n" for path in paths)
            several = hashlib.sha256(lines.encode()).hexdigest()
            hashes[name] = several if len(paths) > 1 else digests[paths[0]]
        return {NOTE: json.dumps(hashes)}

    files = {file.path: file for model in inputs.values() for file in model.files}
    with ThreadPoolExecutor() as pool:
        hashed = {path: pool.submit(sha256, file) for path, file in files.items()}
        try:
            yield metadata
        finally:
            stopped.set()
