#!/usr/bin/env python3
"""Files to documents: `read` with `layout: files` over generated Markdown and HTML files.

    benches/documents.py [--bin target/release/searchmill] [--files 4000] [--reps 3]

Files have about 4 KB of text in ten sections; pages also have navigation and a footer. searchmill's time is that of the
node in the run's record, on all cores, with hashing, reading and writing Parquet; each pass has a new store. Prints one
JSON line per type.
"""
import argparse, json, os, random, statistics, subprocess, tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--files", type=int, default=4000)
parser.add_argument("--reps", type=int, default=3)
args = parser.parse_args()
binary = os.path.abspath(args.bin)
source = random.Random(1)
WORDS = [f"w{number}" for number in range(5000)]


def sections():
    return [(f"Section {number}", " ".join(source.choices(WORDS, k=70)) + ", and so on.") for number in range(10)]


def markdown():
    return "# Title\n\n" + "".join(f"## {title}\n\n{text}\n\n" for title, text in sections())


def page():
    body = "".join(f"<h2>{title}</h2>\n<p>{text} <a href='/x'>More</a></p>\n" for title, text in sections())
    links = "".join(f"<li><a href='/{number}'>Link {number}</a></li>" for number in range(20))
    return f"<html><head><title>Title</title></head><body><nav><ul>{links}</ul></nav><main>{body}</main><footer>Imprint</footer></body></html>"


def seconds(folder):
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "pipeline.yaml"), "w") as file:
            file.write(f"name: d\nnodes:\n  d: {{op: read, with: {{path: {folder}, as: document, layout: files}}}}\n")
        told = subprocess.run([binary, "run", "pipeline.yaml", "--json"], cwd=place, check=True, capture_output=True, text=True)
        events = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
        return next(event["seconds"] for event in events if "seconds" in event and event.get("node") == "d")


with tempfile.TemporaryDirectory() as place:
    for ending, made in (("md", markdown), ("html", page)):
        folder = os.path.join(place, ending)
        os.mkdir(folder)
        for number in range(args.files):
            with open(os.path.join(folder, f"{number:06}.{ending}"), "w") as file:
                file.write(made())
        took = statistics.median(seconds(folder) for _ in range(args.reps))
        print(json.dumps({"bench": "documents", "type": ending, "files": args.files, "seconds": took, "files_per_second": round(args.files / took)}))
