# Serves calls of one function. Frames are a letter, a length (8 bytes, little endian) and that many bytes.
#
# In: H (hello, JSON), C (the columns, JSON), then R and S (rows, a JSON array; S: answer every row by itself) or B (a
# batch, an Arrow IPC stream).
# Out: K (done) or F (failed) for H and C, then for every message A frames (one line of JSON per row), or a B or an X
# frame (a batch, or why there is none), and an E frame at its end with what was loaded.
OWN = globals()
# Bytes of answers that are sent together, and seconds after which they are sent anyway.
TOGETHER, SOON = 4 << 20, 0.05

# What the function prints to stdout goes to stderr, and its stdin is empty. Programs that it starts inherit neither
# descriptor of the protocol; forked processes close them.
INPUT, OUTPUT = os.dup(0), os.dup(1)
_null = os.open(os.devnull, os.O_RDWR)
os.dup2(_null, 0)
os.dup2(2, 1)
os.close(_null)
sys.stdout.reconfigure(line_buffering=True)
serves = True


def forked():
    global serves
    serves = False
    os.close(INPUT)
    os.close(OUTPUT)


os.register_at_fork(after_in_child=forked)


def leave_if_forked():
    """A process that the function has forked, and that came back from it, answers nothing."""
    if not serves:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def receive(length):
    pieces = []
    while length > 0:
        piece = os.read(INPUT, min(length, 1 << 20))
        if not piece:
            if pieces:
                os._exit(1)
            return b""
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def send(kind, payload):
    leave_if_forked()
    for view in (memoryview(kind + len(payload).to_bytes(8, "little")), memoryview(payload)):
        while view:
            view = view[os.write(OUTPUT, view) :]


# Files that Python opened since the last report, where the system does not tell them, and folders that it listed; with
# the flags of `open`.
opened = {}
# Modules that list folders for their caller, and packages that list folders to find modules.
HELPERS = ("os", "glob", "pathlib", "shutil", "genericpath", "posixpath")
FINDERS = ("importlib", "_frozen_importlib_external", "pkgutil", "importlib_metadata", "pkg_resources")


def listen(hears_files):
    def note(event, given):
        if event in ("os.listdir", "os.scandir"):
            if not finds_modules(sys._getframe(1)):
                opened.setdefault(folder(given[0]), os.O_DIRECTORY)
        elif hears_files and event in ("open", "sqlite3.connect") and isinstance(given[0], (str, bytes)):
            flags = given[2] if event == "open" else os.O_RDWR
            opened.setdefault(os.path.abspath(os.fsdecode(given[0])), flags)

    sys.addaudithook(note)


def folder(given):
    if given is None:
        return os.getcwd()
    if isinstance(given, int):
        return os.path.realpath("/dev/fd/{}".format(given))
    return os.path.abspath(os.fsdecode(given))


def finds_modules(frame):
    """Whether a folder is listed on behalf of an import."""
    while frame is not None:
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package not in HELPERS:
            return package in FINDERS
        frame = frame.f_back
    return False


def report(function):
    """Returns what was loaded and opened since the last report."""
    told = {"modules": function.loaded(), "opened": [(readable(path), flags) for path, flags in opened.copy().items()]}
    opened.clear()
    return told


def send_json(kind, value):
    send(kind, json.dumps(value).encode())


def answer_rows(function, payload, alone):
    import time

    lines, size, sent = [], 0, time.monotonic()
    for row in json.loads(payload):
        line = function.of_row(row)
        leave_if_forked()
        lines.append(line)
        size += len(line)
        if alone or size > TOGETHER or time.monotonic() - sent > SOON:
            send(b"A", b"\n".join(lines))
            lines, size, sent = [], 0, time.monotonic()
    if lines:
        send(b"A", b"\n".join(lines))


def beside(table, batch):
    """Adds the columns of the batch that the function left out."""
    if table.num_rows != batch.num_rows:
        what = "the function returned {} rows for a batch of {}".format(table.num_rows, batch.num_rows)
        raise Unfit(what + ": return a pyarrow.Table, or a dict with one value per row")
    for name, column in zip(batch.schema.names, batch.columns):
        if name not in table.column_names:
            table = table.append_column(batch.schema.field(name), [column])
    return table


def table_of(result, batch):
    import pyarrow

    if isinstance(result, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([result])
    if isinstance(result, pyarrow.Table):
        return result
    if isinstance(result, dict):
        return beside(pyarrow.table(result), batch)
    if hasattr(result, "__arrow_c_stream__"):
        return pyarrow.table(result)
    if isinstance(result, list) and all(isinstance(row, dict) for row in result):
        return pyarrow.Table.from_pylist(result)
    help = "return a pyarrow.RecordBatch, a pyarrow.Table, a dict of lists, or None"
    raise Unfit("the function returned {}: {}".format(described(result), help))


def answer_batch(function, payload):
    import pyarrow

    try:
        with pyarrow.ipc.open_stream(payload) as stream:
            batch = stream.read_next_batch()
        result = function.call(batch, **function.arguments)
        if type(result) is types.CoroutineType:
            result = function.awaited(result)
        if result is None:
            return send(b"B", b"")
        table = table_of(result, batch).combine_chunks()
        if table.nbytes > max(MOST_BYTES, 1 << 30):
            raise Unfit("the function returned more than 1 GiB for one batch")
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        send(b"B", sink.getvalue())
    except Unfit as error:
        leave_if_forked()
        send_json(b"X", {"message": readable(str(error)), "unfit": True})
    except BaseException as error:
        leave_if_forked()
        send_json(b"X", {"message": said(error), "traceback": traced(error)})


def serve():
    kind, payload = message()
    try:
        asked = json.loads(payload)
        listen(asked["listens"])
        function = Function(asked)
        told = {"version": version(), "takes": function.takes, "is_class": function.is_class}
        send_json(b"K", dict(told, **report(function)))
        kind, payload = message()
        if kind == b"":
            return
        function.settle(json.loads(payload))
        send_json(b"K", dict(told, **report(function)))
    except Failed as error:
        trace = traced(error.cause) if error.cause is not None else ""
        send_json(b"F", {"message": readable(str(error)), "help": readable(error.help), "traceback": trace})
        return
    while True:
        kind, payload = message()
        if kind == b"":
            return
        if kind == b"B":
            answer_batch(function, payload)
        else:
            answer_rows(function, payload, kind == b"S")
        send_json(b"E", report(function))


def message():
    head = receive(9)
    if not head:
        return b"", b""
    return head[:1], receive(int.from_bytes(head[1:], "little"))


serve()
