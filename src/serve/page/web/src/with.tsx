// The choice of another run to compare with.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type Run, type Summary, address } from "./api";
import { State, Told, Waiting, useAnswer } from "./common";
import { moment } from "./format";
import { link } from "./route";

export function CompareWith({ run, close }: { run: string; close: () => void }): JSX.Element {
  const whole = useAnswer<Run>(address(["runs", run]));
  const pipeline = whole.value?.pipeline;
  const { value, problem } = useAnswer<{ runs: Summary[] }>(pipeline === undefined ? null : address(["runs"], { pipeline, limit: 20 }));
  const box = useRef<HTMLDivElement>(null);
  const others = value?.runs.filter((other) => other.id !== run) ?? [];
  useEffect(() => box.current?.querySelector("a")?.focus(), [others.length]);
  const told = whole.problem ?? problem;
  return (
    <div
      class="help"
      role="dialog"
      aria-label="Compare with another run"
      ref={box}
      onKeyDown={(event) => {
        // Before the keys of the view below: Esc closes this first.
        if (event.key !== "Escape") return;
        event.preventDefault();
        close();
      }}
    >
      <h2>{`Compare ${run} with …`}</h2>
      {told ? <Told problem={told} /> : !value && <Waiting />}
      {value && others.length === 0 && <p class="note">The pipeline has no other run.</p>}
      <ul class="plain">
        {others.map((other) => {
          // The earlier run is what the later one is compared with.
          const [a, b] = [run, other.id].sort();
          return (
            <li key={other.id}>
              <a href={link(["compare"], { a, b })} onClick={close}>
                {other.id}
              </a>{" "}
              <State state={other.state} /> <span class="quiet">{moment(other.started)}</span>
            </li>
          );
        })}
      </ul>
      <button type="button" onClick={close}>
        Close
      </button>
    </div>
  );
}
