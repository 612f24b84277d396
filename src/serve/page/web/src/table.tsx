// The rows of a table: a list of any length, of which only what is seen is there.

import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Problem, type RowLine, type Rows, address, ask } from "./api";
import { CellView, isNumeric, text } from "./cells";
import { Told, Waiting, useKeys } from "./common";
import { Filter, Summary, both } from "./filter";
import { count } from "./format";
import { change, go, link, place } from "./route";

const ROW = 30;
/** Rows that are asked for together. */
const PAGE = 100;
/** Browsers draw nothing beyond some 17 million pixels: longer lists are scrolled in proportion. */
const TALLEST = 12_000_000;

/** Rows by pages, as they come. */
function usePages(url: (from: number) => string): {
  head: Rows | null;
  row: (at: number) => RowLine | undefined;
  problem: Problem | null;
  /** Says which rows are seen: those that are missing are asked for. */
  want: (from: number, to: number) => void;
} {
  const seen = useRef({ from: 0, to: 0 });
  const [, shown] = useState(0);
  const key = url(-1);
  const state = useRef<{ key: string; head: Rows | null; pages: Map<number, RowLine[]>; asked: Set<number>; problem: Problem | null }>({
    key: "",
    head: null,
    pages: new Map(),
    asked: new Set(),
    problem: null,
  });
  if (state.current.key !== key) {
    // The head stays until the new one is there, so that the columns do not jump.
    state.current = { key, head: state.current.head, pages: new Map(), asked: new Set(), problem: null };
  }
  useEffect(() => {
    const now = state.current;
    const { from, to } = seen.current;
    const last = Math.max(from, to - 1);
    for (let page = Math.floor(from / PAGE); page <= Math.floor(last / PAGE); page += 1) {
      if (now.asked.has(page)) continue;
      now.asked.add(page);
      ask<Rows>(url(page * PAGE)).then(
        (found) => {
          if (state.current !== now) return;
          now.head = found;
          now.pages.set(page, found.rows);
          // Far pages go: the memory of the page stays flat however far one scrolls.
          for (const other of now.pages.keys()) {
            if (now.pages.size > 30 && Math.abs(other - page) > 10) {
              now.pages.delete(other);
              now.asked.delete(other);
            }
          }
          shown((times) => times + 1);
        },
        (error: unknown) => {
          if (state.current !== now) return;
          now.asked.delete(page);
          now.problem = error instanceof Problem ? error : new Problem(String(error), null, 0);
          shown((times) => times + 1);
        },
      );
    }
  });
  const { head, pages, problem } = state.current;
  const want = (from: number, to: number): void => {
    seen.current = { from, to };
  };
  return { head, problem, want, row: (at) => pages.get(Math.floor(at / PAGE))?.[at % PAGE] };
}

export function Table({ run, node, port, scorer }: { run: string; node: string; port: string | null; scorer?: string }): JSX.Element {
  const asked = place.value.query;
  const where = asked.get("where") ?? "";
  const sort = asked.get("sort") ?? "";
  const scores = asked.get("scores") ?? scorer ?? null;
  const columns = asked.get("columns");
  const [chosen, choose] = useState(Number(asked.get("at") ?? 0));
  const [summary, setSummary] = useState<string | null>(null);
  const [choosing, setChoosing] = useState(false);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const box = useRef<HTMLDivElement>(null);
  const path = ["runs", run, "nodes", node];
  const query = { port, where, sort, scores };
  const url = (from: number): string => address([...path, "rows"], { ...query, columns, from, to: from + PAGE });

  const { head, row, problem, want } = usePages(url);
  const total = head?.count ?? 0;
  // The list is `full` pixels tall, of which the browser scrolls fewer: its ends stay the ends.
  const full = total * ROW;
  const view = height - ROW;
  const scale = full > TALLEST ? (full - view) / (TALLEST - view) : 1;
  const first = Math.max(0, Math.floor((top * scale) / ROW) - 5);
  const last = Math.min(total || PAGE, Math.ceil((top * scale + height) / ROW) + 5);
  want(first, last);

  useLayoutEffect(() => {
    const measure = (): void => setHeight(box.current?.clientHeight ?? 600);
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, [head === null]);

  /** Scrolls a row into view. */
  const reveal = (at: number): void => {
    const seen = box.current;
    if (!seen) return;
    const now = seen.scrollTop * scale;
    const y = at * ROW;
    if (y < now) seen.scrollTop = y / scale;
    else if (y + ROW > now + view) seen.scrollTop = (y + ROW - view) / scale;
  };
  const move = (to: number): void => {
    const at = Math.max(0, Math.min((head?.count ?? 1) - 1, to));
    choose(at);
    reveal(at);
  };
  const open = (at: number): void => {
    const line = row(at);
    change({ at }, true);
    go(link(["r", run, "n", node, "row"], { port, where, sort, scores, at, id: line?.id ? text(line.id) : null }));
  };
  useKeys({
    j: () => move(chosen + 1),
    k: () => move(chosen - 1),
    ArrowDown: () => move(chosen + 1),
    ArrowUp: () => move(chosen - 1),
    g: () => move(0),
    e: () => move((head?.count ?? 1) - 1),
    Enter: () => open(chosen),
    "/": () => document.getElementById("where")?.focus(),
    y: () => void navigator.clipboard?.writeText(text(row(chosen)?.id)),
    Escape: () => (summary ? setSummary(null) : go(link(["r", run]))),
  });
  useEffect(() => reveal(chosen), [head !== null, height]);

  if (!head) return problem ? <Told problem={problem} /> : <Waiting />;
  const order = sort.split("\n").filter(Boolean);
  const sortBy = (name: string): void => {
    const now = order[0] === name ? `-${name}` : order[0] === `-${name}` ? "" : name;
    choose(0);
    change({ sort: now, at: null });
  };
  const filter = (sql: string): void => {
    choose(0);
    if (box.current) box.current.scrollTop = 0;
    change({ where: sql, at: null });
  };
  const of = (name: string) => head.every.find((column) => column.name === name);
  const lines: number[] = [];
  for (let at = first; at < Math.min(last, head.count); at += 1) lines.push(at);
  const shownColumn = summary ? of(summary) : undefined;
  return (
    <div class="table">
      <Filter sql={where} columns={head.every} set={filter} />
      <div class="bar">
        <p role="status">
          {head.count === head.all
            ? `${count(head.all)} ${head.kind} rows`
            : `${count(head.count)} of ${count(head.all)} ${head.kind} rows`}
          {head.held !== undefined && head.held < head.all && (
            <span class="quiet">{` · the first ${count(head.held)} rows are in this bundle`}</span>
          )}
          {head.scorer && head.scorers.length === 1 && (
            <span class="quiet">
              {" · scores of "}
              <a href={link(["r", run, "n", head.scorer])}>{head.scorer}</a>
            </span>
          )}
        </p>
        {head.scorers.length > 1 && (
          <label>
            Scores of{" "}
            <select value={head.scorer ?? ""} onChange={(event) => change({ scores: event.currentTarget.value })}>
              {head.scorers.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        )}
        <button type="button" aria-expanded={choosing} onClick={() => setChoosing(!choosing)}>
          Columns
        </button>
      </div>
      {choosing && (
        <fieldset class="columns">
          <legend>Columns</legend>
          {head.every.map((column) => (
            <label key={column.name}>
              <input
                type="checkbox"
                checked={head.columns.includes(column.name)}
                onChange={() => {
                  const now = head.columns.includes(column.name)
                    ? head.columns.filter((name) => name !== column.name)
                    : [...head.columns, column.name];
                  change({ columns: now.join("\n") }, true);
                }}
              />{" "}
              {column.name}
            </label>
          ))}
          <button type="button" onClick={() => change({ columns: null }, true)}>
            As at first
          </button>
        </fieldset>
      )}
      {shownColumn && (
        <Summary
          path={path}
          query={query}
          column={shownColumn}
          add={(sql) => filter(both(where, sql))}
          close={() => setSummary(null)}
        />
      )}
      {problem && <Told problem={problem} />}
      <div class="rows" ref={box} onScroll={(event) => setTop(event.currentTarget.scrollTop)} tabIndex={0} aria-label="Rows">
        <div role="table" aria-rowcount={head.count + 1} class="grid">
          <div role="row" aria-rowindex={1} class="line heads">
            {head.columns.map((name) => {
              const direction = order[0] === name ? "ascending" : order[0] === `-${name}` ? "descending" : "none";
              return (
                <div role="columnheader" aria-sort={direction} key={name} class={`cell ${isNumeric(of(name)) ? "number" : ""} ${width(of(name)?.type, name)}`}>
                  <button type="button" onClick={() => sortBy(name)}>
                    {name}
                    <span aria-hidden="true">{direction === "ascending" ? " ↑" : direction === "descending" ? " ↓" : ""}</span>
                  </button>
                  <button type="button" class="values" aria-label={`Values of ${name}`} onClick={() => setSummary(summary === name ? null : name)}>
                    ∷
                  </button>
                </div>
              );
            })}
          </div>
          <div role="rowgroup" class="body" style={{ height: `${Math.min(head.count * ROW, TALLEST)}px` }}>
            {lines.map((at, place) => {
              const line = row(at);
              // In a list that is scrolled in proportion, rows stand where the window is.
              const y = at * ROW - top * scale + top;
              return (
                <div
                  role="row"
                  key={place}
                  aria-rowindex={at + 2}
                  aria-selected={at === chosen}
                  class={`line ${at === chosen ? "chosen" : ""}`}
                  style={{ transform: `translateY(${y}px)` }}
                  onClick={() => (choose(at), open(at))}
                >
                  {head.columns.map((name, column) => (
                    <div role="cell" key={name} class={`cell ${isNumeric(of(name)) ? "number" : ""} ${width(of(name)?.type, name)}`}>
                      {line ? (
                        column === 0 ? (
                          <a href={link(["r", run, "n", node, "row"], { port, where, sort, scores, at, id: line.id ? text(line.id) : null })}>
                            <CellView cell={line.cells[column]} column={of(name)} />
                          </a>
                        ) : (
                          <CellView cell={line.cells[column]} column={of(name)} />
                        )
                      ) : (
                        <span class="empty" />
                      )}
                    </div>
                  ))}
                </div>
              );
            })}
          </div>
        </div>
      </div>
      {head.count === 0 && <p class="note">No row matches.</p>}
    </div>
  );
}

function width(type: string | undefined, name: string): string {
  if (name === "id") return "id";
  if (name === "question") return "long";
  if (type === "yes or no") return "short";
  if (type && /number|Int|Float/.test(type) && !type.startsWith("list")) return "short";
  return /text|title|contents|message/.test(name) ? "long" : "";
}
