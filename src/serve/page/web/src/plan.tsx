// What the next run of a pipeline would do, why, and what it would cost.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type Planned, type PlannedNode, address } from "./api";
import { Told, Waiting, useAnswer } from "./common";
import { count, money, visible } from "./format";

/** Nodes that are listed (at most). */
const LISTED = 200;

/** Asks only when it is wanted: counting known rows may take seconds. */
export function NextRun({ pipeline }: { pipeline: string }): JSX.Element {
  const [wanted, want] = useState(false);
  return (
    <section>
      <h2>Next run</h2>
      {wanted ? (
        <Plan pipeline={pipeline} />
      ) : (
        <button type="button" onClick={() => want(true)}>
          What would it do, and cost?
        </button>
      )}
    </section>
  );
}

function Plan({ pipeline }: { pipeline: string }): JSX.Element {
  const { value, problem, again } = useAnswer<Planned>(address(["plan"], { pipeline }));
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  const cached = value.nodes.filter((node) => node.status === "cached").length;
  const held = value.nodes.filter((node) => node.status === "held").length;
  // Nodes of rounds that a loop does without are none of the next run.
  const told = value.nodes.filter((node) => node.status !== "ended");
  const others = told.filter((node) => !["cached", "held"].includes(node.status));
  const command = ["searchmill run", value.file, ...value.params_files.map((file) => `--params ${file}`), ...value.set.map((one) => `--set ${one}`)];
  return (
    <>
      <p>
        <code>{visible(command.join(" "))}</code>
      </p>
      <p role="status">{`${count(told.length)} nodes: ${count(cached)} cached, ${count(others.length)} to run or to decide${held > 0 ? `, ${count(held)} held` : ""}${total(others)}`}</p>
      {others.length > 0 && (
        <div class="scroll" tabIndex={0}>
          <table class="list">
            <thead>
              <tr>
                <th scope="col">Node</th>
                <th scope="col">Operator</th>
                <th scope="col">What</th>
                <th scope="col">Why</th>
                <th scope="col" class="number">Rows known</th>
                <th scope="col" class="number">To compute</th>
                <th scope="col" class="number">Calls</th>
                <th scope="col" class="number">Of tools</th>
                <th scope="col" class="number">Tokens</th>
                <th scope="col" class="number">Cost</th>
              </tr>
            </thead>
            <tbody>
              {others.slice(0, LISTED).map((node) => (
                <Line key={node.node} node={node} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {others.length > LISTED && <p class="quiet">{`the first ${count(LISTED)} of ${count(others.length)}; all: searchmill plan ${value.file} --all`}</p>}
      <button type="button" onClick={again}>
        Look again
      </button>
    </>
  );
}

function Line({ node }: { node: PlannedNode }): JSX.Element {
  // Only nodes that ask an endpoint have rows and an estimate.
  const asks = node.rows !== undefined;
  const unknown = asks ? "unknown" : "";
  const { rows, estimate } = node;
  const about = (value: number | undefined): string => (value === undefined ? unknown : `~${count(value)}`);
  return (
    <tr>
      <th scope="row">{node.node}</th>
      <td>{node.operator}</td>
      <td>{node.status}</td>
      <td class="why">{visible(node.detail)}</td>
      <td class="number">{rows ? count(rows.known) : unknown}</td>
      <td class="number">{rows ? `${rows.at_most ? "at most " : ""}${count(rows.to_compute)}` : unknown}</td>
      <td class="number">{about(estimate ? estimate.calls - estimate.service_calls : undefined)}</td>
      <td class="number">{estimate?.service_calls ? `~${count(estimate.service_calls)}` : ""}</td>
      <td class="number">{about(estimate ? estimate.prompt_tokens + estimate.completion_tokens : undefined)}</td>
      <td class="number">{estimate?.cost ? `~${money(estimate.cost, estimate.currency ?? "")}` : ""}</td>
    </tr>
  );
}

/** What is expected of all nodes together. */
function total(nodes: PlannedNode[]): string {
  const asking = nodes.filter((node) => node.rows !== undefined);
  if (asking.length === 0) return "";
  let [calls, cost] = [0, 0];
  let currency = "";
  for (const { estimate } of asking) {
    calls += estimate ? estimate.calls - estimate.service_calls : 0;
    cost += estimate?.cost ?? 0;
    currency ||= estimate?.currency ?? "";
  }
  const unknown = asking.some((node) => !node.estimate) ? ", and what is unknown" : "";
  return `; about ${count(calls)} calls${cost > 0 ? `, ${money(cost, currency)}` : ""}${unknown}`;
}
