// The filter of a table: conditions as chips, which are also SQL and also the address.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type ColumnSummary, type Column, address } from "./api";
import { isNumeric } from "./cells";
import { useAnswer } from "./common";
import { count, number } from "./format";
import { sqlName, sqlText } from "./sql";

/** One condition, as SQL. */
export function condition(column: Column, operator: string, value: string): string {
  const name = sqlName(column.name);
  if (operator === "is empty") return `${name} IS NULL`;
  if (operator === "is not empty") return `${name} IS NOT NULL`;
  if (column.type === "yes or no") return value === "no" ? `NOT ${name}` : name;
  const isNumber = isNumeric(column) && Number.isFinite(Number(value));
  const literal = isNumber ? value.trim() : sqlText(value);
  if (operator === "contains") {
    const pattern = sqlText(`%${value.replace(/[\\%_]/g, "\\$&")}%`);
    const text = column.type.startsWith("list") ? `array_to_string(${name}, ' ')` : name;
    return `${text} ILIKE ${pattern}`;
  }
  return `${name} ${operator} ${literal}`;
}

/** Joins conditions to one. */
export function both(one: string, other: string): string {
  if (!one.trim()) return other;
  return /\bor\b/i.test(one) ? `(${one}) AND ${other}` : `${one} AND ${other}`;
}

/** Splits SQL at `AND` outside of parentheses and quotes: each part is a chip. */
export function chips(sql: string): string[] {
  const parts: string[] = [];
  let [depth, quote, part] = [0, "", ""];
  let between = false;
  for (let place = 0; place < sql.length; place += 1) {
    const letter = sql[place] ?? "";
    if (quote) quote = letter === quote ? "" : quote;
    else if (letter === "'" || letter === '"') quote = letter;
    else if (letter === "(") depth += 1;
    else if (letter === ")") depth -= 1;
    const rest = sql.slice(place);
    if (!quote && depth === 0 && /^\sbetween\s/i.test(rest)) between = true;
    const and = !quote && depth === 0 ? /^\sand\s+/i.exec(rest) : null;
    if (and && between) between = false;
    else if (and) {
      parts.push(part.trim());
      part = "";
      place += and[0].length - 1;
      continue;
    }
    part += letter;
  }
  parts.push(part.trim());
  const shown = parts.filter(Boolean);
  // A chip of several alternatives must not be torn apart.
  return shown.length > 1 && shown.some((one) => /\sor\s/i.test(one) && !one.startsWith("(")) ? [sql.trim()] : shown;
}

export function Filter({
  sql,
  columns,
  set,
}: {
  sql: string;
  columns: Column[];
  set: (sql: string) => void;
}): JSX.Element {
  const [typed, setTyped] = useState(sql);
  const [name, setName] = useState("");
  const [operator, setOperator] = useState("");
  const [value, setValue] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => setTyped(sql), [sql]);
  const usable = columns.filter((column) => !column.type.includes("objects"));
  const column = usable.find((one) => one.name === name);
  const operators = !column
    ? []
    : column.type === "yes or no"
      ? ["="]
      : isNumeric(column)
        ? ["<", "<=", "=", ">=", ">", "<>", "is empty", "is not empty"]
        : ["contains", "=", "<>", "is empty", "is not empty"];
  const chosen = operators.includes(operator) ? operator : (operators[0] ?? "");
  const add = (event: Event): void => {
    event.preventDefault();
    if (!column || (value === "" && !chosen.startsWith("is"))) return;
    set(both(sql, condition(column, chosen, value)));
    setValue("");
  };
  return (
    <div class="filter">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          set(typed.trim());
        }}
      >
        <label for="where">Where</label>
        <input
          id="where"
          ref={input}
          class="sql"
          spellcheck={false}
          autocomplete="off"
          placeholder="SQL, such as f1 < 0.5 AND question_type = 'comparison'"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <button type="submit">Filter</button>
        {sql && (
          <button type="button" onClick={() => set("")}>
            All rows
          </button>
        )}
      </form>
      <form onSubmit={add} class="add">
        <select aria-label="Column" value={name} onChange={(event) => setName(event.currentTarget.value)}>
          <option value="">Add a condition…</option>
          {usable.map((one) => (
            <option key={one.name} value={one.name}>
              {one.name}
            </option>
          ))}
        </select>
        {column && (
          <>
            <select aria-label="Operator" value={chosen} onChange={(event) => setOperator(event.currentTarget.value)}>
              {operators.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
            {column.type === "yes or no" ? (
              <select aria-label="Value" value={value || "yes"} onChange={(event) => setValue(event.currentTarget.value)}>
                <option value="yes">yes</option>
                <option value="no">no</option>
              </select>
            ) : (
              !chosen.startsWith("is") && (
                <input aria-label="Value" value={value} onInput={(event) => setValue(event.currentTarget.value)} />
              )
            )}
            <button type="submit" onClick={() => column.type === "yes or no" && value === "" && setValue("yes")}>
              Add
            </button>
          </>
        )}
        {chips(sql).map((chip, place, all) => (
          <span class="chip" key={chip}>
            <code>{chip}</code>
            <button
              type="button"
              aria-label={`Remove ${chip}`}
              onClick={() => set(all.filter((_, other) => other !== place).join(" AND "))}
            >
              ×
            </button>
          </span>
        ))}
      </form>
    </div>
  );
}

/** The condition for the values of a bin. */
function within(name: string, bin: { from: number; to: number }, isWhole: boolean, isLast: boolean): string {
  if (isWhole && bin.to - bin.from === 1) return `${name} = ${bin.from}`;
  return `${name} >= ${bin.from} AND ${name} ${isLast && !isWhole ? "<=" : "<"} ${bin.to}`;
}

/** What a column holds: a histogram, or its most common values. A click filters. */
export function Summary({
  path,
  query,
  column,
  add,
  close,
}: {
  path: string[];
  query: Record<string, string | null>;
  column: Column;
  add: (sql: string) => void;
  close: () => void;
}): JSX.Element {
  const { value, problem } = useAnswer<ColumnSummary>(address([...path, "column"], { ...query, name: column.name }));
  const most = Math.max(1, ...(value?.bins ?? []).map((bin) => bin.rows), ...(value?.common ?? []).map((one) => one.rows));
  const name = sqlName(column.name);
  const counted = column.type.startsWith("list") ? `coalesce(array_length(${name}), 0)` : name;
  const isWhole = column.type.startsWith("list") || column.type === "whole number" || /^U?Int/.test(column.type);
  return (
    <section class="summary" aria-label={`Values of ${column.name}`}>
      <h3>
        {column.name} <span class="quiet">{column.type}</span>
        <button type="button" onClick={close} aria-label="Close the values">
          ×
        </button>
      </h3>
      {problem && <p class="quiet">The values cannot be counted.</p>}
      {value && (
        <>
          <p class="quiet">
            {`${count(value.rows)} rows · ${count(value.nulls)} empty · ${count(value.distinct)} different`}
            {value.of ? ` (${value.of})` : ""}
            {value.mean !== undefined && ` · ${number(value.min ?? 0)} to ${number(value.max ?? 0)}, mean ${number(value.mean)}`}
          </p>
          <ul class="bars">
            {(value.bins ?? []).map((bin, place, all) => (
              <li key={bin.from}>
                <button
                  type="button"
                  disabled={bin.rows === 0}
                  onClick={() =>
                    add(within(counted, bin, isWhole, place + 1 === all.length))
                  }
                >
                  <span class="label">{isWhole ? (bin.to - bin.from === 1 ? number(bin.from) : `${number(bin.from)} – ${number(bin.to - 1)}`) : `${number(bin.from)} – ${number(bin.to)}`}</span>
                  <meter min={0} max={most} value={bin.rows} />
                  <span class="number">{count(bin.rows)}</span>
                </button>
              </li>
            ))}
            {(value.common ?? []).map((one) => (
              <li key={one.value}>
                <button type="button" onClick={() => add(condition(column, "=", one.value === "true" ? "yes" : one.value === "false" ? "no" : one.value))}>
                  <span class="label">{one.value || "(empty text)"}</span>
                  <meter min={0} max={most} value={one.rows} />
                  <span class="number">{count(one.rows)}</span>
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}
