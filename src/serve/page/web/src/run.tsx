// One run: its nodes as a drawing and as a list, its params, its log as it grows.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type NodeLine, type Run, address, events } from "./api";
import { Facts, State, Told, Waiting, useAnswer, useKeys } from "./common";
import { bytes, count, modelCalls, moment, money, seconds, visible, written } from "./format";
import { go, href, link } from "./route";

const WIDTH = 170;
const HEIGHT = 44;
const GAP = { column: 56, lane: 18 };

/** Breaks a name into lines that fit a box; names are never cut. */
function wrapped(name: string): string[] {
  const lines: string[] = [];
  for (let rest = name; rest; ) {
    if (rest.length <= 22) {
      lines.push(rest);
      break;
    }
    const at = Math.max(rest.lastIndexOf("_", 21), rest.lastIndexOf("-", 21), rest.lastIndexOf(".", 21)) + 1 || 22;
    lines.push(rest.slice(0, at));
    rest = rest.slice(at);
  }
  return lines;
}

function Drawing({ run }: { run: Run }): JSX.Element {
  const { boxes, lines, columns, lanes } = run.graph;
  const step = { x: WIDTH + GAP.column, y: HEIGHT + GAP.lane };
  const left = (column: number): number => 8 + column * step.x;
  const top = (lane: number): number => 8 + lane * step.y;
  return (
    <div class="scroll drawing" tabIndex={0}>
      <svg
        width={left(columns) - GAP.column + 8}
        height={top(lanes) - GAP.lane + 8}
        role="group"
        aria-label="What reads what. The list below says the same."
      >
        {lines.map(([from, to]) => {
          const [a, b] = [boxes[from], boxes[to]];
          if (!a || !b) return null;
          const [x1, y1] = [left(a.column) + WIDTH, top(a.lane) + HEIGHT / 2];
          const [x2, y2] = [left(b.column), top(b.lane) + HEIGHT / 2];
          const bend = Math.max(24, Math.abs(x2 - x1) / 2);
          return <path key={`${from}-${to}`} d={`M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`} />;
        })}
        {boxes.map((box) => (
          <a key={box.name} href={link(["r", run.id, "n", box.first])}>
            <g class={`box s-${box.state.replaceAll(" ", "-")}`} transform={`translate(${left(box.column)},${top(box.lane)})`}>
              <rect width={WIDTH} height={HEIGHT} rx="4" />
              {wrapped(box.name).map((part, place) => (
                <text key={place} x="10" y={17 + place * 13} class="name">
                  {part}
                </text>
              ))}
              {wrapped(box.name).length === 1 && (
                <text x="10" y="34" class="operator">
                  {`${box.state} · ${box.operator}${box.nodes > 1 ? ` · ${box.nodes} nodes` : ""}`}
                </text>
              )}
              <title>{`${box.name}: ${box.state}, ${box.operator}`}</title>
            </g>
          </a>
        ))}
      </svg>
    </div>
  );
}

function rows(node: NodeLine): string {
  const output = node.outputs[0];
  if (!output) return "";
  return output.table ? count(output.rows) : bytes(output.bytes);
}

export function Nodes({ run, nodes, progress }: { run: string; nodes: NodeLine[]; progress?: Map<string, Progress> }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0}>
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Node</th>
            <th scope="col">State</th>
            <th scope="col">Operator</th>
            <th scope="col" class="number">Rows</th>
            <th scope="col" class="number">Rejects</th>
            <th scope="col" class="number">Time</th>
            <th scope="col">Checks</th>
            <th scope="col">Why</th>
          </tr>
        </thead>
        <tbody>
          {nodes.map((node) => {
            const now = node.state === "begun" ? progress?.get(node.node) : undefined;
            const rejects = node.outputs.find((output) => output.port === "rejects")?.rows ?? 0;
            return (
              <tr key={node.node}>
                <th scope="row">
                  <a href={link(["r", run, "n", node.node])}>{node.node}</a>
                </th>
                <td>
                  <State state={node.state} />
                </td>
                <td>{node.operator}</td>
                <td class="number">{rows(node)}</td>
                <td class="number">
                  {rejects > 0 && <a href={link(["r", run, "n", node.node], { port: "rejects" })}>{count(rejects)}</a>}
                </td>
                <td class="number">{node.seconds ? seconds(node.seconds) : ""}</td>
                <td>{node.checks > 0 && (node.checks_failed > 0 ? `${node.checks_failed} of ${node.checks} failed` : `${node.checks} passed`)}</td>
                <td class="why">{now ? going(now) : node.error ? visible(node.error) : node.why}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** What a node that runs has done so far. */
export interface Progress {
  done: number;
  total: number;
  unit: string;
  /** Seconds (Unix) of the first and the last report, and what was done at the first. */
  first: { time: number; done: number };
  time: number;
  cost: number;
}

/** How far a node is, how fast, and how long it takes still. */
function going(progress: Progress): string {
  const rate = (progress.done - progress.first.done) / (progress.time - progress.first.time);
  const parts = [`${count(progress.done)}${progress.total ? `/${count(progress.total)}` : ""} ${progress.unit}`];
  if (rate > 0 && Number.isFinite(rate)) {
    parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)}/s`);
    if (progress.total > progress.done) parts.push(`${seconds((progress.total - progress.done) / rate)} left`);
  }
  if (progress.cost > 0) parts.push(money(progress.cost, ""));
  return parts.join(" · ");
}

interface Line {
  time: number;
  word: string;
  node: string;
  text: string;
}

const LINES = 500;

function said(event: Record<string, unknown>): string {
  const parts: string[] = [];
  for (const [name, value] of Object.entries(event)) {
    if (["event", "time", "node", "key", "run", "reasons", "summary"].includes(name)) continue;
    if (value === null || value === 0 || value === "" || (Array.isArray(value) && value.length === 0)) continue;
    if (name === "line" || name === "message") parts.push(String(value));
    else if (typeof value !== "object") {
      parts.push(`${name} ${typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : String(value)}`);
    }
  }
  return visible(parts.join(" · "));
}

/** Follows the events of a run. `changed` is called when a node has ended. */
function useLog(
  run: string,
  changed: () => void,
): { lines: Line[]; state: "following" | "ended" | "lost"; left: number; progress: Map<string, Progress> } {
  const progress = useRef(new Map<string, Progress>());
  const [lines, setLines] = useState<Line[]>([]);
  const [left, setLeft] = useState(0);
  const [state, setState] = useState<"following" | "ended" | "lost">("following");
  const act = useRef(changed);
  act.current = changed;
  useEffect(() => {
    const stop = new AbortController();
    let place = 0;
    let over = false;
    const fresh: Line[] = [];
    let timer = 0;
    const show = (): void => {
      timer = 0;
      const more = fresh.splice(0);
      setLines((known) => [...known, ...more].slice(-LINES));
      setLeft((known) => known + more.length);
      if (more.some((line) => line.word.startsWith("node ") || line.word === "run finished")) act.current();
    };
    const each = (kind: string, data: string): void => {
      if (kind === "end" || kind === "problem") {
        over = true;
        return;
      }
      let event: Record<string, unknown>;
      try {
        event = JSON.parse(data) as Record<string, unknown>;
      } catch {
        return;
      }
      if (event["event"] === "node_progress") {
        const [node, time, done] = [String(event["node"]), Number(event["time"]), Number(event["done"])];
        const first = progress.current.get(node)?.first ?? { time, done };
        const [total, unit] = [Number(event["total"]), String(event["unit"])];
        progress.current.set(node, { done, total, unit, first, time, cost: Number(event["cost"] ?? 0) });
        timer ||= setTimeout(show, 100);
        return;
      }
      fresh.push({
        time: Number(event["time"] ?? 0),
        word: String(event["event"] ?? "").replaceAll("_", " "),
        node: String(event["node"] ?? ""),
        text: said(event),
      });
      timer ||= setTimeout(show, 100);
    };
    const follow = async (): Promise<void> => {
      while (!over && !stop.signal.aborted) {
        try {
          setState("following");
          await events(run, place, each, (reached) => (place = reached), stop.signal);
          if (over) setState("ended");
        } catch {
          if (stop.signal.aborted) return;
          setState("lost");
        }
        if (!over) await new Promise((done) => setTimeout(done, 1000));
      }
    };
    void follow();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [run]);
  return { lines, state, left, progress: progress.current };
}

export function RunPage({ run: id }: { run: string }): JSX.Element {
  const { value: run, problem, again } = useAnswer<Run>(address(["runs", id]));
  const log = useLog(id, again);
  useKeys({ Escape: () => go(run?.pipeline ? link(["p", run.pipeline]) : href("/")) });
  useEffect(() => {
    document.title = `${run?.pipeline ?? "run"} ${id} · searchmill`;
  }, [run?.pipeline, id]);
  if (problem && !run) return <Told problem={problem} again={again} />;
  if (!run) return <Waiting />;
  const params = Object.entries(run.params ?? {});
  const end = run.end ?? {};
  const bad = run.ran.filter((node) => ["failed", "check failed", "held back"].includes(node.state));
  return (
    <main>
      <h1>
        {run.pipeline} <State state={run.state} />
      </h1>
      {log.state === "lost" && (
        <p class="note" role="status">
          The connection to the server is lost; what you see is the last that came. Trying again…
        </p>
      )}
      <Facts
        facts={[
          ["Started", moment(run.started)],
          ["Time", run.started && run.finished ? seconds(run.finished - run.started) : ""],
          ["File", run.file],
          ["Set", (run.set ?? []).join(", ")],
          ["Limit", run.limit],
          ["Calls", modelCalls(end)],
          ["Calls of tools and functions", end.service_calls ? count(end.service_calls) : ""],
          ["Tokens", end.prompt_tokens ? `${count(end.prompt_tokens)} + ${count(end.completion_tokens)}` : ""],
          ["Cost", money(end.cost, end.currency)],
          ["Rejects", end.rejects || end.dead_letters ? count((end.rejects ?? 0) + (end.dead_letters ?? 0)) : ""],
        ]}
      />
      {bad.length > 0 && (
        <section>
          <h2>What needs a look</h2>
          <Nodes run={id} nodes={bad} />
        </section>
      )}
      <section>
        <h2>Graph</h2>
        <Drawing run={run} />
      </section>
      <section>
        <h2>Nodes</h2>
        <Nodes run={id} nodes={run.ran} progress={log.progress} />
      </section>
      {params.length > 0 && (
        <section>
          <h2>Params</h2>
          <Facts facts={params.map(([name, value]) => [name, written(value)])} />
        </section>
      )}
      <section>
        <h2>
          Log <span class="quiet">{log.state === "following" ? "as it grows" : ""}</span>
        </h2>
        {log.left > log.lines.length && (
          <p class="quiet">{`The last ${count(log.lines.length)} of ${count(log.left)} events; all: searchmill logs ${id}`}</p>
        )}
        <ol class="log" aria-label="Events" tabIndex={0}>
          {log.lines.map((line, place) => (
            <li key={place}>
              <time>{moment(line.time).slice(11)}</time> <b>{line.word}</b>{" "}
              {line.node && <a href={link(["r", id, "n", line.node])}>{line.node}</a>} <span>{line.text}</span>
            </li>
          ))}
        </ol>
      </section>
    </main>
  );
}
