// One node of a run: its rows, its rejects, why it ran, its checks, where it is from.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { type NodeDetail, type Run, address, scored } from "./api";
import { Facts, State, Told, Waiting, useAnswer, useKeys } from "./common";
import { bytes, count, modelCalls, moment, number, seconds, visible, written } from "./format";
import { Files } from "./files";
import { Rounds } from "./rounds";
import { go, link, place } from "./route";
import { Table } from "./table";

export function NodePage({ run, node }: { run: string; node: string }): JSX.Element {
  const { value, problem, again } = useAnswer<NodeDetail>(address(["runs", run, "nodes", node]));
  useEffect(() => {
    document.title = `${node} · searchmill`;
  }, [node]);
  const tables = value?.outputs.filter((output) => output.table) ?? [];
  const asked = place.value.query.get("port");
  const folders = value?.outputs.filter((output) => !output.table) ?? [];
  const hasRows = tables.length > 0 && (tables[0]?.port !== "rejects" || asked);
  // A report is what its node is for.
  const report = folders.find((output) => output.type === "report");
  const first = folders.find((output) => output.type === "files");
  const tab = place.value.query.get("tab") ?? (report && !asked ? `files ${report.port}` : hasRows ? "rows" : first ? `files ${first.port}` : "about");
  const isRows = tab === "rows";
  useKeys(isRows ? {} : { Escape: () => go(link(["r", run])) });
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  const port = asked ?? tables[0]?.port ?? null;
  const tabs: [string, string, string][] = [
    ...tables.map((output): [string, string, string] => [
      `rows ${output.port}`,
      `${output.port} (${count(output.rows)})`,
      link(["r", run, "n", node], { port: output.port === tables[0]?.port ? null : output.port, tab: "rows" }),
    ]),
    ...folders.map((output): [string, string, string] => [
      `files ${output.port}`,
      output.type === "report" ? "Report" : `Files: ${output.port}`,
      link(["r", run, "n", node], { tab: `files ${output.port}` }),
    ]),
    ["about", "About", link(["r", run, "n", node], { tab: "about" })],
    ["why", "Why it ran", link(["r", run, "n", node], { tab: "why" })],
    ["lineage", "Lineage", link(["r", run, "n", node], { tab: "lineage" })],
    ...(/[@,]round=\d/.test(node)
      ? [["rounds", "Rounds", link(["r", run, "n", node], { tab: "rounds" })] as [string, string, string]]
      : []),
  ];
  const now = isRows ? `rows ${port}` : tab;
  return (
    <main class={isRows ? "wide" : ""}>
      <h1>
        {node} <State state={value.state} /> <span class="quiet">{value.operator}</span>
      </h1>
      <nav aria-label="Parts of the node">
        <ul class="tabs">
          {tabs.map(([name, shown, to]) => (
            <li key={name}>
              <a href={to} aria-current={name === now ? "page" : undefined}>
                {shown}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      {value.error && (
        <div class="problem" role="alert">
          <p>{visible(value.error)}</p>
        </div>
      )}
      {isRows && port && <Table key={port} run={run} node={node} port={port} />}
      {folders.map((output) => tab === `files ${output.port}` && (
        <section key={output.id}>
          <Origin run={run} value={value} />
          <Files id={output.id} />
          {output.type === "report" && <Scored run={run} node={node} />}
        </section>
      ))}
      {tab === "about" && <About value={value} />}
      {tab === "why" && <Why value={value} />}
      {tab === "lineage" && <Lineage run={run} value={value} />}
      {tab === "rounds" && <Rounds run={run} node={node} />}
    </main>
  );
}

/** What a report is of: the file alone does not say. */
function Origin({ run, value }: { run: string; value: NodeDetail }): JSX.Element {
  const whole = useAnswer<Run>(address(["runs", run])).value;
  const given = (whole?.set ?? []).map((one) => `--set ${one}`).join(" ");
  return (
    <Facts
      facts={[
        ["Pipeline", whole?.pipeline && <a href={link(["p", whole.pipeline])}>{whole.pipeline}</a>],
        ["Run", <a href={link(["r", run])}>{run}</a>],
        ["Computed", moment(value.finished)],
        ["Differs from the file", given && <code>{visible(given)}</code>],
      ]}
    />
  );
}

/** All rollouts that a report is about: the report itself shows a few. */
function Scored({ run, node }: { run: string; node: string }): JSX.Element | null {
  const whole = useAnswer<Run>(address(["runs", run])).value;
  const from = whole && scored(whole, node);
  if (!from) return null;
  return (
    <section class="below">
      <h2>All rollouts</h2>
      <Table run={run} node={from} port="trajectories" scorer={node} />
    </section>
  );
}

function About({ value }: { value: NodeDetail }): JSX.Element {
  const params = Object.entries((value.params ?? {}) as Record<string, unknown>);
  return (
    <>
      <Facts
        facts={[
          ["Time", value.seconds ? seconds(value.seconds) : ""],
          ["Computed", moment(value.finished)],
          ["In run", value.made_by && <a href={link(["r", value.made_by])}>{value.made_by}</a>],
          ["Version", value.version],
          ["Calls", modelCalls(value)],
          ["Calls of tools and functions", value.service_calls ? count(value.service_calls) : ""],
          ["Tokens", value.prompt_tokens ? `${count(value.prompt_tokens)} + ${count(value.completion_tokens)}` : ""],
          ["Cost", value.cost ? number(value.cost) : ""],
        ]}
      />
      {value.summary && <pre class="text">{visible(value.summary)}</pre>}
      {value.check_outcomes.length > 0 && (
        <section>
          <h2>Checks</h2>
          <ul class="checks">
            {value.check_outcomes.map((check, place) => (
              <li key={place}>
                <State state={check.passed ? "done" : "check failed"} /> {check.name ?? check.check}{" "}
                <span class="quiet">{visible(check.found)}</span>
              </li>
            ))}
          </ul>
        </section>
      )}
      {Object.keys(value.figures ?? {}).length > 0 && (
        <section>
          <h2>Figures</h2>
          <Facts facts={Object.entries(value.figures ?? {}).map(([name, figure]) => [name, number(figure)])} />
        </section>
      )}
      <section>
        <h2>Params</h2>
        <Facts facts={params.map(([name, param]) => [name, <code key={name}>{visible(written(param))}</code>])} />
      </section>
      <section>
        <h2>Outputs</h2>
        <Facts
          facts={value.outputs.map((output) => [
            output.port,
            <>
              {`${output.type ?? "unknown"} · ${output.table ? `${count(output.rows)} rows · ` : ""}${bytes(output.bytes)} · `}
              <a href={link(["a", output.id])}>{output.id.slice(0, 12)}</a>
            </>,
          ])}
        />
      </section>
    </>
  );
}

function Why({ value }: { value: NodeDetail }): JSX.Element {
  return (
    <>
      <p>{value.why || (value.state === "cached" ? "It did not run: its result was known." : "The run did not say.")}</p>
      <Facts facts={[["Key", value.key ?? ""]]} />
    </>
  );
}

function Lineage({ run, value }: { run: string; value: NodeDetail }): JSX.Element {
  const whole = useAnswer<Run>(address(["runs", run]));
  const edges = whole.value?.edges ?? [];
  const before = edges.filter((edge) => edge.to === value.node);
  const after = edges.filter((edge) => edge.from === value.node);
  const node = (name: string): JSX.Element => <a href={link(["r", run, "n", name])}>{name}</a>;
  return (
    <>
      <section>
        <h2>Read</h2>
        <ul>
          {before.map((edge) => (
            <li key={edge.from + edge.output}>
              {node(edge.from)} <span class="quiet">{edge.output}</span>
            </li>
          ))}
          {(value.sources ?? []).map((source) => (
            <li key={source.path}>
              <code>{source.path}</code> <span class="quiet">{source.content.slice(0, 12)}</span>
            </li>
          ))}
          {before.length === 0 && (value.sources ?? []).length === 0 && <li class="quiet">nothing of this run</li>}
        </ul>
      </section>
      <section>
        <h2>Read by</h2>
        <ul>
          {after.map((edge) => (
            <li key={edge.to + edge.output}>
              {node(edge.to)} <span class="quiet">{edge.output}</span>
            </li>
          ))}
          {after.length === 0 && <li class="quiet">nothing of this run</li>}
        </ul>
      </section>
      <p class="quiet">{`The whole way, to the sources: searchmill trace ${value.node} --run ${run}`}</p>
    </>
  );
}
