// All pipelines of the store, and the runs of one.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Pipelines, type Summary, address, ask } from "./api";
import { Facts, State, Told, Waiting, useAnswer, useKeys } from "./common";
import { count, modelCalls, moment, money, seconds } from "./format";
import { NextRun } from "./plan";
import { go, href, isBundle, link } from "./route";
import { Schedules } from "./schedules";

function took(run: Summary): string {
  return run.started && run.finished ? seconds(run.finished - run.started) : "";
}

function Counts({ run }: { run: Summary }): JSX.Element {
  const end = run.end ?? {};
  const parts: [string, number | undefined][] = [
    ["cached", end.cached],
    ["ran", end.finished],
    ["failed", end.failed],
    ["skipped", end.skipped],
  ];
  const shown = parts.filter(([name, value]) => value !== undefined && (value > 0 || name === "cached" || name === "ran"));
  return <span class="counts">{shown.map(([name, value]) => `${count(value)} ${name}`).join(" · ")}</span>;
}

function Table({ runs, compare }: { runs: Summary[]; compare?: { chosen: string[]; choose: (id: string) => void } }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0}>
      <table class="list">
        <thead>
          <tr>
            {compare && <th scope="col">Compare</th>}
            <th scope="col">Run</th>
            <th scope="col">State</th>
            <th scope="col">Started</th>
            <th scope="col" class="number">Time</th>
            <th scope="col">Nodes</th>
            <th scope="col" class="number">Calls</th>
            <th scope="col" class="number">Cost</th>
            <th scope="col">Checks</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run.id}>
              {compare && (
                <td>
                  <input
                    type="checkbox"
                    aria-label={`Compare ${run.id}`}
                    checked={compare.chosen.includes(run.id)}
                    onChange={() => compare.choose(run.id)}
                  />
                </td>
              )}
              <td>
                <a href={link(["r", run.id])}>{run.id}</a>
              </td>
              <td>
                <State state={run.state} />
                {run.imported && <span class="quiet"> imported</span>}
              </td>
              <td>{moment(run.started)}</td>
              <td class="number">{took(run)}</td>
              <td>
                <Counts run={run} />
              </td>
              <td class="number">{modelCalls(run.end ?? {})}</td>
              <td class="number">{money(run.end?.cost, run.end?.currency)}</td>
              <td>
                {run.end?.checks_held ? `${run.end.checks_held} hold` : ""}
                {run.end?.checks_warned ? ` ${run.end.checks_warned} warn` : ""}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Home(): JSX.Element {
  const { value, problem, again } = useAnswer<Pipelines>(address(["pipelines"]));
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  return (
    <main>
      <h1>Pipelines</h1>
      <Facts facts={[["Store", value.store]]} />
      {!value.exists && <p class="note">There is no store here yet. The first `searchmill run` creates it.</p>}
      {value.running.length > 0 && (
        <section>
          <h2>Running now</h2>
          <Table runs={value.running} />
        </section>
      )}
      {value.schedules.length > 0 && <Schedules schedules={value.schedules} again={again} />}
      {value.schedules.length > 0 && <h2>All pipelines</h2>}
      {value.pipelines.length > 0 ? (
        <div class="scroll" tabIndex={0}>
          <table class="list">
            <thead>
              <tr>
                <th scope="col">Pipeline</th>
                <th scope="col">Last run</th>
                <th scope="col">Started</th>
                <th scope="col" class="number">Time</th>
                <th scope="col">Nodes</th>
                <th scope="col" class="number">Cost</th>
                <th scope="col" class="number">Runs</th>
              </tr>
            </thead>
            <tbody>
              {value.pipelines.map(({ name, runs, last }) => (
                <tr key={name}>
                  <th scope="row">
                    <a href={link(["p", name])}>{name || "(damaged records)"}</a>
                  </th>
                  <td>
                    <a href={link(["r", last.id])}>
                      <State state={last.state} />
                    </a>
                  </td>
                  <td>{moment(last.started)}</td>
                  <td class="number">{took(last)}</td>
                  <td>
                    <Counts run={last} />
                  </td>
                  <td class="number">{money(last.end?.cost, last.end?.currency)}</td>
                  <td class="number">{count(runs)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        value.exists && <p class="note">The store has no runs.</p>
      )}
    </main>
  );
}

export function PipelinePage({ name }: { name: string }): JSX.Element {
  const { value, problem, again } = useAnswer<{ runs: Summary[]; more: boolean }>(address(["runs"], { pipeline: name }));
  const [older, setOlder] = useState<{ runs: Summary[]; more: boolean }>({ runs: [], more: true });
  const [chosen, setChosen] = useState<string[]>([]);
  useKeys({ Escape: () => go(href("/")) });
  useEffect(() => {
    document.title = `${name} · searchmill`;
  }, [name]);
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  const runs = [...value.runs, ...older.runs];
  const more = older.runs.length > 0 ? older.more : value.more;
  const choose = (id: string): void => {
    setChosen(chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id].slice(-2));
  };
  const load = (): void => {
    const before = runs[runs.length - 1]?.id;
    void ask<{ runs: Summary[]; more: boolean }>(address(["runs"], { pipeline: name, before })).then((found) => {
      setOlder({ runs: [...older.runs, ...found.runs], more: found.more });
    });
  };
  const [one, other] = [...chosen].sort();
  return (
    <main>
      <h1>{name}</h1>
      <p>
        {one && other ? (
          <a class="button" href={link(["compare"], { a: one, b: other })}>
            Compare these two runs
          </a>
        ) : (
          <span class="quiet">Choose two runs to compare them.</span>
        )}
      </p>
      <Table runs={runs} compare={{ chosen, choose }} />
      {more && (
        <button type="button" onClick={load}>
          Earlier runs
        </button>
      )}
      {!isBundle && <NextRun pipeline={name} />}
    </main>
  );
}
