// The rounds of a loop: the curve of their means, and a line for each question.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { address } from "./api";
import { Told, Waiting, useAnswer } from "./common";
import { count, number } from "./format";
import { change, link, place } from "./route";
import { ofQuestion } from "./sql";

interface Question {
  id: string;
  values: (number | null)[];
  spread: number;
}

interface RoundsAnswer {
  nodes: string[];
  numbers: number[];
  measure: string;
  measures: string[];
  means: (number | null)[];
  questions: Question[];
}

/** Questions that are shown together. */
const SHOWN = 200;

function known(values: (number | null)[]): number[] {
  return values.filter((value): value is number => value !== null);
}

/** Last minus first value: what was learnt, or forgotten. */
function gain(question: Question): number {
  const values = known(question.values);
  return values.length > 1 ? (values[values.length - 1] ?? 0) - (values[0] ?? 0) : 0;
}

const ORDERS: Record<string, [string, (one: Question, other: Question) => number]> = {
  learnt: ["learnt most", (one, other) => gain(other) - gain(one)],
  forgotten: ["forgotten most", (one, other) => gain(one) - gain(other)],
  changed: ["changed most", (one, other) => range(other) - range(one)],
  disagreed: ["samples that disagree", (one, other) => other.spread - one.spread],
  id: ["question", (one, other) => one.id.localeCompare(other.id)],
};

function range(question: Question): number {
  const values = known(question.values);
  return values.length === 0 ? 0 : Math.max(...values) - Math.min(...values);
}

function Curve({ answer }: { answer: RoundsAnswer }): JSX.Element {
  const [width, height, left, bottom] = [640, 180, 44, 24];
  const values = known(answer.means);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const span = most - least || 1;
  const last = Math.max(1, answer.means.length - 1);
  const x = (at: number): number => left + (at / last) * (width - left - 12);
  const y = (value: number): number => 12 + (1 - (value - least) / span) * (height - bottom - 24);
  const points = answer.means.flatMap((mean, at) => (mean === null ? [] : [`${x(at)},${y(mean)}`]));
  return (
    <div class="scroll" tabIndex={0}>
      <svg class="curve" width={width} height={height} role="img" aria-label={`Mean ${answer.measure} of the rounds, from ${number(values[0] ?? 0)} to ${number(values[values.length - 1] ?? 0)}`}>
        <line x1={left} x2={width - 12} y1={y(least)} y2={y(least)} />
        <line x1={left} x2={width - 12} y1={y(most)} y2={y(most)} />
        <text x={left - 6} y={y(least) + 4} text-anchor="end">{number(least)}</text>
        <text x={left - 6} y={y(most) + 4} text-anchor="end">{number(most)}</text>
        <polyline points={points.join(" ")} />
        {answer.means.map((mean, at) =>
          mean === null ? null : (
            <g key={at}>
              <circle cx={x(at)} cy={y(mean)} r="3">
                <title>{`round ${answer.numbers[at] ?? at}: ${number(mean)}`}</title>
              </circle>
              <text x={x(at)} y={height - 6} text-anchor="middle">{answer.numbers[at]}</text>
            </g>
          ),
        )}
      </svg>
    </div>
  );
}

export function Rounds({ run, node }: { run: string; node: string }): JSX.Element {
  const query = place.value.query;
  const name = query.get("by");
  const { value, problem } = useAnswer<RoundsAnswer>(address(["runs", run, "nodes", node, "rounds"], { name }));
  const order = query.get("order") ?? "changed";
  const [more, setMore] = useState(1);
  if (problem) return <Told problem={problem} />;
  if (!value) return <Waiting />;
  const values = value.questions.flatMap((question) => known(question.values));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const level = (one: number): number => (most > least ? Math.round(((one - least) / (most - least)) * 4) : 4);
  const questions = [...value.questions].sort((ORDERS[order] ?? ORDERS["changed"] ?? ["", () => 0])[1]);
  const shown = questions.slice(0, SHOWN * more);
  const gained = value.questions.filter((question) => gain(question) > 0).length;
  const lost = value.questions.filter((question) => gain(question) < 0).length;
  return (
    <section>
      <div class="bar">
        <label>
          Measure{" "}
          <select value={value.measure} onChange={(event) => change({ by: event.currentTarget.value }, true)}>
            {value.measures.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <label>
          Order{" "}
          <select value={order} onChange={(event) => change({ order: event.currentTarget.value }, true)}>
            {Object.entries(ORDERS).map(([key, [words]]) => (
              <option key={key} value={key}>
                {words}
              </option>
            ))}
          </select>
        </label>
        <span role="status">
          {`${count(value.questions.length)} questions in ${count(value.nodes.length)} rounds · ${count(gained)} learnt · ${count(lost)} forgotten`}
        </span>
      </div>
      <Curve answer={value} />
      <div class="scroll" tabIndex={0}>
        <table class="list rounds">
          <thead>
            <tr>
              <th scope="col">Question</th>
              {value.numbers.map((round, at) => (
                <th scope="col" class="number" key={at}>
                  <a href={link(["r", run, "n", value.nodes[at] ?? node])}>{round}</a>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((question) => (
              <tr key={question.id}>
                <th scope="row">{question.id}</th>
                {question.values.map((one, at) => (
                  <td key={at} class={`number ${one === null ? "" : `level${level(one)}`}`}>
                    {one === null ? (
                      <span class="null">·</span>
                    ) : (
                      <a href={link(["r", run, "n", value.nodes[at] ?? node, "row"], { where: ofQuestion(question.id), at: 0 })}>
                        {number(Number(one.toFixed(2)))}
                      </a>
                    )}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {questions.length > shown.length && (
        <button type="button" onClick={() => setMore(more + 1)}>
          {`${count(shown.length)} of ${count(questions.length)}: more`}
        </button>
      )}
    </section>
  );
}
