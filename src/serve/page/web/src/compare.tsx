// What differs between two runs or two nodes: params, code and data first, then figures, then the questions that changed.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { type OneRow, type Run, address, scored } from "./api";
import { Facts, Told, Waiting, useAnswer, useKeys } from "./common";
import { count, number, written } from "./format";
import { change, go, href, link, place } from "./route";
import { Conversation } from "./row";
import { ofQuestion } from "./sql";

interface Changed {
  name: string;
  from: unknown;
  to: unknown;
}

interface Metric {
  value: number;
  low?: number | null;
  high?: number | null;
}

interface TableChange {
  port: string;
  by: string;
  columns: {
    column: string;
    means: [number, number];
    margin: number | null;
    up: number;
    down: number;
    largest: { id: string; from: number; to: number }[];
  }[];
}

interface NodeChange {
  node: string;
  /** Its name in the second run, if it has another one there. */
  with?: string;
  only_in?: number;
  outcome?: Changed;
  reasons?: Record<string, unknown>[];
  follows: boolean;
  rows?: Changed[];
  figures?: Changed[];
  metrics?: { id: string; from: Metric | null; to: Metric | null }[];
  tables?: TableChange[];
}

interface Diff {
  runs: [string, string];
  /** The nodes, if not the whole runs are compared. */
  of?: [string, string];
  about: Changed[];
  params: Changed[];
  nodes: NodeChange[];
  same: number;
}

function interval(metric: Metric | null): string {
  if (!metric) return "–";
  const range = metric.low !== null && metric.low !== undefined ? ` (${number(metric.low)} to ${number(metric.high ?? 0)})` : "";
  return number(metric.value) + range;
}

function Changes({ changes, name }: { changes: Changed[]; name: string }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0}>
      <table class="list">
        <thead>
          <tr>
            <th scope="col">{name}</th>
            <th scope="col">First</th>
            <th scope="col">Second</th>
          </tr>
        </thead>
        <tbody>
          {changes.map((change) => (
            <tr key={change.name}>
              <th scope="row">{change.name}</th>
              <td>{written(change.from)}</td>
              <td>{written(change.to)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function reason(one: Record<string, unknown>): string {
  const { reason: word, path, from, to, ...rest } = one;
  const words = String(word).replaceAll("_", " ");
  // As in the terminal: `param top_k changed from 1 to 5`.
  const parts = [path === undefined ? words : words.replace(/ (\w+)$/, ` ${String(path)} $1`)];
  if (from !== undefined) parts.push(`from ${written(from)} to ${written(to)}`);
  parts.push(...Object.entries(rest).map(([name, value]) => `${name} ${written(value)}`));
  return parts.join(" ");
}

/** Questions whose value of a column differs, what fell most first. */
interface Flips {
  /** The node in the first and in the second run. */
  nodes: [string, string];
  column: string;
  up: number;
  down: number;
  means: [number, number];
  margin: number | null;
  changes: { id: string; from: number; to: number }[];
}

/** What stands first in the choice. */
const MEASURES = ["reward", "f1", "em", "acc", "success", "correct", "score"];

function rank(column: string): number {
  const place = MEASURES.indexOf(column);
  return place < 0 ? MEASURES.length : place;
}

function flips(diff: Diff): Flips[] {
  const found: Flips[] = [];
  for (const node of diff.nodes) {
    for (const table of node.tables ?? []) {
      if (table.by !== "question_id") continue;
      for (const column of table.columns) found.push({ ...column, nodes: [node.node, node.with ?? node.node], changes: column.largest });
    }
  }
  return found.sort((one, other) => rank(one.column) - rank(other.column));
}

/** A node, and the one of the second run that stands for it. */
function title(node: NodeChange): string {
  return node.with === undefined ? node.node : `${node.node} → ${node.with}`;
}

/** The mean of the paired differences with its 95 % interval. */
function difference(flips: Flips): string {
  const mean = flips.means[1] - flips.means[0];
  const signed = `${mean < 0 ? "−" : "+"}${number(Math.abs(mean))}`;
  return flips.margin === null ? signed : `${signed} ± ${number(flips.margin)} (95 %, paired)`;
}

function Questions({ diff }: { diff: Diff }): JSX.Element | null {
  const all = flips(diff);
  const query = place.value.query;
  const asked = query.get("by");
  const now = all.find((one) => `${one.nodes[0]}.${one.column}` === asked) ?? all[0];
  // The conversations are those that the node scored, or its own.
  const before = useAnswer<Run>(now ? address(["runs", diff.runs[0]]) : null).value;
  const after = useAnswer<Run>(now ? address(["runs", diff.runs[1]]) : null).value;
  const id = query.get("id");
  const least = Math.max(0, Number(query.get("least") ?? 0) || 0);
  const shown = now?.changes.filter((one) => Math.abs(one.to - one.from) >= least) ?? [];
  const at = shown.findIndex((change) => change.id === id);
  const step = (by: number): void => {
    const next = shown[at + by];
    if (next) change({ id: next.id }, true);
  };
  useKeys(now ? { j: () => step(1), k: () => step(-1) } : {});
  if (!now) return null;
  return (
    <section>
      <h2>Questions</h2>
      <div class="bar">
        {all.length > 1 && (
          <label>
            By{" "}
            <select value={`${now.nodes[0]}.${now.column}`} onChange={(event) => change({ by: event.currentTarget.value, id: null }, true)}>
              {all.map((one) => (
                <option key={one.nodes[0] + one.column} value={`${one.nodes[0]}.${one.column}`}>{`${one.column} of ${one.nodes[0]}`}</option>
              ))}
            </select>
          </label>
        )}
        <span role="status">
          {`${count(now.down)} fell, ${count(now.up)} rose; mean ${number(now.means[0])} → ${number(now.means[1])}, ${difference(now)}`}
        </span>
        <label>
          Only changes of at least{" "}
          <input
            type="number"
            min={0}
            step="any"
            class="least"
            value={least || ""}
            onChange={(event) => change({ least: event.currentTarget.value, id: null }, true)}
          />
        </label>
      </div>
      <ol class="flips">
        {shown.map((one) => (
          <li key={one.id}>
            <button type="button" aria-pressed={one.id === id} onClick={() => change({ id: one.id }, true)}>
              {one.id}{" "}
              <span class={one.to < one.from ? "no" : "yes"}>{`${one.to < one.from ? "▼" : "▲"} ${number(one.from)} → ${number(one.to)}`}</span>
            </button>
          </li>
        ))}
      </ol>
      {shown.length === 0 && <p class="note">No change is that large.</p>}
      {now.up + now.down > now.changes.length && (
        <p class="quiet">{`${least > 0 ? "of " : ""}the ${now.changes.length} largest of ${count(now.up + now.down)} changes`}</p>
      )}
      {id && before && after && (
        <div class="sides">
          <Side key={`first/${now.nodes[0]}/${id}`} run={diff.runs[0]} node={scored(before, now.nodes[0]) ?? now.nodes[0]} question={id} />
          <Side key={`second/${now.nodes[1]}/${id}`} run={diff.runs[1]} node={scored(after, now.nodes[1]) ?? now.nodes[1]} question={id} />
        </div>
      )}
    </section>
  );
}

/** The first rollout of a question in one run. */
function Side({ run, node, question }: { run: string; node: string; question: string }): JSX.Element {
  const where = ofQuestion(question);
  const { value, problem } = useAnswer<OneRow>(address(["runs", run, "nodes", node, "row"], { where, at: 0 }));
  return (
    <div class="side">
      <h3>
        <a href={link(["r", run, "n", node, "row"], { where, at: 0 })}>{`${node} of ${run}`}</a>
      </h3>
      {problem && <Told problem={problem} />}
      {value && <Conversation value={value} run={run} node={node} plain={false} />}
    </div>
  );
}

export function Compare(): JSX.Element {
  const a = place.value.query.get("a") ?? "";
  const b = place.value.query.get("b") ?? "";
  const [node, other] = [place.value.query.get("node"), place.value.query.get("with")];
  const { value, problem, again } = useAnswer<Diff>(a && b ? address(["compare"], { a, b, node, with: other }) : null);
  useKeys({ Escape: () => go(href("/")) });
  useEffect(() => {
    document.title = "Compare · searchmill";
  }, []);
  if (!a || !b) {
    return (
      <main>
        <h1>Compare two runs</h1>
        <p>Choose them in the list of runs of a pipeline.</p>
      </main>
    );
  }
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  const causes = value.nodes.filter((node) => !node.follows && (node.reasons ?? []).length > 0);
  const measured = value.nodes.filter((node) => (node.metrics ?? []).length > 0);
  const of = value.of;
  const side = (at: 0 | 1): JSX.Element =>
    of ? (
      <>
        <a href={link(["r", value.runs[at], "n", of[at]])}>{of[at]}</a> <span class="quiet">{value.runs[at]}</span>
      </>
    ) : (
      <a href={link(["r", value.runs[at]])}>{value.runs[at]}</a>
    );
  const nothing = value.about.length + value.params.length + value.nodes.length === 0;
  return (
    <main>
      <h1>{of ? "Compare two nodes" : "Compare two runs"}</h1>
      <Facts
        facts={[
          ["First", side(0)],
          ["Second", side(1)],
          ["Nodes", `${count(value.nodes.length)} differ${of ? "" : `, ${count(value.same)} are equal`}`],
        ]}
      />
      {nothing && <p class="note">Nothing differs.</p>}
      {value.params.length > 0 && (
        <section>
          <h2>Params</h2>
          <Changes changes={value.params} name="Param" />
        </section>
      )}
      {value.about.length > 0 && (
        <section>
          <h2>Runs</h2>
          <Changes changes={value.about} name="What" />
        </section>
      )}
      {causes.length > 0 && (
        <section>
          <h2>Where it begins</h2>
          <ul>
            {causes.map((node) => (
              <li key={node.node}>
                <b>{title(node)}</b> {(node.reasons ?? []).map(reason).join("; ")}
              </li>
            ))}
          </ul>
        </section>
      )}
      <Questions diff={value} />
      {measured.map((node) => (
        <section key={node.node}>
          <h2>{title(node)}</h2>
          <div class="scroll" tabIndex={0}>
            <table class="list">
              <thead>
                <tr>
                  <th scope="col">Metric</th>
                  <th scope="col">First</th>
                  <th scope="col">Second</th>
                  <th scope="col" class="number">Difference</th>
                </tr>
              </thead>
              <tbody>
                {(node.metrics ?? []).map((metric) => (
                  <tr key={metric.id}>
                    <th scope="row">{metric.id}</th>
                    <td>{interval(metric.from)}</td>
                    <td>{interval(metric.to)}</td>
                    <td class="number">
                      {metric.from && metric.to
                        ? `${metric.to.value >= metric.from.value ? "+" : "−"}${number(Math.abs(metric.to.value - metric.from.value))}`
                        : ""}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      ))}
      {value.nodes.length > 0 && (
        <section>
          <h2>Nodes</h2>
          <ul>
            {value.nodes.map((node) => (
              <li key={node.node}>
                <a href={link(["r", value.runs[node.only_in === 1 ? 0 : 1], "n", node.only_in === 1 ? node.node : (node.with ?? node.node)])}>{title(node)}</a>{" "}
                <span class="quiet">
                  {[
                    node.only_in ? `only in the ${node.only_in === 1 ? "first" : "second"}` : "",
                    node.outcome ? `${written(node.outcome.from)} → ${written(node.outcome.to)}` : "",
                    ...(node.rows ?? []).map((rows) => `${rows.name}: ${written(rows.from)} → ${written(rows.to)} rows`),
                    node.follows ? "its inputs differ" : "",
                  ]
                    .filter(Boolean)
                    .join(" · ")}
                </span>
              </li>
            ))}
          </ul>
        </section>
      )}
    </main>
  );
}
