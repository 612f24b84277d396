// The choice of another run, or another node of the same run, to compare with.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type NodeLine, type Run, type Summary, address } from "./api";
import { State, Told, Waiting, useAnswer } from "./common";
import { moment } from "./format";
import { isBundle, link } from "./route";

/** Nodes that are offered (at most): one of the same operator in the same run is found in the first ones. */
const NODES = 50;

/** The nodes of a run that a node is worth comparing with: of the same operator, variants of the same matrix first. */
function alike(nodes: NodeLine[], node: string): NodeLine[] {
  const operator = nodes.find((one) => one.node === node)?.operator;
  const base = (name: string): string => name.split("@")[0] ?? name;
  const others = nodes.filter((one) => one.node !== node && one.operator === operator && one.outputs.length > 0);
  const variants = others.filter((one) => base(one.node) === base(node));
  const rest = others.filter((one) => base(one.node) !== base(node));
  return [...variants, ...rest].slice(0, NODES);
}

export function CompareWith({ run, node, close }: { run: string; node?: string | undefined; close: () => void }): JSX.Element {
  const whole = useAnswer<Run>(address(["runs", run]));
  const pipeline = whole.value?.pipeline;
  const { value, problem } = useAnswer<{ runs: Summary[] }>(pipeline === undefined ? null : address(["runs"], { pipeline, limit: 20 }));
  const box = useRef<HTMLDivElement>(null);
  const others = value?.runs.filter((other) => other.id !== run) ?? [];
  const told = whole.problem ?? problem;
  // A file has no answers for pairs of nodes.
  const nodes = node !== undefined && whole.value && !isBundle ? alike(whole.value.ran, node) : [];
  useEffect(() => box.current?.querySelector("a")?.focus(), [others.length, nodes.length]);
  return (
    <div
      class="help"
      role="dialog"
      aria-label="Compare with"
      ref={box}
      onKeyDown={(event) => {
        // Before the keys of the view below: Esc closes this first.
        if (event.key !== "Escape") return;
        event.preventDefault();
        close();
      }}
    >
      {nodes.length > 0 && (
        <>
          <h2>{`Compare ${node} with a node of this run`}</h2>
          <ul class="plain">
            {nodes.map((other) => (
              <li key={other.node}>
                <a href={link(["compare"], { a: run, b: run, node, with: other.node })} onClick={close}>
                  {other.node}
                </a>
              </li>
            ))}
          </ul>
        </>
      )}
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
