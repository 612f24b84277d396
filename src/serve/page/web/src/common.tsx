// Parts that several views share.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { Problem, ask, setToken } from "./api";

export interface Answer<T> {
  value: T | null;
  problem: Problem | null;
  /** Whether what is shown answers an earlier question. */
  stale: boolean;
  again: () => void;
}

/** Asks the server; the last answer stays until the next one is there. */
export function useAnswer<T>(url: string | null): Answer<T> {
  const [value, setValue] = useState<{ url: string; value: T } | null>(null);
  const [problem, setProblem] = useState<{ url: string; problem: Problem } | null>(null);
  const [times, setTimes] = useState(0);
  useEffect(() => {
    if (!url) return;
    const stop = new AbortController();
    ask<T>(url, stop.signal).then(
      (found) => {
        setValue({ url, value: found });
        setProblem(null);
      },
      (error: unknown) => {
        if (stop.signal.aborted) return;
        setProblem({ url, problem: error instanceof Problem ? error : new Problem(String(error), null, 0) });
      },
    );
    return () => stop.abort();
  }, [url, times]);
  return {
    value: value?.value ?? null,
    problem: problem && problem.url === url ? problem.problem : null,
    stale: value !== null && value.url !== url,
    again: () => setTimes(times + 1),
  };
}

/** A state in words and a sign: never by colour alone. */
export function State({ state }: { state: string }): JSX.Element {
  const signs: Record<string, string> = {
    done: "✓",
    cached: "=",
    running: "▸",
    begun: "▸",
    failed: "✕",
    "check failed": "✕",
    killed: "✕",
    damaged: "✕",
    incomplete: "!",
    budget: "!",
    interrupted: "!",
    "held back": "!",
    skipped: "–",
    ended: "–",
  };
  return (
    <span class={`state s-${state.replaceAll(" ", "-")}`}>
      <span aria-hidden="true">{signs[state] ?? "·"}</span> {state}
    </span>
  );
}

export function Told({ problem, again }: { problem: Problem; again?: () => void }): JSX.Element {
  if (problem.status === 401) return <AskToken />;
  return (
    <div class="problem" role="alert">
      <p>{problem.message}</p>
      {problem.help && <p class="quiet">{problem.help}</p>}
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

function AskToken(): JSX.Element {
  const [token, set] = useState("");
  const enter = (event: Event): void => {
    event.preventDefault();
    setToken(token.trim());
    location.reload();
  };
  return (
    <form class="problem" onSubmit={enter}>
      <label for="token">This server needs its token (the content of its token file)</label>
      <input
        id="token"
        type="password"
        autocomplete="off"
        value={token}
        onInput={(event) => set(event.currentTarget.value)}
      />
      <button type="submit">Enter</button>
    </form>
  );
}

export function Waiting(): JSX.Element {
  return (
    <p class="waiting" role="status">
      Reading…
    </p>
  );
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }): JSX.Element {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return (
    <dl class="facts">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Keys of a view: the name of a key, and what it does. */
export function useKeys(keys: Record<string, () => void>): void {
  // Before the view is painted: a key pressed right after must not meet what
  // the view before it would have done.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const at = event.target instanceof HTMLElement ? event.target : null;
      const isTyping = at?.matches("input, textarea, select") ?? false;
      if (isTyping) {
        if (event.key === "Escape") at?.blur();
        return;
      }
      // A link or button in focus keeps Enter for itself.
      if (event.key === "Enter" && at?.matches("a, button, summary")) return;
      const act = keys[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}
