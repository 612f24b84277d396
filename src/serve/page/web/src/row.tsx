// One row: a conversation turn by turn, or its columns.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type NodeDetail, type OneRow, type Prices, type Rows, type Run, address, scored } from "./api";
import { isCut, marked } from "./cells";
import { Facts, Told, Waiting, useAnswer, useKeys } from "./common";
import { count, number, visible } from "./format";
import { RowLabels } from "./labels";
import { change, go, isBundle, link, place } from "./route";
import { ofQuestion } from "./sql";
import { Branches, type Span, Tokens } from "./tokens";

interface Message {
  role?: string;
  content?: unknown;
  reasoning?: unknown;
  tool_calls?: { id?: string; name?: string; arguments?: unknown }[];
  observations?: { chunk_id?: string; document_id?: string; title?: string | null; score?: number }[];
  error?: string | null;
  prompt_tokens?: number | null;
  completion_tokens?: number | null;
  finish_reason?: string | null;
}

type Row = Record<string, unknown>;

/** Characters of a text that are asked for when all of it is wanted. */
const ALL = 20_000_000;

export function RowPage({ run, node }: { run: string; node: string }): JSX.Element {
  const asked = place.value.query;
  const query = { port: asked.get("port"), where: asked.get("where"), sort: asked.get("sort"), scores: asked.get("scores") };
  const id = asked.get("id");
  const at = asked.get("at");
  const path = ["runs", run, "nodes", node];
  const [whole, setWhole] = useState<string | null>(null);
  const name = `${id}\n${at}`;
  const texts = whole === name ? ALL : null;
  const { value, problem, stale } = useAnswer<OneRow>(address([...path, "row"], { ...query, id, at: id ? null : at, texts }));
  const [plain, setPlain] = useState(sessionStorage.getItem("searchmill-plain") === "yes");
  const list = link(["r", run, "n", node], { ...query, at: value?.at ?? at });
  const step = (by: number): void => {
    const to = (value?.at ?? 0) + by;
    if (!value || value.at === null || to < 0 || to >= value.count) return;
    change({ at: to, id: null }, true);
  };
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    g: () => change({ at: 0, id: null }, true),
    e: () => value && change({ at: value.count - 1, id: null }, true),
    n: () => turn(1),
    p: () => turn(-1),
    y: () => void navigator.clipboard?.writeText(String(value?.row["id"] ?? "")),
    Escape: () => go(list),
  });
  // The address names the row by its id, so that it stays right when the table is sorted otherwise.
  const found = value?.row["id"];
  useEffect(() => {
    if (!stale && !id && typeof found === "string") change({ id: found, at: value?.at ?? null }, true);
    document.title = `${typeof found === "string" ? found : "row"} · ${node} · searchmill`;
  }, [found, stale]);
  if (problem && !value) return <Told problem={problem} />;
  if (!value) return <Waiting />;
  const row = value.row;
  const isTalk = Array.isArray(row["messages"]);
  return (
    <main class={stale ? "stale" : ""}>
      <div class="bar">
        <a href={list}>All rows</a>
        <button type="button" onClick={() => step(-1)} disabled={!value.at}>
          Previous <kbd>k</kbd>
        </button>
        <button type="button" onClick={() => step(1)} disabled={value.at === null || value.at + 1 >= value.count}>
          Next <kbd>j</kbd>
        </button>
        <span class="quiet" role="status">
          {value.at === null ? "not among the rows that match" : `${count(value.at + 1)} of ${count(value.count)}`}
        </span>
        {hasCut(row) && !isBundle && (
          <button type="button" onClick={() => setWhole(name)}>
            All of every text
          </button>
        )}
        {isTalk && (
          <button
            type="button"
            aria-pressed={plain}
            onClick={() => {
              sessionStorage.setItem("searchmill-plain", plain ? "no" : "yes");
              setPlain(!plain);
            }}
          >
            Plain text
          </button>
        )}
      </div>
      {problem && <Told problem={problem} />}
      <h1>{String(row["id"] ?? `Row ${value.number}`)}</h1>
      {value.kind === "score" && <Scored run={run} node={node} row={row} />}
      <RowLabels key={value.artifact + value.number} run={run} node={node} port={value.port} artifact={value.artifact} row={typeof row["id"] === "string" ? row["id"] : `#${value.number}`} />
      {isTalk ? <Conversation value={value} run={run} node={node} plain={plain} /> : <Record value={value} />}
    </main>
  );
}

/** What a reward is the sum of. */
function rewardParts(parts: unknown): string {
  if (!Array.isArray(parts)) return "";
  return (parts as { name?: unknown; value?: unknown }[]).map((part) => `${visible(String(part.name))} ${typeof part.value === "number" ? number(part.value) : "–"}`).join(" + ");
}

function hasCut(value: unknown): boolean {
  if (isCut(value)) return true;
  if (Array.isArray(value)) return value.some(hasCut);
  return typeof value === "object" && value !== null && Object.values(value).some(hasCut);
}

/** Moves the focus to the next or previous turn. */
function turn(by: number): void {
  const turns = [...document.querySelectorAll<HTMLElement>("article.turn")];
  const now = turns.findIndex((one) => one === document.activeElement);
  const next = turns[Math.max(0, Math.min(turns.length - 1, now + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** A text, with what is left out said. */
function Text({ text, words, plain }: { text: unknown; words?: string[]; plain?: boolean }): JSX.Element | null {
  if (text === null || text === undefined || text === "") return null;
  const cut = isCut(text);
  const shown = visible(String(cut ? text.cut : text));
  return (
    <>
      <pre class="text">{plain ? shown : marked(shown, words ?? [])}</pre>
      {cut && <p class="quiet">{`the first ${count(shown.length)} of ${count(text.length)} characters`}</p>}
    </>
  );
}

function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : [];
}

const SHOWN_APART = ["id", "question", "golden_answers", "prediction", "answer", "messages", "evidence", "tools", "metadata"];

export function Conversation({ value, run, node, plain }: { value: OneRow; run: string; node: string; plain: boolean }): JSX.Element {
  const row: Row = value.row;
  const messages = (row["messages"] ?? []) as Message[];
  const golden = texts(row["golden_answers"]);
  const evidence = ((row["evidence"] ?? []) as Row[]).flatMap((one) => texts([one["title"], one["fact"]]));
  const words = [...golden, ...evidence];
  const scores = value.every.filter((column) => column.scores && row[column.name] !== null && row[column.name] !== undefined);
  const others = value.every.filter((column) => !column.scores && !SHOWN_APART.includes(column.name) && isShort(row[column.name]));
  const tokens = Array.isArray(row["tokens"]) ? (row["tokens"] as Span[]) : [];
  const prices = useAnswer<NodeDetail>(address(["runs", run, "nodes", node])).value?.prices ?? null;
  let turns = 0;
  return (
    <div class="talk">
      <section class="question" aria-label="Question and outcome">
        <p class="asked">{String(row["question"] ?? "")}</p>
        <Facts
          facts={[
            ["Prediction", String(row["prediction"] ?? "") || <span class="quiet">none</span>],
            ["Golden answers", golden.join(" | ")],
            ["Reward by part", rewardParts(row["reward_parts"])],
            ...scores.map((column): [string, ComponentChildren] => [column.name, scalar(row[column.name])]),
            ...others.map((column): [string, ComponentChildren] => [column.name, scalar(row[column.name])]),
          ]}
        />
        <Branches spans={tokens} />
        <Samples run={run} node={node} row={row} />
      </section>
      {messages.map((message, place) => {
        const isTurn = message.role === "assistant";
        if (isTurn) turns += 1;
        const title = message.role === "tool" ? "tool response" : (message.role ?? "message");
        return (
          <article key={place} class={`turn r-${message.role}`} tabIndex={0} aria-label={isTurn ? `Turn ${turns}` : title} id={`m${place}`}>
            <h2>
              {title}
              {isTurn && <span class="quiet">{` · turn ${turns}`}</span>}
              {message.completion_tokens ? (
                <span class="quiet">{` · ${count(message.prompt_tokens)} + ${count(message.completion_tokens)} tokens${price(message, prices)}`}</span>
              ) : null}
              {message.finish_reason && message.finish_reason !== "stop" && message.finish_reason !== "tool_calls" ? (
                <span class="warn">{` · ${message.finish_reason}`}</span>
              ) : null}
            </h2>
            <Body message={message} words={words} plain={plain} evidence={evidence} />
            <Tokens spans={tokens.filter((span) => span.message === place)} />
          </article>
        );
      })}
      <details>
        <summary>All columns</summary>
        <Record value={value} />
      </details>
    </div>
  );
}

/** What a call cost. */
function price(message: Message, prices: Prices | null): string {
  if (!prices) return "";
  const tokens = (message.prompt_tokens ?? 0) * (prices.prompt ?? 0) + (message.completion_tokens ?? 0) * (prices.completion ?? 0);
  const paid = tokens / 1e6 + (prices.call ?? 0);
  return paid > 0 ? ` · ${number(paid)} ${prices.currency ?? "USD"}` : "";
}

function Body({ message, words, plain, evidence }: { message: Message; words: string[]; plain: boolean; evidence: string[] }): JSX.Element {
  if (message.role === "system") {
    return (
      <details>
        <summary>Show the system prompt</summary>
        <Text text={message.content} plain={plain} />
      </details>
    );
  }
  const observations = message.observations ?? [];
  if (message.role === "tool") {
    return (
      <>
        {message.error && <p class="warn">{visible(message.error)}</p>}
        {observations.length > 0 && (
          <ol class="passages">
            {observations.map((one, rank) => (
              <li key={rank}>
                {one.title ?? one.chunk_id}{" "}
                <span class="quiet">{`${one.chunk_id ?? ""}${one.score !== undefined ? ` · ${number(one.score)}` : ""}`}</span>
                {one.title && evidence.includes(one.title) && <strong class="gold"> ★ gold</strong>}
              </li>
            ))}
          </ol>
        )}
        <details open={observations.length === 0}>
          <summary>Show the passages</summary>
          <Text text={message.content} words={words} plain={plain} />
        </details>
      </>
    );
  }
  return (
    <>
      {message.reasoning ? (
        <details>
          <summary>Show the reasoning</summary>
          <Text text={message.reasoning} plain={plain} />
        </details>
      ) : null}
      <Text text={message.content} words={message.role === "assistant" ? words : []} plain={plain} />
      {(message.tool_calls ?? []).map((call, place) => (
        <div class="call" key={place}>
          <span aria-hidden="true">→ </span>
          <b>{call.name}</b> <Arguments given={call.arguments} />
        </div>
      ))}
    </>
  );
}

function Arguments({ given }: { given: unknown }): JSX.Element {
  if (typeof given === "string") {
    try {
      const parsed: unknown = JSON.parse(given);
      if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) {
        return (
          <>
            {Object.entries(parsed).map(([name, value]) => (
              <span key={name} class="argument">
                <span class="quiet">{name}: </span>
                {visible(typeof value === "string" ? value : JSON.stringify(value))}{" "}
              </span>
            ))}
          </>
        );
      }
    } catch {
      return (
        <>
          <code>{visible(given)}</code> <span class="warn">not JSON</span>
        </>
      );
    }
    return <code>{visible(given)}</code>;
  }
  return <code>{isCut(given) ? `${visible(String(given.cut))}…` : JSON.stringify(given)}</code>;
}

/** The way from a score to what it scores. */
function Scored({ run, node, row }: { run: string; node: string; row: Row }): JSX.Element | null {
  const { value } = useAnswer<Run>(address(["runs", run]));
  const from = value && scored(value, node);
  const id = row["trajectory_id"];
  if (!from || typeof id !== "string") return null;
  return (
    <p>
      <a href={link(["r", run, "n", from, "row"], { id, scores: node })}>The conversation</a>
    </p>
  );
}

/** The other samples of the same question. */
function Samples({ run, node, row }: { run: string; node: string; row: Row }): JSX.Element | null {
  const question = row["question_id"];
  const isOne = typeof question !== "string";
  const query = place.value.query;
  const where = isOne ? null : ofQuestion(question);
  const columns = "id\nprediction";
  const { value } = useAnswer<Rows>(
    isOne
      ? null
      : address(["runs", run, "nodes", node, "rows"], { port: query.get("port"), where, sort: "sample_index", columns, to: 64 }),
  );
  if (!value || value.count < 2) return null;
  return (
    <nav aria-label="Samples of this question">
      <ul class="tabs">
        {value.rows.map((line) => (
          <li key={line.number}>
            <a
              href={link(["r", run, "n", node, "row"], { port: query.get("port"), scores: query.get("scores"), id: String(line.id) })}
              aria-current={line.id === row["id"] ? "page" : undefined}
            >
              {String(line.id)} <span class="quiet">{String(line.cells[1] ?? "")}</span>
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

function isShort(value: unknown): boolean {
  return value !== null && value !== undefined && value !== "" && (typeof value !== "object" || (Array.isArray(value) && value.length < 8 && value.every((one) => typeof one !== "object")));
}

function scalar(value: unknown): ComponentChildren {
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "✓ yes" : "✕ no";
  if (Array.isArray(value)) return value.map(String).join(" | ");
  return visible(String(value));
}

function Record({ value }: { value: OneRow }): JSX.Element {
  return (
    <dl class="record">
      {value.every.map((column) => {
        const cell = value.row[column.name];
        return (
          <div key={column.name}>
            <dt>
              {column.name} <span class="quiet">{`${column.type}${column.scores ? ` · ${value.scorer}` : ""}`}</span>
            </dt>
            <dd>
              {cell === null || cell === undefined ? (
                <span class="null">–</span>
              ) : typeof cell === "string" || isCut(cell) ? (
                <Text text={structured(cell)} />
              ) : typeof cell === "object" ? (
                <pre class="text">{visible(JSON.stringify(cell, null, 2))}</pre>
              ) : (
                scalar(cell)
              )}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

/** Breaks JSON that is a text over lines. */
function structured(cell: unknown): unknown {
  if (typeof cell !== "string" || !/^[[{]/.test(cell)) return cell;
  try {
    return JSON.stringify(JSON.parse(cell), null, 2);
  } catch {
    return cell;
  }
}
