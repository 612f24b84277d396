// A bundle: the page without a server. What it asks stands in scripts beside it.

import { type ColumnSummary, type Labels, type OneRow, Problem, type Rows, type Source, type Summary } from "./api";
import { isCut } from "./cells";
import { type Values, Unknown, order, predicate } from "./where";

interface About {
  made: number;
  searchmill: string;
  store: string;
  rows: number;
  runs: Summary[];
  /** The script with each answer. */
  places: Record<string, string>;
}

interface Held {
  head: Rows;
  rows: { number: number; row: Values }[];
  columns: Record<string, ColumnSummary & Given>;
  artifact: string;
  port: string;
}

interface Given {
  problem?: { error?: string; help?: string | null };
}

const ELSEWHERE = "`searchmill ui` beside the store has everything";
/** Characters of a cell of a list. */
const CELL = 160;

let about: About | null = null;
const answers = new Map<string, Given>();
const asked = new Map<string, Promise<void>>();

// A script may only be loaded from the bundle itself.
interface Scripts {
  createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): { createScriptURL(url: string): string };
}
const scripts = (globalThis as { trustedTypes?: Scripts }).trustedTypes;
let policy: ReturnType<Scripts["createPolicy"]> | undefined;

/** Takes what the page stands beside; returns null if it is a server. */
export function opened(): Source | null {
  const text: unknown = (globalThis as { searchmillBundle?: unknown }).searchmillBundle;
  if (typeof text !== "string") return null;
  about = JSON.parse(text) as About;
  const add = (more: string): void => {
    for (const [key, answer] of Object.entries(JSON.parse(more) as Record<string, Given>)) answers.set(key, answer);
  };
  Object.assign(globalThis, { searchmillBundle: { add } });
  policy = scripts?.createPolicy("searchmill-bundle", {
    createScriptURL: (url) => {
      if (!/^data\/[^/]+\.js$/.test(url)) throw new TypeError("a script of the bundle stands in data/");
      return url;
    },
  });
  return { answer, events, words: `Bundle of ${about.store}`, made: about.made };
}

function load(name: string): Promise<void> {
  const known = asked.get(name);
  if (known) return known;
  const loaded = new Promise<void>((done, fail) => {
    const script = document.createElement("script");
    const url = `data/${encodeURIComponent(name)}.js`;
    // The type is of the DOM, which knows texts only.
    script.src = policy ? policy.createScriptURL(url) : url;
    script.onload = () => done();
    script.onerror = () => fail(new Problem(`the file ${url} of the bundle is missing`, "copy the whole folder", 0));
    document.head.append(script);
  });
  asked.set(name, loaded);
  return loaded;
}

async function held<T>(key: string): Promise<T> {
  const place = Object.hasOwn(about?.places ?? {}, key) ? about?.places[key] : undefined;
  if (place === undefined) throw new Problem("this is not in the bundle", ELSEWHERE, 404);
  await load(place);
  const answer = answers.get(key);
  if (!answer) throw new Problem("the files of the bundle do not belong together", "copy the whole folder", 0);
  told(answer);
  return answer as T;
}

/** Fails in the words of the server, if it had no answer. */
function told(answer: Given): void {
  if (answer.problem) throw new Problem(answer.problem.error ?? "no answer", answer.problem.help ?? null, 500);
}

/** Answers a question of the page. */
async function answer(url: string): Promise<unknown> {
  const [path, text] = url.split("?");
  const parts = (path ?? "").split("/").slice(2).map(decodeURIComponent);
  const query = new URLSearchParams(text);
  const [first, run, , node, last] = parts;
  if (first === "pipelines") return pipelines();
  if (first === "runs" && run === undefined) return runs(query);
  if (first === "compare" && query.has("node")) throw new Problem("the bundle compares whole runs", ELSEWHERE, 400);
  if (first === "compare") return held(["compare", query.get("a"), query.get("b")].join("\n"));
  if (first === "labels") return labels(query);
  if (last === "rounds") return held([...parts, query.get("name") ?? ""].join("\n"));
  if (last !== undefined && run !== undefined && node !== undefined) {
    const output = await port(run, node, query.get("port"));
    const table = await held<Held>(["runs", run, "nodes", node, "rows", output].join("\n"));
    told(table.head as Given);
    try {
      if (last === "rows") return rows(table, query);
      if (last === "row") return row(table, query);
      if (last === "column") return column(table, query);
    } catch (error) {
      throw error instanceof Unknown ? new Problem(error.message, ELSEWHERE, 400) : error;
    }
  }
  return held(parts.join("\n"));
}

async function port(run: string, node: string, asked: string | null): Promise<string> {
  if (asked) return asked;
  const detail = await held<{ outputs: { port: string }[] }>(["runs", run, "nodes", node].join("\n"));
  return detail.outputs[0]?.port ?? "";
}

function newest(): Summary[] {
  return [...(about?.runs ?? [])].sort((one, other) => (one.id < other.id ? 1 : -1));
}

function pipelines(): unknown {
  const found = new Map<string, { name: string; runs: number; last: Summary }>();
  for (const run of newest()) {
    const name = run.pipeline ?? "";
    const known = found.get(name);
    if (known) known.runs += 1;
    else found.set(name, { name, runs: 1, last: run });
  }
  return { store: about?.store, exists: true, running: [], pipelines: [...found.values()], schedules: [] };
}

function runs(query: URLSearchParams): unknown {
  const pipeline = query.get("pipeline");
  return { runs: newest().filter((run) => pipeline === null || run.pipeline === pipeline), more: false };
}

async function labels(query: URLSearchParams): Promise<Labels> {
  const all = await held<Labels>("labels");
  const [artifact, row] = [query.get("artifact"), query.get("row")];
  const shown = all.labels.filter((label) => (!artifact || label.artifact === artifact) && (!row || label.row === row));
  return { ...all, labels: shown };
}

/** The rows that fit, in the order that is asked for. */
function chosen(table: Held, query: URLSearchParams): Held["rows"] {
  const columns = table.head.every;
  const where = query.get("where");
  const keys = (query.get("sort") ?? "").split("\n").filter(Boolean);
  const holds = where ? predicate(where, columns) : null;
  const found = holds ? table.rows.filter((one) => holds(one.row)) : table.rows;
  if (keys.length === 0) return found;
  const compare = order(keys, columns);
  return [...found].sort((one, other) => compare(one.row, other.row));
}

function cell(value: unknown): unknown {
  if (value === null || value === undefined || typeof value === "number" || typeof value === "boolean") return value ?? null;
  const cut = isCut(value);
  const whole = cut ? value.cut : value;
  const text = typeof whole === "string" ? whole : JSON.stringify(whole);
  const length = cut && typeof value.cut === "string" ? value.length : [...text].length;
  return cut || length > CELL ? { cut: [...text.slice(0, 2 * CELL)].slice(0, CELL).join(""), length } : text;
}

function rows(table: Held, query: URLSearchParams): unknown {
  const found = chosen(table, query);
  const from = Number(query.get("from") ?? 0);
  const to = Number(query.get("to") ?? from + 100);
  const asked = query.get("columns")?.split("\n");
  const columns = asked ?? table.head.columns;
  const scorers = table.head.scorer ? [table.head.scorer] : [];
  const lines = found.slice(from, to).map((one) => ({
    number: one.number,
    id: one.row["id"],
    cells: columns.map((name) => cell(one.row[name])),
  }));
  return { ...table.head, scorers, columns, count: found.length, from, rows: lines, held: table.rows.length };
}

function row(table: Held, query: URLSearchParams): OneRow {
  const found = chosen(table, query);
  const id = query.get("id");
  const at = id === null ? Number(query.get("at") ?? 0) : found.findIndex((one) => one.row["id"] === id);
  const one = found[at] ?? (id === null ? undefined : table.rows.find((other) => other.row["id"] === id));
  if (!one) {
    const { length } = table.rows;
    const of = length < table.head.all ? `the first ${length} of ${table.head.all} rows, which this bundle has` : "the rows";
    throw new Problem(`${id === null ? "no row fits" : `no row has the id ${id}`} among ${of}`, ELSEWHERE, 404);
  }
  const { kind, every, scorer } = table.head;
  const { artifact, port } = table;
  return { artifact, port, kind, at: at < 0 ? null : at, number: one.number, count: found.length, every, scorer, row: one.row };
}

/** What a column holds: counted when the bundle was made, of all rows. */
function column(table: Held, query: URLSearchParams): unknown {
  const found = table.columns[query.get("name") ?? ""];
  if (!found) throw new Problem("the values of this column are not in the bundle", ELSEWHERE, 404);
  told(found);
  return query.get("where") ? { ...found, of: "all rows, also those that the filter leaves out" } : found;
}

/** Gives the last events of a run. */
async function events(run: string, each: (kind: string, data: string) => void): Promise<void> {
  const record = await held<{ lines: string[] }>(["runs", run, "events"].join("\n"));
  for (const line of record.lines) each("message", line);
  each("end", "{}");
}

