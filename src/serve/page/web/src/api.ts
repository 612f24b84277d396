// What the server answers, and how to ask it.

import { type Query, question } from "./route";

export interface Summary {
  id: string;
  pipeline?: string;
  file?: string;
  state: string;
  imported?: boolean;
  started?: number;
  finished?: number | null;
  exit?: number | null;
  nodes?: number;
  /** As options of `run`; empty if all rows were read. */
  limit: string;
  set?: string[];
  end?: RunEnd | null;
}

export interface RunEnd {
  cached?: number;
  finished?: number;
  failed?: number;
  skipped?: number;
  calls?: number;
  /** Of the calls, those of tools and functions. */
  service_calls?: number;
  cost?: number;
  currency?: string;
  prompt_tokens?: number;
  completion_tokens?: number;
  rejects?: number;
  dead_letters?: number;
  checks_held?: number;
  checks_warned?: number;
}

export interface Pipelines {
  store: string;
  exists: boolean;
  running: Summary[];
  pipelines: { name: string; runs: number; last: Summary }[];
  schedules: Schedule[];
}

export interface Schedule {
  name: string;
  file: string;
  cron: string;
  timezone: string;
  served: boolean;
  paused: boolean;
  next: string | null;
  running: { id?: number }[];
  waiting: number;
  last?: { outcome: string; ended: string; run?: string | null; message?: string } | null;
}

export interface PlannedNode {
  node: string;
  operator: string;
  status: string;
  detail: string;
  rows?: { known: number; to_compute: number; at_most: boolean } | null;
  estimate?: {
    calls: number;
    service_calls: number;
    prompt_tokens: number;
    completion_tokens: number;
    cost: number | null;
    currency: string | null;
  } | null;
}

export interface Planned {
  file: string;
  set: string[];
  params_files: string[];
  nodes: PlannedNode[];
}

export interface Artifact {
  id: string;
  kind: string;
  rows: number | null;
  count: number;
  files: { name: string; bytes: number | null; shown: boolean }[];
  folder: string;
  runs: { run: string; node: string; port: string }[];
}

export type Mark = "good" | "bad" | "unsure";

export interface Label {
  artifact: string;
  row: string;
  mark: Mark | null;
  note: string;
  author: string;
  run: string;
  node: string;
  port: string;
  time: number;
}

export interface Labels {
  labels: Label[];
  damaged: number;
}

export interface Output {
  port: string;
  id: string;
  type: string | null;
  table: boolean;
  rows: number;
  bytes: number;
}

export interface NodeLine {
  node: string;
  operator: string;
  state: string;
  why: string;
  error: string | null;
  seconds: number;
  checks: number;
  checks_failed: number;
  outputs: Output[];
}

export interface Run extends Summary {
  params: Record<string, unknown> | null;
  ran: NodeLine[];
  edges: { from: string; output: string; to: string }[];
  graph: { boxes: Box[]; lines: [number, number][]; columns: number; lanes: number };
}

/** The node whose rollouts a node scored. */
export function scored(run: Run, node: string): string | undefined {
  return run.edges.find((edge) => edge.to === node && edge.output === "trajectories")?.from;
}

export interface Box {
  name: string;
  operator: string;
  state: string;
  nodes: number;
  first: string;
  column: number;
  lane: number;
}

export interface NodeDetail extends NodeLine {
  key: string | null;
  check_outcomes: { check?: string; name?: string; passed: boolean; found: string }[];
  summary?: string;
  figures?: Record<string, number>;
  made_by?: string;
  finished?: number;
  version?: string;
  calls?: number;
  /** Of the calls, those of tools and functions. */
  service_calls?: number;
  prompt_tokens?: number;
  completion_tokens?: number;
  cost?: number;
  params?: unknown;
  prices?: Prices | null;
  inputs?: [string, string, string][];
  sources?: { name: string; path: string; content: string }[] | null;
}

/** Prices of a model per million tokens, and per call. */
export interface Prices {
  prompt?: number;
  completion?: number;
  call?: number;
  currency?: string;
}

export interface Column {
  name: string;
  type: string;
  scores: boolean;
}

export interface Cut {
  cut: string | number[];
  length: number;
}

export type Cell = string | number | boolean | null | Cut;

export interface RowLine {
  number: number;
  id?: Cell;
  cells: Cell[];
}

export interface Rows {
  kind: string;
  all: number;
  count: number;
  from: number;
  columns: string[];
  every: Column[];
  scorers: string[];
  scorer: string | null;
  rows: RowLine[];
  /** Rows that are there, in a bundle. */
  held?: number;
}

export interface OneRow {
  artifact: string;
  port: string;
  kind: string;
  at: number | null;
  number: number;
  count: number;
  every: Column[];
  scorer: string | null;
  row: Record<string, unknown>;
}

export interface ColumnSummary {
  name: string;
  rows: number;
  nulls: number;
  distinct: number;
  of?: string;
  min?: number;
  max?: number;
  mean?: number;
  bins?: { from: number; to: number; rows: number }[];
  common?: { value: string; rows: number }[];
}

/** A question that could not be answered. */
export class Problem extends Error {
  constructor(
    message: string,
    readonly help: string | null,
    readonly status: number,
  ) {
    super(message);
  }
}

const TOKEN = "searchmill-token";

/** Takes the token out of the address: `#token=…` is sent to nobody, and must not stay in the history. */
export function takeToken(): void {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found?.[1]) {
    sessionStorage.setItem(TOKEN, decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
}

function headers(): HeadersInit {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Returns the address of a question. */
export function address(path: string[], query: Query = {}): string {
  return question(["api", ...path], query);
}

/** What answers instead of a server. */
export interface Source {
  answer: (url: string) => Promise<unknown>;
  events: (run: string, each: (kind: string, data: string) => void) => Promise<void>;
  words: string;
  made: number;
}

let other: Source | null = null;

export function setSource(source: Source | null): void {
  other = source;
}

export function source(): Source | null {
  return other;
}

export async function ask<T>(url: string, signal?: AbortSignal): Promise<T> {
  if (other) return (await other.answer(url)) as T;
  return answered<T>(url, { headers: headers(), ...(signal ? { signal } : {}) });
}

/** Sends an object: what the reader wants to be kept or done. */
export async function tell<T>(url: string, what: unknown): Promise<T> {
  const sent = { ...headers(), "Content-Type": "application/json" };
  return answered<T>(url, { method: "POST", headers: sent, body: JSON.stringify(what) });
}

async function answered<T>(url: string, request: RequestInit): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(url, request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem("the server does not answer", "`searchmill ui` starts it again", 0);
  }
  const body = (await answer.json().catch(() => null)) as { error?: string; help?: string | null } | null;
  if (!answer.ok) {
    throw new Problem(body?.error ?? `the server answered ${answer.status}`, body?.help ?? null, answer.status);
  }
  return body as T;
}

/** Reads server-sent events until they end, the connection is lost or `signal` says stop. `reached` is told every place
 *  in the record up to which all events were given: from there it goes on, and no event comes twice. */
export async function events(
  run: string,
  from: number,
  each: (kind: string, data: string) => void,
  reached: (place: number) => void,
  signal: AbortSignal,
): Promise<void> {
  if (other) return other.events(run, each);
  const answer = await fetch(address(["runs", run, "events"], { from }), { headers: headers(), signal });
  if (!answer.ok || !answer.body) throw new Problem(`the server answered ${answer.status}`, null, answer.status);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let unplaced: string[] = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      let kind = "message";
      let data = "";
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      text = text.slice(end + 2);
      if (kind === "message") {
        if (data) unplaced.push(data);
      } else if (kind === "place") {
        for (const one of unplaced) each("message", one);
        unplaced = [];
        reached(Number(data));
      } else each(kind, data);
    }
  }
}
