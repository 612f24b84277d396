// Recorded tokens of a conversation: which ones the model wrote and learns from, and how probable they were.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { isCut } from "./cells";
import { count, number } from "./format";

export interface Span {
  message?: number;
  branch?: number;
  sampled?: boolean;
  ids?: unknown;
  logprobs?: unknown;
}

/** Tokens that are drawn of one message (at most). */
const DRAWN = 2000;
/** Classes of probability, from certain to surprising. */
const CLASSES: [number, string][] = [
  [0.9, "≥ 90 %"],
  [0.5, "≥ 50 %"],
  [0.1, "≥ 10 %"],
  [0.01, "≥ 1 %"],
  [0, "< 1 %"],
];

function numbers(value: unknown): { shown: number[]; length: number } {
  if (isCut(value) && Array.isArray(value.cut)) return { shown: value.cut, length: value.length };
  return Array.isArray(value) ? { shown: value as number[], length: value.length } : { shown: [], length: 0 };
}

function level(logprob: number): number {
  const probability = Math.exp(logprob);
  return CLASSES.findIndex(([least]) => probability >= least);
}

/** The tokens of one message. */
export function Tokens({ spans }: { spans: Span[] }): JSX.Element | null {
  const [open, setOpen] = useState(false);
  if (spans.length === 0) return null;
  let [learnt, read, sum, known] = [0, 0, 0, 0];
  for (const span of spans) {
    const { length } = numbers(span.ids);
    if (span.sampled) learnt += length;
    else read += length;
    for (const one of numbers(span.logprobs).shown) {
      sum += one;
      known += 1;
    }
  }
  const mean = known > 0 ? ` · mean log-probability ${number(sum / known)}` : "";
  return (
    <details class="tokens" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{`${count(learnt)} tokens learnt · ${count(read)} masked${mean}`}</summary>
      {open && (
        <>
          <p class="quiet legend">
            {CLASSES.map(([, name], place) => (
              <span key={name}>
                <i class={`token t-${place}`} aria-hidden="true" /> {name}
              </span>
            ))}
            <span>
              <i class="token masked" aria-hidden="true" /> masked
            </span>
          </p>
          {spans.map((span, place) => (
            <Strip key={place} span={span} />
          ))}
        </>
      )}
    </details>
  );
}

function Strip({ span }: { span: Span }): JSX.Element {
  const ids = numbers(span.ids);
  const logprobs = numbers(span.logprobs).shown;
  const drawn = ids.shown.slice(0, DRAWN);
  const what = span.sampled ? "learnt" : "masked";
  return (
    <>
      <div class="strip" role="img" aria-label={`${count(ids.length)} tokens, ${what}, branch ${span.branch ?? 0}`}>
        {drawn.map((id, place) => {
          const logprob = logprobs[place];
          const kind = !span.sampled ? "masked" : logprob === undefined ? "" : `t-${level(logprob)}`;
          const said = logprob === undefined ? "" : ` · log-probability ${number(logprob)} (${number(100 * Math.exp(logprob))} %)`;
          return <i key={place} class={`token ${kind}`} title={`token ${id} · ${what}${said}`} />;
        })}
      </div>
      {ids.length > drawn.length && <p class="quiet">{`the first ${count(drawn.length)} of ${count(ids.length)} tokens`}</p>}
    </>
  );
}

/** Where sequences begin, if there are several. */
export function Branches({ spans }: { spans: Span[] }): JSX.Element | null {
  const found = new Map<number, { first: number; from: number; learnt: number }>();
  for (const span of spans) {
    const branch = span.branch ?? 0;
    const before = found.get(branch);
    const learnt = (before?.learnt ?? 0) + (span.sampled ? numbers(span.ids).length : 0);
    // A branch repeats what was read before; it begins to differ where the model writes.
    const first = before && before.learnt > 0 ? before.first : (span.message ?? 0);
    found.set(branch, { first, from: before?.from ?? span.message ?? 0, learnt });
  }
  if (found.size < 2) return null;
  return (
    <nav aria-label="Branches">
      <ul class="plain">
        {[...found].map(([branch, one]) => (
          <li key={branch}>
            <a href={`#m${one.first}`} target="_self">{`Branch ${branch}`}</a>{" "}
            <span class="quiet">{`${count(one.learnt)} tokens learnt, first in message ${one.first + 1}`}</span>
          </li>
        ))}
      </ul>
    </nav>
  );
}
