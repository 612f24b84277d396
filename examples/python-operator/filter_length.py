"""Keeps documents of a certain length and adds a column with their number of words.

An operator of searchmill in Python: an Arrow IPC stream comes in on stdin and goes out on stdout, params are JSON in
SEARCHMILL_PARAMS, messages go to stderr. Batches are handled one by one, so the input may be larger than memory.
"""

import json
import os
import sys

import pyarrow as pa
import pyarrow.compute as pc


def main() -> None:
    params = json.loads(os.environ["SEARCHMILL_PARAMS"])
    shortest = params.get("min_words", 1)
    longest = params.get("max_words", sys.maxsize)
    seen = kept = 0
    with pa.ipc.open_stream(sys.stdin.buffer) as rows:
        schema = rows.schema.append(pa.field("words", pa.int64()))
        with pa.ipc.new_stream(sys.stdout.buffer, schema) as out:
            for batch in rows:
                words = pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(batch["text"])))
                words = words.cast(pa.int64())
                fits = pc.and_(pc.greater_equal(words, shortest), pc.less_equal(words, longest))
                result = pa.RecordBatch.from_arrays([*batch.columns, words], schema=schema).filter(fits)
                out.write_batch(result)
                seen, kept = seen + len(batch), kept + len(result)
    print(f"kept {kept} of {seen} documents", file=sys.stderr)


if __name__ == "__main__":
    main()
